"""A package is not installed: what does without it goes on and answers the same, the rest is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# read by every Python that is started, workers and kernels too
WITHOUT = "import os, sys\nfor name in os.environ['WITHOUT'].split():\n    sys.modules[name] = None\n"
COMMANDS = """
import contextlib, io, json, sys
from gnnlab import cli
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(command)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
DEVICES = ["devices"]
INFER = ["infer", "--device", "cpu", "--batch", "examples/states.jsonl"]
CLUSTER = ["stages", "--measure", "--cluster", "tcp://127.0.0.1:9", "--sizes", "10x20", "--devices", "torch:CPU"]
SERVE = ["serve", "--redis", "redis://127.0.0.1:9/0"]
EXTRAS = "IPython papermill nbformat nbconvert matplotlib pyarrow bleach bs4 openvino onnx onnxruntime onnxscript"
EXTRAS += " msgspec cachetools safetensors fastapi uvicorn redis sqlalchemy prometheus_client pydantic_settings"
SWAP = ["swap", "examples.my_models:make_gat", "--graph", "karate"]
CHECK = ["check", "examples/claims/expand.py", "--processes", "1", "--seconds", "0.1"]
PROFILE = ["profile", "--model", "symptom_gat", "--graph", "symptoms", "--profile", "memory", "--budget", "0.1"]


def commanded(without, commands, folder):
    """Code, output and errors of each command, in one process without these packages, in a repository of its own."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    for name in ("examples", "notebooks", "params"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    path = os.pathsep.join([str(folder), str(ROOT), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, "WITHOUT": without}
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("without", "missing"),
    [("openvino", "openvino:CPU"), ("onnxruntime onnx onnxscript", "onnxruntime:CPU"), ("uvloop", None)],
)
def test_what_does_without_a_package_answers_the_same(without, missing, tmp_path):
    (code, listed, _), answered = commanded(without, [DEVICES, INFER], tmp_path)
    assert code == 0 and answered[0] == 0, answered[2]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in listed.splitlines()]
    usable = {row[0]: row[1] for row in rows if len(row) > 1}
    assert usable["torch:CPU"] == "yes" and (missing is None or usable[missing] == "no")
    whole = commanded("none_of_these", [INFER], tmp_path)[0]
    scores = [[json.loads(line)["score"] for line in each[1].splitlines()] for each in (answered, whole)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_model_is_profiled_and_made_faster_and_a_claim_judged_without_the_extras(tmp_path):
    done = commanded(EXTRAS, [PROFILE, SWAP, CHECK, ["run"], ["stages", "--all"], ["serve"]], tmp_path)
    assert [code for code, *_ in done[:2]] == [0, 0] and done[2][0] in (0, 1, 3), done[:3]
    for (code, _, err), extra in zip(done[3:], ("lab", "export", "serving"), strict=True):
        assert code == 2 and err.endswith(f"which is not installed: pip install 'gnnlab[{extra}]'\n"), err


@pytest.mark.parametrize(
    ("without", "command", "part"),
    [
        ("distributed", CLUSTER, "pip install 'gnnlab[cluster]'"),
        ("uvicorn", SERVE, "package uvicorn, which is not installed"),
        ("torch_geometric", PROFILE, "package torch_geometric, which is not installed"),
    ],
)
def test_what_needs_a_package_says_so_in_one_line(without, command, part, tmp_path):
    ((code, _, err),) = commanded(without, [command], tmp_path)
    lines = [line for line in err.splitlines() if "machine is busy" not in line]
    assert code == 2 and len(lines) == 1 and part in lines[0], err
