"""What the owner of an NPU types, `gnnlab run --params npu`: with a stand-in for the NPU."""

import json
import os
from pathlib import Path

import pytest
import yaml

from gnnlab import cli
from gnnlab.bandwidth import tables
from gnnlab.lab import results

ROOT = Path(__file__).parents[2]
NPU, STAND_IN = "openvino:NPU", "stand_in_npu:make"
SIZES = ["200x400", "200x1600", "400x1600"]
STAGES = {"sizes": SIZES, "features": 64, "budget_s": 0.01}
SMALL = {
    "04": STAGES,
    "05": STAGES,
    "06": {"fit_sizes": ["300x1000"], "test_sizes": 1, "points": 3, "budget_s": 0.01},
    "07": {"sizes": ["200x1600"], "stream_graphs": 2, "max_plans": 1, "budget_s": 0.1, "runtime_size": "250x1200"},
}


@pytest.fixture
def shared(monkeypatch):
    """The stand-in is a module of the user's own, for kernels and workers, too."""
    folder = str(Path(__file__).parents[1] / "shared")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", str(ROOT))]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_an_npu_one_command_exports_measures_predicts_and_plans(tmp_path, shared):
    (tmp_path / "set").mkdir()
    for path in (ROOT / "params" / "npu").glob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8").replace(NPU, STAND_IN))
        values |= SMALL[path.stem[:2]] | {"output_dir": str(tmp_path / "out")}
        (tmp_path / "set" / path.name).write_text(yaml.safe_dump(values))
    assert cli.main(["run", "--params", str(tmp_path / "set")]) == cli.OK
    statuses = {path.parent.parent.name[:2]: results.read(path).status for path in results.paths(tmp_path / "out")}
    assert statuses == dict.fromkeys(("04", "05", "06", "07"), "passed")
    raw = json.loads((tmp_path / "out/stages/raw_measurements.json").read_bytes())["measurements"]
    measured = [key for key, row in raw.items() if row["device"] == STAND_IN and row["status"] == "measured"]
    stages = {key.split(",")[3] for key in measured}
    assert stages == {"1", "2", "3", "4", "5", "6", "7", "1-5", "1-7"}  # those that sum over targets, too
    lookup = json.loads((tmp_path / "out/tables" / tables.LOOKUP).read_bytes())
    processors = [key.split(",")[2] for key in lookup]
    assert set(processors) == {"CPU", "NPU"}
    assert processors.count("NPU") == 7 * (len(SIZES) + 1)  # and the one that notebook 06 adds
