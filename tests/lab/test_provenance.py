"""Where a number comes from is known; results hold exactly as long as everything that made them is as it was."""

import json
import platform
import subprocess
import sys

import nbformat
import pytest
import run_folders
from table_rows import raced

import gnnlab
from gnnlab import machine
from gnnlab.lab import provenance, results, runs

SHARED = {"code": {"lab/a.py": "1"}, "versions": {"torch": "2.13"}, "machine": {"cores": 2}}


@pytest.fixture
def made(tmp_path, result_file):
    """A repository with a notebook, a user's files, and the results of a run."""
    folder = tmp_path / "outputs/quick"
    figure = {"name": "a", "title": "t", "alt": "x", "png": "figures/a.png", "svg": "figures/a.svg"}
    run_folders.put(folder, result_file(notebook="01_a", figures=[figure]), raced({}))
    for path in (folder / "01_a/1/figures/a.png", folder / "01_a/1/notebook.ipynb", tmp_path / "00_need/1/result.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("made")
    (tmp_path / "graph.npz").write_text("graph")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/models.py").write_text("def make(): ...")
    write_notebook(tmp_path)
    return tmp_path


def write_notebook(root, code="x = 1", prose="words"):
    cells = [nbformat.v4.new_markdown_cell(prose), nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), root / "01_a.ipynb")


def fingerprint(root, shared=SHARED, **parameters):
    values = {"width": 8, "graph": "graph.npz", "model": "mine.models:make", "kinds": ["lap"]} | parameters
    folder = root / "outputs/quick"
    return provenance.fingerprint(
        root / "01_a.ipynb", values, [root / "00_need/1/result.json"], shared, here=root, folder=folder
    )


def why(root, before, now):
    folder = root / "outputs/quick"
    path = folder / "01_a/1/result.json"
    results.write(path, results.read(path).model_copy(update={"fingerprint": before}))
    return runs.why_again(path, results.read(path), now)


def test_what_is_as_it_was_holds_whatever_is_said_of_it(made):
    before = fingerprint(made)
    assert why(made, before, fingerprint(made)) is None
    write_notebook(made, prose="better words")
    assert why(made, before, fingerprint(made)) is None


CHANGES = {
    "parameters changed (width)": lambda root: {"width": 9},
    "code changed (the notebook's code cells)": lambda root: write_notebook(root, code="x = 2") or {},
    "code changed (lab/a.py)": lambda root: {"shared": SHARED | {"code": {"lab/a.py": "2"}}},
    "inputs changed (graph.npz)": lambda root: (root / "graph.npz").write_text("other") and {},
    "inputs changed (mine/models.py)": lambda root: (root / "mine/models.py").write_text("other") and {},
    "inputs changed (00_need)": lambda root: (root / "00_need/1/result.json").write_text("[]") and {},
    "versions changed (torch)": lambda root: {"shared": SHARED | {"versions": {"torch": "2.14"}}},
    "machine changed (accelerators)": lambda root: {"shared": SHARED | {"machine": {"cores": 2, "accelerators": []}}},
    "code changed (0.py, 1.py and 4 more)": lambda root: {
        "shared": SHARED | {"code": {"lab/a.py": "1"} | {f"{i}.py": "1" for i in range(6)}}
    },
}


@pytest.mark.parametrize("clause", CHANGES)
def test_each_change_is_seen_and_named(made, clause):
    before = fingerprint(made)
    changed = CHANGES[clause](made)
    if isinstance(changed, int):  # what write_text returns
        changed = {}
    assert why(made, before, fingerprint(made, **changed)) == clause


@pytest.mark.parametrize("lost", ["notebook.ipynb", "samples.parquet"])
def test_an_output_that_is_missing_is_made_again(made, lost):
    (made / "outputs/quick/01_a/1" / lost).unlink()
    assert why(made, fingerprint(made), fingerprint(made)) == f"{lost} is missing"


def test_a_result_that_gnnlab_run_did_not_make_is_made_again(made):
    assert why(made, {"run": {"id": "a"}}, fingerprint(made)) == "its last run was not by gnnlab run"


def test_files_among_the_results_are_no_inputs(made):
    parameters = {"graph": "outputs/quick/01_a/1/result.json", "model": "no.such:module"}
    assert list(fingerprint(made, **parameters)["inputs"]) == ["00_need"]


@pytest.mark.parametrize(
    "value", ["", ".", "x" * 5000, "~nobody/x", "a:b", "digits", "C:\\x", "random:nodes=5,edges=2"]
)
def test_a_value_that_names_no_file_is_no_input(made, value):
    assert list(fingerprint(made, graph=value, model="")["inputs"]) == ["00_need"]


# ---- what surrounds a run


def test_code_is_every_module_and_data_file_but_what_renders(tmp_path, monkeypatch):
    for name in ("a.py", "lab/b.py", "lab/claims.yaml", "lab/templates/page.j2", "__pycache__/a.pyc", ".hidden/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(gnnlab, "__file__", str(tmp_path / "__init__.py"))
    before = provenance.package_code()
    assert list(before) == ["a.py", "lab/b.py", "lab/claims.yaml"]
    (tmp_path / "a.py").write_text("changed")
    assert provenance.package_code()["a.py"] != before["a.py"]


def test_versions_are_those_of_what_the_package_requires():
    versions = provenance.versions()
    assert {"python", "torch", "torch-geometric", "numpy"} <= set(versions)
    assert "pytest" not in versions and "ruff" not in versions


def test_the_machine_is_known_without_a_framework():
    machine = provenance.this_machine()
    assert machine["processor"] and machine["cores"] >= 1
    assert json.loads(json.dumps(machine)) == machine


# ---- the environment of a run


def test_the_environment_says_what_matters_and_is_json():
    found = provenance.collect()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["cpu"]["logical"] >= 1 and found["memory_gb"] > 0 and found["threads"] >= 1
    assert found["versions"]["torch"].startswith("2.") and len(found["load"]) == 3
    assert found["devices"][0]["kind"] == "CPU" and found["devices"][0]["name"] == machine.processor()


def test_collecting_does_not_load_openvino_where_it_is_not_needed():
    """The runner's parent process asks for versions only."""
    code = "import sys; from gnnlab.lab import provenance; provenance.system(); print('openvino' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_name_of_the_machine_is_left_out_unless_it_is_asked_for(monkeypatch):
    assert platform.node() not in json.dumps(provenance.system() | {"os": None}) or not platform.node()
    assert provenance.system()["host"] is None
    monkeypatch.setenv("GNNLAB_HOST", "bench 7")
    assert provenance.system()["host"] == "bench 7"
