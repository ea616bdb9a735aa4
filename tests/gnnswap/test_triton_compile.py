"""Every Triton kernel compiles for the GPUs of data centres, with no GPU at hand, and none lacks registers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
STACK = 32  # bytes: far below its limit of 255 registers, ptxas spills up to six to run more programs at once
SCRIPT = Path(__file__).with_name("compile_triton.py")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sm", ["80", "90"])
def test_every_kernel_compiles_and_has_registers_enough(sm, dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, SCRIPT, sm, "--dtype", dtype], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    launches = [json.loads(line) for line in done.stdout.splitlines()]
    names = {one["kernel"] for one in launches}
    assert len(names) == 18, sorted(names)
    assert [one for one in launches if one["stack"] > STACK or (one["stack"] and one["registers"] >= 250)] == []
