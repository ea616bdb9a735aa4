"""Results hold exactly as long as everything that made them is as it was."""

import json
import subprocess
from pathlib import Path

import nbformat
import pytest
from table_rows import raced

import gnnlab
from gnnlab.lab import freshness, results

SHARED = {"code": {"lab/a.py": "1"}, "versions": {"torch": "2.13"}, "machine": {"cores": 2}}


@pytest.fixture
def made(tmp_path, result_file):
    """A repository with a notebook, a user's files, and the results of a run."""
    folder = tmp_path / "outputs/quick"
    figure = {"name": "a", "title": "t", "alt": "x", "png": "figures/a.png", "svg": "figures/a.svg"}
    results.write(folder / "01_a.json", result_file(notebook="01_a", figures=[figure]), raced({}))
    for name in ("figures/a.png", "figures/a.svg", "01_a.ipynb"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("made")
    (tmp_path / "need.json").write_text("{}")
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
    return freshness.fingerprint(root / "01_a.ipynb", values, [root / "need.json"], shared, root=root, folder=folder)


def why(root, before, now):
    folder = root / "outputs/quick"
    run = freshness.record(results.read(folder / "01_a.json"), folder / "01_a.json", before, 1.0)
    run = freshness.Run.model_validate_json(run.model_dump_json())  # as it comes from the disk
    return freshness.why_again("01_a", folder, run, now)


def test_what_is_as_it_was_holds(made):
    assert why(made, fingerprint(made), fingerprint(made)) is None


def test_prose_is_no_code(made):
    before = fingerprint(made)
    write_notebook(made, prose="better words")
    assert why(made, before, fingerprint(made)) is None


CHANGES = {
    "parameters changed (width)": lambda root: {"width": 9},
    "parameters changed (kinds)": lambda root: {"kinds": ["lap", "rwse"]},
    "code changed (the notebook's code cells)": lambda root: write_notebook(root, code="x = 2") or {},
    "code changed (lab/a.py)": lambda root: {"shared": SHARED | {"code": {"lab/a.py": "2"}}},
    "code changed (lab/b.py)": lambda root: {"shared": SHARED | {"code": {"lab/a.py": "1", "lab/b.py": "1"}}},
    "inputs changed (graph.npz)": lambda root: (root / "graph.npz").write_text("other") and {},
    "inputs changed (mine/models.py)": lambda root: (root / "mine/models.py").write_text("other") and {},
    "inputs changed (need.json)": lambda root: (root / "need.json").write_text("[]") and {},
    "versions changed (torch)": lambda root: {"shared": SHARED | {"versions": {"torch": "2.14"}}},
    "machine changed (accelerators)": lambda root: {"shared": SHARED | {"machine": {"cores": 2, "accelerators": []}}},
    "code changed (lab/a.py); machine changed (cores)": lambda root: {
        "shared": SHARED | {"code": {"lab/a.py": "2"}, "machine": {"cores": 3}}
    },
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


@pytest.mark.parametrize("lost", ["01_a.ipynb", "01_a.samples.parquet", "figures/a.png", "figures/a.svg"])
def test_a_missing_output_is_made_again(made, lost):
    (made / "outputs/quick" / lost).unlink()
    assert why(made, fingerprint(made), fingerprint(made)) == f"{lost} is missing"


def test_samples_that_are_not_those_of_the_result_are_made_again(made):
    (made / "outputs/quick/01_a.samples.parquet").write_bytes(b"others")
    told = "01_a.samples.parquet is not the one that 01_a.json names"
    assert why(made, fingerprint(made), fingerprint(made)) == told


def test_a_result_that_someone_changed_is_made_again(made, result_file):
    folder, now = made / "outputs/quick", fingerprint(made)
    run = freshness.record(results.read(folder / "01_a.json"), folder / "01_a.json", now, 1.0)
    results.write(folder / "01_a.json", result_file(notebook="01_a", seconds=9))
    assert freshness.why_again("01_a", folder, run, now) == "01_a.json is not as the run left it"
    (folder / "01_a.json").unlink()
    assert freshness.why_again("01_a", folder, run, now) == "01_a.json is missing"


def test_files_among_the_results_are_no_inputs(made):
    parameters = {"graph": "outputs/quick/01_a.json", "model": "no.such:module"}
    assert list(fingerprint(made, **parameters)["inputs"]) == ["need.json"]


@pytest.mark.parametrize(
    "value", ["", ".", "x" * 5000, "~nobody/x", "a:b", "digits", "C:\\x", "random:nodes=5,edges=2"]
)
def test_a_value_that_names_no_file_is_no_input(made, value):
    assert list(fingerprint(made, graph=value, model="")["inputs"]) == ["need.json"]


# ---- the record


def test_the_record_is_read_back(made):
    folder = made / "outputs/quick"
    run = freshness.record(results.read(folder / "01_a.json"), folder / "01_a.json", fingerprint(made), 1.0)
    freshness.write_runs(folder, freshness.Runs(runs={"01_a": run}))
    assert freshness.read_runs(folder) == (freshness.Runs(runs={"01_a": run}), None)
    assert freshness.read_runs(made) == (freshness.Runs(), None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\x00", b'{"schema_version": []}', b'{"runs": {"01": {}}}'])
def test_a_damaged_record_is_set_aside_and_never_deleted(tmp_path, content):
    for number in (1, 2):
        (tmp_path / "runs.json").write_bytes(content)
        runs, message = freshness.read_runs(tmp_path)
        assert runs == freshness.Runs() and f"set aside as runs.json.damaged-{number}" in message
        assert len(message.splitlines()) == 1
        assert (tmp_path / f"runs.json.damaged-{number}").read_bytes() == content


@pytest.mark.parametrize("schema", [1, 3])
def test_a_record_of_another_version_is_not_called_damaged(tmp_path, schema):
    (tmp_path / "runs.json").write_text(f'{{"schema_version": {schema}, "runs": {{"01_a": {{"files": []}}}}}}')
    runs, message = freshness.read_runs(tmp_path)
    assert runs == freshness.Runs() and (tmp_path / "runs.json.other-1").exists()
    assert f"was written by another version of gnnlab (schema {schema}, this one is 2)" in message
    assert "damaged" not in message and len(message.splitlines()) == 1


# ---- what surrounds a run


def test_code_is_every_module_and_data_file_but_what_renders(tmp_path, monkeypatch):
    for name in ("a.py", "lab/b.py", "lab/claims.yaml", "lab/templates/page.j2", "__pycache__/a.pyc", ".hidden/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(gnnlab, "__file__", str(tmp_path / "__init__.py"))
    before = freshness.package_code()
    assert list(before) == ["a.py", "lab/b.py", "lab/claims.yaml"]
    (tmp_path / "a.py").write_text("changed")
    assert freshness.package_code()["a.py"] != before["a.py"]


def test_versions_are_those_of_what_the_package_requires():
    versions = freshness.versions()
    assert {"python", "torch", "torch-geometric", "numpy"} <= set(versions)
    assert "pytest" not in versions and "ruff" not in versions


def test_versions_without_an_installed_package_are_those_that_matter_most(monkeypatch):
    def missing(name):
        raise freshness.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(freshness.importlib.metadata, "requires", missing)
    assert {"python", "torch", "numpy"} <= set(freshness.versions())


def test_the_machine_is_known_without_a_framework():
    machine = freshness.this_machine()
    assert machine["processor"] and machine["cores"] >= 1
    assert json.loads(json.dumps(machine)) == machine


def test_a_gpu_that_appears_is_another_machine(monkeypatch):
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g: x\n"
    monkeypatch.setattr(freshness.shutil, "which", lambda tool: "nvidia-smi")
    monkeypatch.setattr(freshness.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, listed))
    assert freshness.this_machine()["accelerators"][0] == "GPU 0: NVIDIA H200 (UUID: GPU-1)"


def test_a_driver_that_does_not_answer_is_no_error(monkeypatch):
    def hangs(*arguments, **options):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr(freshness.shutil, "which", lambda tool: "nvidia-smi")
    monkeypatch.setattr(freshness.subprocess, "run", hangs)
    assert all(Path(found).exists() for found in freshness.this_machine()["accelerators"])
