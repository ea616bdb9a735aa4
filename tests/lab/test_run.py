"""What runs, what stays and what is printed, on a repository of three notebooks."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import nbformat
import papermill
import psutil
import pytest
import small_notebooks
from refusals import refused

from gnnlab import files
from gnnlab.lab import results
from gnnlab.lab import run as runs
from gnnlab.lab.results import Status

NEEDS = "it needs notebook {0}, which has not passed: gnnlab run {0} --params quick"
FIRST, SECOND, THIRD = NAMES = ("01_profile_bottlenecks", "02_optimize_gnn", "03_fm_amp_training")
PARAMETERS = """\
mode: str = "pass"                  # what happens; pass|abort|slow
width: int = 8                      # channels; 1..64
output_dir: str = "outputs/quick"   # where results go"""

BODY = """\
import os, sys, time, uuid
from pathlib import Path
from gnnlab.lab import results, table
holds = False
try: assert width < 0
except AssertionError: holds = True
print("one", holds, flush=True); print("aside", file=sys.stderr, flush=True)
print(sys.executable, os.environ["IPYTHONDIR"])
Path(output_dir, "kernel.pid").write_text(str(os.getpid()))
def finish(status="passed", reason=None):
    result = results.ResultFile(
        run=uuid.uuid4().hex, notebook=NAME, status=status, reason=reason, params_set="quick", environment={},
        parameters=dict(mode=mode, width=width, output_dir=output_dir), seconds=0, started="2026-01-02T03:04:05",
    )
    rows, pid = table.Table(), os.getpid()
    row = table.row(
        study="kernel", variant="pid", value=pid, n=1, unit="count", better="neither", origin="measured", threads=1,
        statistic="single", interval="none", device="CPU", runtime="python", precision="none",
    )
    rows.put(row, [pid])
    results.write(Path(os.environ["GNNLAB_RUN"], "result.json"), result, rows)
match mode:
    case "abort": os.write(2, b"bad_alloc\\n"); time.sleep(0.5); os.abort()
    case "slow": time.sleep(600)
    case "pass": finish(*LAST)"""


def write_notebook(path, last=("passed",), **about):
    kernel = {"name": "mine", "display_name": "M", "language": "python"}
    body = f"NAME, LAST = {path.stem!r}, {last!r}\n{BODY}"
    small_notebooks.write(path, PARAMETERS, "# The answer\nin words", body, kernel=kernel, **about)


def make_repository(root):
    write_notebook(root / f"notebooks/{FIRST}.ipynb")
    write_notebook(root / f"notebooks/{SECOND}.ipynb", ("skipped", "no GPU here"), needs=["01"])
    write_notebook(root / f"notebooks/{THIRD}.ipynb", needs=["01", "02"])
    for name in NAMES:
        for set_ in ("quick", "npu"):
            (root / "params" / set_).mkdir(parents=True, exist_ok=True)
            (root / f"params/{set_}/{name}.yaml").write_text('width: "10"\n')
    (root / f"params/npu/{FIRST}.yaml").unlink()
    return root


@pytest.fixture(autouse=True, scope="module")
def sites():
    """The sites that would be built."""
    built = []
    site = types.SimpleNamespace(build_site=lambda folder, *_: built.append(folder) or folder / "index.html")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "gnnlab.lab.report", site)
        yield built


@pytest.fixture
def without_kernels(monkeypatch):
    """Notebooks "run" in this process: each leaves the result before it as another run, until `.fail` is a reason."""
    made = types.SimpleNamespace(runs=0, fail=None)

    def execute(path, output, parameters, *_):
        shutil.copy(path, output)
        if made.fail:
            return Status.FAILED, made.fail
        made.runs += 1
        if before := results.newest(output.parents[1], path.stem)[0]:
            result = results.read(before).model_copy(update={"run": f"run {made.runs}", "parameters": parameters})
            results.write(output.with_name(before.name), result, results.table_of(before, result))
        return Status.PASSED, None

    monkeypatch.setattr(runs, "execute", execute)
    return made


def start(repository, *numbers, **options):
    """Run, and return how each ended by number and what was printed, with T for times."""
    with contextlib.chdir(repository), contextlib.redirect_stdout(io.StringIO()) as printed:
        statuses = runs.run(numbers, **options)
    return statuses, re.sub(r"[\d.]+ s\b", "T", printed.getvalue())


@pytest.fixture(scope="module")
def ran(tmp_path_factory, sites):
    """A repository after its first run: 01 passed, 02 skipped itself, 03 could not start for it."""
    repository = make_repository(tmp_path_factory.mktemp("a{b}"))  # braces in a path are only braces
    users = tmp_path_factory.mktemp("user")  # a kernel that does not start, a startup file that raises
    for name, content in (("kernels/python3/kernel.json", "{"), ("profile_default/startup/a.py", "print('mine')")):
        (users / name).parent.mkdir(parents=True)
        (users / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("JUPYTER_DATA_DIR", users), ("IPYTHONDIR", users), ("PYTHONOPTIMIZE", 1)):
            patch.setenv(name, str(value))
        return repository, *start(repository)


@pytest.fixture
def repository(ran, tmp_path):
    """A copy of its own of the repository after the first run."""
    return shutil.copytree(ran[0], tmp_path / "repository")


def contents(folder):
    files_ = (path for path in folder.rglob("*") if path.is_file() and path.name not in (files.LOCK, results.MARK))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_}


# ---- the first run, and again


def test_what_passes_or_skips_itself_leaves_results_and_a_line_at_the_start_and_at_the_end(ran):
    repository, statuses, printed = ran
    folder = repository / "outputs/quick"
    assert statuses == {"01": "passed", "02": "skipped", "03": "skipped"}
    kinds = ("notebook.ipynb", "result.json", "samples.parquet")
    assert set(contents(folder)) == {f"{name}/0001/{k}" for name in (FIRST, SECOND) for k in kinds} | {"kernel.pid"}
    assert printed.splitlines() == [
        "01_profile_bottlenecks  running",
        "01_profile_bottlenecks  passed   T",
        "02_optimize_gnn         running",
        "02_optimize_gnn         skipped  T  no GPU here",
        f"03_fm_amp_training      skipped  {NEEDS.format('02')}",
        f"report: {folder}/index.html",
    ]
    notebook = nbformat.read(folder / FIRST / "0001/notebook.ipynb", as_version=4)
    streams = [output.text for cell in notebook.cells for output in cell.get("outputs", [])]
    # a kernel of this interpreter, with none of the user's kernels and startup files, in which asserts hold
    assert streams[0].startswith(f"one True\n{sys.executable} ") and streams[1:] == ["aside\n"]
    result = results.read(folder / FIRST / "0001/result.json")
    assert result.parameters["width"] == 10 and result.made_from


def test_a_notebook_runs_whenever_it_is_asked_for_and_missing_runs_what_has_not_passed_with_these_parameters(
    repository, without_kernels, sites
):
    sites.clear()
    _, printed = start(repository, "01", runs=2)
    assert "01_profile_bottlenecks  running  run 1 of 2\n" in printed and "running  run 2 of 2\n" in printed
    assert results.newest(repository / "outputs/quick", FIRST)[0].parent.name == "0003"
    assert len(sites) == 2  # the page of the notebook, then the whole
    before = contents(repository)
    statuses, printed = start(repository, "01", missing=True)
    assert statuses == {"01": "passed"} and f"passed   not missing: {FIRST}/0003" in printed
    assert contents(repository) == before
    assert "not missing" not in start(repository, "01", missing=True, overrides=[("width", "11")])[1]
    _, printed = start(repository, "01", missing=True)  # with the first parameters, however many others there are
    assert "not missing" in printed
    statuses, printed = start(repository, "02", runs=3)  # which skips itself
    assert statuses == {"02": "skipped"} and printed.count("02_optimize_gnn         running") == 1


def test_runs_of_other_code_or_input_files_are_not_pooled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook, values = tmp_path / "a.ipynb", {"graph": "graph.npz", "models": ["mine:make", "x" * 5000, "~nobody"]}
    seen = set()
    for name in ("a.ipynb", "graph.npz", "mine.py"):
        for content in ("1", "2"):
            notebook.touch()
            (tmp_path / name).write_text(content)
            seen.add(runs.made_from(notebook, values))
            assert runs.made_from(notebook, values) in seen
    assert len(seen) == 6


# ---- failures


def test_a_failure_leaves_earlier_results_and_stands_beside_them_until_it_passes(repository, without_kernels):
    without_kernels.fail = "no luck"
    folder = repository / "outputs/quick"
    before = contents(folder)
    statuses, printed = start(repository, "01", "02", runs=2)
    assert statuses == {"01": "failed", "02": "skipped"} and NEEDS.format("01") in printed
    assert "01_profile_bottlenecks  failed   T  no luck" in printed and "run 2 of 2" not in printed
    result = results.read(results.newest(folder, FIRST)[1])
    assert (result.status, result.reason) == ("failed", "no luck")
    assert contents(folder).items() >= before.items() and len(results.runs_of(folder)[0][FIRST]) == 1

    without_kernels.fail = None
    assert start(repository, "01")[0] == {"01": "passed"} and results.newest(folder, FIRST)[1] is None
    shutil.rmtree(folder / FIRST)
    assert "it ended without writing result.json; its last cell has to call finish" in start(repository, "01")[1]


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [
        ("abort", "failed", r"the kernel died: .* memory \([\d.]+ GiB were free at .*; it last said: bad_alloc$"),
        ("slow", "timeout", r"not done after 1\.2 s; the executed notebook shows"),  # one limit for all its cells
    ],
)
def test_every_failure_has_a_reason_of_one_line(repository, mode, status, reason):
    if mode == "slow":
        write_notebook(repository / f"notebooks/{FIRST}.ipynb", timeout_minutes=0.02)
    assert start(repository, "01", overrides=[("mode", mode)])[0] == {"01": status}
    result = results.read(results.newest(repository / "outputs/quick", FIRST)[1])
    assert (result.status, result.parameters["mode"]) == (status, mode)
    assert re.match(reason, result.reason) and "\n" not in result.reason


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (("GnnlabError", "no edges in x.npz"), "no edges in x.npz"),
        (("StopIteration", ""), "cell [2]: StopIteration:"),
        (("RuntimeError", "mat1\n  and mat2"), "cell [2]: RuntimeError: mat1 and mat2"),
    ],
)
def test_an_error_of_a_cell_is_named_with_its_cell_and_one_of_ours_speaks_for_itself(
    tmp_path, monkeypatch, raised, reason
):
    def execute_notebook(*_, **__):
        raise papermill.PapermillExecutionError(1, 2, "source", *raised, [])

    monkeypatch.setattr(papermill, "execute_notebook", execute_notebook)
    assert runs.execute(tmp_path / "a", tmp_path / "b", {}, 1, tmp_path) == ("failed", reason)


@pytest.fixture
def slow_run(repository):
    """Another process that runs notebook 01, which sleeps, and the process of its kernel."""
    pid = repository / "outputs/quick/kernel.pid"
    pid.unlink()
    command = [sys.executable, "-m", "gnnlab", "run", "01", "-p", "mode", "slow"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=repository, **pipes)
    try:
        limit = time.monotonic() + 200
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None and time.monotonic() < limit, process.communicate()
            time.sleep(0.05)
        yield process, psutil.Process(int(pid.read_text()))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals to send Ctrl-C to another process")
def test_stopped_in_mid_run_finished_work_stays_and_neither_the_kernel_nor_a_half_run(repository, slow_run):
    folder, (process, kernel) = repository / "outputs/quick", slow_run
    before = {name: content for name, content in contents(folder).items() if name.startswith("0")}
    with refused("another process runs notebooks into"):
        start(repository, "01")
    process.send_signal(signal.SIGTERM)
    printed = process.communicate(timeout=100)[0]
    kernel.wait(timeout=100)

    assert process.returncode == 130 and "Traceback" not in printed
    assert printed.splitlines()[-1] == "stopped; 0 of 1 notebooks are done; the same command with --missing goes on"
    assert not list(folder.glob(".run-*"))
    assert {k: v for k, v in contents(folder).items() if k != "kernel.pid"} == before


# ---- what is asked for


def test_a_need_without_results_is_named_and_a_notebook_without_a_parameter_file_is_skipped(repository):
    statuses, printed = start(repository, "01", params_set="npu")
    assert statuses == {"01": "skipped"} and f"skipped  npu has no {FIRST}.yaml" in printed
    shutil.rmtree(repository / "outputs")
    assert f"02_optimize_gnn         skipped  {NEEDS.format('01')}" in start(repository, "02")[1]


def test_every_parameter_and_the_limit_of_open_files_are_checked_before_anything_is_touched(
    repository, without_kernels, monkeypatch
):
    before = contents(repository)
    with refused("did you mean width"):
        start(repository, overrides=[("widht", "4")])
    (repository / f"params/quick/{THIRD}.yaml").write_text("width: 1e9")
    with refused(rf"{THIRD}\.yaml: width: got .* allowed is a whole number, 1..64"):
        start(repository)
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 4096))
    with refused("only 64 files may be open at once; notebooks need 256: `ulimit -n 1024`"):
        start(repository, "01")
    (repository / f"params/quick/{THIRD}.yaml").write_text('width: "10"\n')
    assert contents(repository) == before


def test_a_user_whom_the_system_does_not_know_gets_a_home_for_the_time_of_the_run(repository, monkeypatch):
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv("USER", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    seen = []
    execute = lambda *_: seen.append(Path(os.environ["HOME"]).is_dir()) or (Status.FAILED, "")  # noqa: E731
    monkeypatch.setattr(runs, "execute", execute)
    start(repository, "01")
    assert seen == [True]
