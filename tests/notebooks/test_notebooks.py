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

from gnnlab.lab import claims, claims_report, discovery, results

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
FAST = {"budget_s": 0.01}
DEVICES = ["openvino:CPU", "openvino-handbuilt:CPU", "onnxruntime:CPU", "torch:CPU", "fast:CPU", "openvino:NPU"]
STAGES = {"features": 64, "sizes": ["200x500", "300x2000"]}  # of notebooks 04 to 06, which read each other's
SMALL = {  # beside the quick parameters, by number; variants that claims name stay
    "01": {"graphs": ["symptoms"], "nodes": [20, 40, 80, 160], **FAST},
    "02": {"sizes": ["200x1000"], "gat_sizes": ["58x776"], "graph": "random:nodes=200,edges=2000,features=16", **FAST},
    "03": {"table": "synthetic:2000", "epochs": 1, **FAST},
    "04": STAGES | FAST,
    "05": {"devices": DEVICES, **STAGES, **FAST},
    "06": {"fit_sizes": ["250x1000"], "test_sizes": 1, "points": 2, **FAST},
    "07": {"sizes": ["250x1100"], "stream_graphs": 2, "max_plans": 1, "budget_s": 0.1, "runtime_size": "250x1050"},
    # a goal is for batches of 1024, and the contract names what is not judged
    "08": {"sizes": [10], "states": 20, "batch_sizes": [1024], **FAST},
    "09": {"models": ["my_models:make_gat"], "graph": "karate", "accuracy": 0.5, **FAST},
    "10": {"shares": [0.3, 0.8], "run_s": 0.05, **FAST},
}
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
def test_every_claim_of_a_notebook_is_judged_from_its_rows(notebook, folder):
    result = run(notebook, folder)
    table = results.table_of(run_folders.newest(folder / "out", notebook.stem), result)
    judged = {row.id: row for row in claims_report.judge_runs([(result, table)])}
    known = {id: claim for id, claim in claims.catalogue().items() if claim.notebook == notebook.stem[:2]}
    assert set(judged) == set(known)
    studies = {row.study for row in table}
    for id, claim in known.items():
        needs_more = claim.needs or claim.of.stat == "same verdict" or claim.of.cells > 1
        assert claim.of.study in studies or needs_more, f"{id} rests on {claim.of.study}, which nothing records"
        assert judged[id].why and "\n" not in judged[id].why
        if claim.of.study in studies and not claim.needs:
            variants = {row.variant for row in table if row.study == claim.of.study}
            assert not unwritten(claim.of, variants, only_full(notebook.stem, result.parameters)), (
                f"{id}: no such variant"
            )


def unwritten(rule, variants, elsewhere=frozenset()):
    """The variants that a rule names and no row of its study has, but for those named by a word of `elsewhere`."""
    named = {
        variant for some in (rule.variant, rule.over) for variant in ([some] if isinstance(some, str) else some or ())
    }
    return {
        variant for variant in (named | set(rule.equals or ())) - variants if not set(variant.split(", ")) & elsewhere
    }


def only_full(notebook, quick):
    """What the lists of the parameters of full runs name beyond those of quick ones."""
    schema = discovery.declared(ROOT / f"notebooks/{notebook}.ipynb")
    full = discovery.read_parameters(ROOT / f"params/full/{notebook}.yaml", schema)
    lists = [(values, quick.get(name, values)) for name, values in full.items() if isinstance(values, list)]
    return {str(value) for values, fewer in lists for value in values if str(value) not in map(str, fewer)}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_keeps_an_output_to_compare_and_no_other(notebook):
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell.get("outputs")]
    assert cells and all({"keep_output", "nbval-check-output"} <= set(cell["metadata"]["tags"]) for cell in cells)


@pytest.mark.timeout(900)
def test_training_to_equal_accuracy_has_a_time_and_an_accuracy_of_every_variant_or_says_why_not(folder):
    (notebook,) = [path for path in NOTEBOOKS if path.stem.startswith("09")]
    rows = {(row.study, row.variant): row for row in run(notebook, folder).rows}
    variants = [f"full batch{more}" for more in ("", ", gnnlab", ", bfloat16", ", torch.compile")]
    for variant in ("A/A", "mini-batches", "mini-batches, gnnlab", *variants):
        row = rows["training", variant]
        if row.status == "ok":
            assert row.n == rows["training_accuracy", variant].n == 6 and (variant == "full batch" or row.ratio)
        else:
            assert "not every seed reaches" in row.reason


def executed(folder, **values):
    """Notebook 01 by papermill alone, without the runner."""
    values["output_dir"] = str(folder / "out")
    notebook = ROOT / "notebooks" / "01_profile_bottlenecks.ipynb"
    papermill.execute_notebook(notebook, folder / "out.ipynb", values, progress_bar=False, cwd=str(ROOT))


def test_a_bad_parameter_stops_papermill_alone_in_one_line_before_anything_is_measured(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError) as error:
        executed(tmp_path, no_such_parameter=1)
    assert error.value.ename == "GnnlabError" and "no_such_parameter" in error.value.evalue
    assert "\n" not in error.value.evalue and not (tmp_path / "out").exists()


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a CUDA device here")
def test_without_its_device_the_notebook_is_skipped_with_the_reason(tmp_path):
    executed(tmp_path, device="cuda")
    result = results.read(run_folders.newest(tmp_path / "out", "01_profile_bottlenecks"))
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
