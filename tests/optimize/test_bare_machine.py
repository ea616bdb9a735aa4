"""Workloads, profiling and `optimize` where only torch, PyG and what they bring are installed, as on a rented card."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISSING = (
    "pydantic papermill openvino onnx onnxruntime onnxscript IPython nbformat nbconvert rich yaml pyarrow "
    "msgspec cachetools safetensors fastapi uvicorn redis sqlalchemy prometheus_client pydantic_settings hypothesis"
    " bleach bs4"
)
CODE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))  # importing one of these raises
import json
from gnnlab import profile_forward, profile_memory_usage, profile_operators, profile_training_step, race_variants
from gnnlab.profile import roofline, survey
from gnnlab.optimize import captured, search, written
from gnnlab.training import interactions, loops
from gnnlab.workloads import models, random_graphs

made = models.build("own_models:gin", "random:nodes=60,edges=300,features=8")
few = {"num_runs": 6, "warmup_runs": 0}
seen = {"forward": profile_forward(made.model, made.batch, **few).median}
seen["step"] = profile_training_step(made.model, made.batch, **few).median
seen["peak"] = profile_memory_usage(made.model, **made.batch).rise_mb
seen["operators"] = len(profile_operators(made.model, made.batch, runs=2).frame)
seen["flops"] = roofline.count(made.model, made.batch).flops
seen["phases"] = len(survey.times([made], num_runs=6))
of = ("own_models:gin", "random:nodes=60,edges=300,features=8", False, None)
looked = search.examine(of=of, names=["fast layers", "captured"])
seen["applies"] = [*looked["applicable"]]
seen["captured"] = looked["inapplicable"]["captured"]
seen["why"] = search.attempt(of=of, plan=("fast layers",))["why"]
report = search.optimize("own_models:gin", of[1], seconds=0.1, processes=1, only=["fast layers"])
seen["tried"] = [tried.name for tried in report.tried]
print(json.dumps(seen))
"""


def test_what_measures_and_what_optimizes_needs_none_of_the_extras(tmp_path):
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, MISSING],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert all(seen[name] > 0 for name in ("forward", "step", "peak", "operators", "flops"))
    assert seen["phases"] == 3 and seen["why"] is None
    assert seen["applies"] == seen["tried"] == ["fast layers"]
    assert seen["captured"] == "not here: CUDA graphs need a CUDA device"
