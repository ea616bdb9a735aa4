"""The machine: what it is, which versions, what it reaches; and what runs in processes of its own."""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import os
import platform
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .rows import estimate
from .times import ROUNDS, Clock

ROOT = Path(__file__).resolve().parents[2]


def facts(device: str) -> dict:
    """What machine, which versions, and what it reaches on plain copies (TB/s) and matrix products (TFLOP/s)."""
    found: dict[str, Any] = {"device": platform.processor() or platform.machine(), "python": platform.python_version()}
    found |= {name: version(name) for name in ("torch", "torch_geometric", "triton", "numba")}
    found |= {"system": platform.platform(), "code": code()}
    found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    found["tf32"] = "off" if torch.get_float32_matmul_precision() == "highest" else "on"
    nbytes, side = 2**23, 256
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        found |= {"device": card.name, "capability": f"{card.major}.{card.minor}", "cuda": torch.version.cuda}
        found |= {"multiprocessors": card.multi_processor_count, "memory_gib": round(card.total_memory / 2**30, 2)}
        found |= {"l2_mib": round(getattr(card, "L2_cache_size", 0) / 2**20, 1), "driver": driver()}
        nbytes, side = min(2**31, torch.cuda.mem_get_info()[0] // 8), 8192
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    found["copy_mib"] = source.nbytes / 2**20
    found["copy_tb_s"] = rate(2 * source.nbytes / 1e12, partial(target.copy_, source), device)
    source = target = None
    found["product_side"] = side
    settings = [("float32", torch.float32, "highest"), ("bfloat16", torch.bfloat16, "highest")]
    if device == "cuda":
        settings.insert(1, ("float32, TF32 on", torch.float32, "high"))
    before = torch.get_float32_matmul_precision()
    for name, dtype, precision in settings:
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f"matrix product, {name}, TFLOP/s"] = rate(2 * side**3 / 1e12, partial(torch.matmul, a, b), device)
    torch.set_float32_matmul_precision(before)
    return found


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def rate(work: float, call: Callable[[], Any], device: str) -> dict:
    """Median and interval of `work` (in 10^12) a second."""
    clock = Clock(call, device)
    return estimate([float(f"{work / (clock.ms() / 1e3):.5g}") for _ in range(ROUNDS)])


def driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not known: nvidia-smi did not answer"


def code() -> str:
    """What gnnswap was: the commit, and the digest of its files, which counts where there is no git."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "gnnswap").glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    try:
        ask = lambda *given: subprocess.run(  # noqa: E731
            ["git", "--no-optional-locks", *given], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
        commit = f"commit {ask('rev-parse', '--short=10', 'HEAD')}"
        commit += " with changes" if ask("status", "--porcelain", "--", "gnnswap", "scripts") else ""
    except (OSError, subprocess.SubprocessError):
        commit = "commit not known"
    return f"{commit}, gnnswap/*.py sha256 {digest.hexdigest()[:12]}"


def child(command: list[str], limit_s: float, log: Path) -> tuple[int | None, str]:
    """Run a command in the repository; (exit status, what it printed). None: it was stopped at the limit.

    At the limit it is interrupted first, so that it can print what it has.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's background job ignores
        )
        status = None
        try:
            status = process.wait(max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        finally:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return status, log.read_text(encoding="utf-8", errors="replace")


def test_counts(text: str) -> dict:
    """Counts and names of failures from what pytest printed."""
    summary = next((line for line in reversed(text.splitlines()) if re.search(r"\bin [\d.]+s", line)), "")
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|deselected|errors?)\b", summary)}
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)$", text, re.MULTILINE)
    return {"counts": counts, "failures": failed, "end": text.splitlines()[-12:]}
