"""Every notebook runs from top to bottom with small parameters, and what must not change does not change.

nbval runs a copy with the parameters put in; of its cells those tagged `nbval-check-output` are compared. How wide an
interval is, nobody asks here: parameters are those of `params/quick`, made smaller where all code still runs.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import papermill
import pytest
import run_folders

from examples.alternatives import WHOLE
from gnnlab.lab import claims, claims_report, discovery, results

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
FAST = {"budget_s": 0.01}
DEVICES = ["openvino:CPU", "openvino-handbuilt:CPU", "onnxruntime:CPU", "torch:CPU", "fast:CPU", "openvino:NPU"]
STAGES = {"features": 64, "sizes": ["200x500", "300x2000"]}  # of notebooks 04 to 06, which read each other's
SMALL = {  # beside the quick parameters, by number; variants that claims name stay
    "01": {"graphs": ["symptoms"], "nodes": [20, 40, 80, 160], **FAST},
    "02": {
        "sizes": ["200x1000"],
        "gat_sizes": ["58x776"],
        "graphs": ["random:nodes=200,edges=2000,features=16"],
        **FAST,
    },
    "03": {"table": "synthetic:2000", "epochs": 1, **FAST},
    "04": STAGES | FAST,
    "05": {"devices": DEVICES, **STAGES, **FAST},
    "06": {"fit_sizes": ["250x1000"], "test_sizes": 1, "points": 2, **FAST},
    "07": {"sizes": ["250x1100"], "stream_graphs": 2, "max_plans": 1, "budget_s": 0.1, "runtime_size": "250x1050"},
    # a goal is for batches of 1024, and the contract names what is not judged
    "08": {"sizes": [10], "states": 20, "batch_sizes": [1024], **FAST},
    "09": {"models": ["examples.my_models:make_gat"], "graphs": ["karate"], "accuracy": 0.5, **FAST},
    "10": {"shares": [0.3, 0.8], "run_s": 0.05, **FAST},
}
# variants that compute something else, or do not run
FAIL = {"torchscript", "padded, edges at node 0", "ONNX, TorchScript"}
FAIL |= {f"onnx-legacy, index_add: {runtime}" for runtime in ("ONNX Runtime", "OpenVINO")}
FULL_ONLY = {"torch.compile", *(f"PyG, {name}" for name in WHOLE["alternatives"])}  # of what claims name
CHAIN = ("04", "05", "06", "07")  # each reads what the one before wrote; that takes longest, and is begun first
RUN = [
    pytest.param(path, id=path.stem) for path in sorted(NOTEBOOKS, key=lambda path: (path.stem[:2] not in CHAIN, path))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where copies of all notebooks lie, and in `out` what they write: a notebook reads what others wrote."""
    return tmp_path_factory.mktemp("notebooks")


def prepared(notebook, folder):
    """A copy with small parameters, whose outputs go to `folder/out`."""
    values = discovery.read_parameters(
        ROOT / f"params/quick/{notebook.stem}.yaml", discovery.declared(notebook)
    ) | SMALL.get(notebook.stem[:2], {})
    values["output_dir"] = str(folder / "out")
    copy = folder / notebook.name
    papermill.execute_notebook(notebook, copy, values, prepare_only=True, progress_bar=False)
    return copy


def nbval(notebook):
    """A pytest of its own, without what it would load and not use: other plugins, and a grammar (see conftest.py)."""
    started = "import sys; sys.modules['rfc3987_syntax'] = None; import pytest; sys.exit(pytest.main())"
    command = [sys.executable, "-c", started, "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=300", "-q"]
    command += ["-p", "nbval.plugin", "-p", "no:cacheprovider", "-o", "filterwarnings=", "-o", "addopts="]
    environment = os.environ | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([*command, str(notebook)], cwd=ROOT, capture_output=True, text=True, env=environment)


def run(notebook, folder):
    """Run a notebook, after those that it needs; the one that has run is not run again."""
    if not results.paths(folder / "out", notebook.stem):
        needs = discovery.about(notebook).get("needs", [])
        for needed in discovery.notebooks(ROOT, needs) if needs else []:
            run(needed, folder)
        done = nbval(prepared(notebook, folder))
        assert done.returncode == 0, done.stdout[-4000:]
    return results.read(run_folders.newest(folder / "out", notebook.stem))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", RUN)
def test_a_notebook_runs_and_keeps_what_must_not_change(notebook, folder):
    result = run(notebook, folder)
    assert result.status == "passed" and result.rows and result.figures
    for figure in result.figures:
        assert (run_folders.newest(folder / "out", notebook.stem).parent / figure.png).stat().st_size > 1000
        assert figure.alt and figure.title


@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", RUN)
def test_every_row_of_a_notebook_says_what_it_is_and_follows_from_its_samples(notebook, folder):
    """Read as JSON, not through the model that wrote it."""
    result = run(notebook, folder)
    rows = json.loads(run_folders.newest(folder / "out", notebook.stem).read_text(encoding="utf-8"))["rows"]
    for row in rows:
        assert row["origin"] and row["better"] in ("lower", "higher", "neither") and row["unit"], row
        assert re.match(r"(CPU|CUDA|GPU|NPU)\b", row["device"]) or row["origin"] in ("simulated", "counted"), row
        assert row["precision"] and row["threads"] >= 0, row
        if row["status"] != "ok":
            assert row["reason"] and row["value"] is None and row["n"] == 0, row
            continue
        assert row["n"] >= 1 and isinstance(row["value"], float), row
        if row["interval"] != "none":
            assert row["low"] <= row["value"] <= row["high"], row
        assert (row["interval"] == "exact") <= (row["origin"] != "measured"), row
        if row["origin"] == "measured" and row["interval"] == "95 % confidence":
            assert row["n"] >= 2, row
    table = results.table_of(run_folders.newest(folder / "out", notebook.stem), result)
    assert [line for row in table for line in claims_report.differences(row, table)] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", RUN)
def test_what_fails_in_a_notebook_is_known_not_to_work_and_all_else_computes_the_same(notebook, folder):
    rows = run(notebook, folder).rows
    assert not {row.label: row.reason for row in rows if row.status == "failed" and row.variant not in FAIL}
    equal = [row for row in rows if row.status == "ok" and row.precision == "float32" and row.variant != "pruned 30 %"]
    assert max((row.parity_error for row in equal if row.parity_error is not None), default=0.0) <= 1e-4
    assert min((row.value for row in equal if row.study == "decisions_kept"), default=1.0) > 0.999


@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", RUN)
def test_every_claim_of_a_notebook_is_judged_from_its_rows(notebook, folder):
    result = run(notebook, folder)
    table = results.table_of(run_folders.newest(folder / "out", notebook.stem), result)
    judged = {row.id: row for row in claims_report.judge_runs([(result, table)])}
    known = {id: claim for id, claim in claims.catalogue().items() if claim.notebook == notebook.stem[:2]}
    assert set(judged) == set(known)
    studies = {row.study for row in table}
    for id, claim in known.items():
        assert judged[id].why and "\n" not in judged[id].why
        if claim.of.study in studies and not claim.needs:
            variants = {row.variant for row in table if row.study == claim.of.study} | FULL_ONLY
            named = [claim.of.over, claim.of.equals or ()]
            assert not {name for names in named for name in names} - variants, f"{id}: no such variant"
            assert not claim.of.variant or variants & {*claim.of.variant}, f"{id}: no such variant"
        elif claim.of.stat != "same verdict":
            assert claim.needs or claim.of.cells > 1, f"{id} rests on {claim.of.study}, which nothing records"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_keeps_an_output_to_compare_and_no_other(notebook):
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell.get("outputs")]
    assert cells and all({"keep_output", "nbval-check-output"} <= set(cell["metadata"]["tags"]) for cell in cells)


@pytest.mark.timeout(900)
def test_training_to_equal_accuracy_has_a_time_of_every_variant_over_six_seeds(folder):
    (notebook,) = [path for path in NOTEBOOKS if path.stem.startswith("09")]
    rows = {row.variant: row for row in run(notebook, folder).rows if row.study == "training"}
    whole = ["full batch", "full batch, gnnlab", "full batch, bfloat16", "full batch, torch.compile"]
    assert rows.keys() == {*whole, "mini-batches", "mini-batches, gnnlab", "A/A"}
    for row in rows.values():
        assert row.n == 6 if row.status == "ok" else "not every seed reaches" in row.reason


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a CUDA device here")
def test_by_papermill_alone_and_without_its_device_a_notebook_is_skipped_with_the_reason(tmp_path):
    notebook, out = ROOT / "notebooks/01_profile_bottlenecks.ipynb", tmp_path / "out"
    values = {"device": "cuda", "output_dir": str(out)}
    papermill.execute_notebook(notebook, tmp_path / "out.ipynb", values, progress_bar=False, cwd=str(ROOT))
    result = results.read(run_folders.newest(out, notebook.stem))
    assert (result.status, result.rows) == ("skipped", []) and "no CUDA device here" in result.reason


def test_the_notebook_to_start_with_runs_and_names_every_other(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "notebooks")
    cells = json.loads(Path("start.ipynb").read_text(encoding="utf-8"))["cells"]
    words = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    assert re.findall(r"[(](\d\d_\w+)[.]ipynb[)]", words) == [path.stem for path in NOTEBOOKS]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert said.startswith("random:nodes=5000") and said.endswith(f"\n{names['report']}\n") and "GATConv" in said
