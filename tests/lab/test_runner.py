"""The runner: what runs, what stays, what is printed, on a repository of three notebooks; how long results hold."""

import contextlib
import io
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import nbformat
import psutil
import pytest
import run_folders
import small_notebooks
from rich.console import Console

import gnnlab
from gnnlab import files
from gnnlab.errors import GnnlabError
from gnnlab.lab import execution, results, runner, text
from gnnlab.lab.discovery import Notebook

PARAMETERS = """\
mode: str = "pass"                  # what happens; pass|raise|die|slow
width: int = 8                      # channels; 1..64
graph: str = "digits"               # a name or a file
output_dir: str = "outputs/quick"   # where results go"""

BODY = """\
import os, sys, time, uuid
from pathlib import Path
from gnnlab.lab import results, table
print("one", flush=True); print("aside", file=sys.stderr, flush=True); print(sys.executable)
Path(output_dir, "kernel.pid").write_text(str(os.getpid()))
def finish(status="passed", reason=None):
    result = results.ResultFile(
        run=uuid.uuid4().hex, notebook=NAME, status=status, reason=reason, params_set="quick", environment={},
        parameters=dict(width=width), seconds=0, started="2026-01-02T03:04:05",
    )
    rows, pid = table.Table(), os.getpid()
    row = table.row(
        study="kernel", form="pid", value=pid, n=1, unit="count", better="neither", origin="measured", threads=1,
        statistic="single", interval="none", device="CPU", runtime="python", precision="none",
    )
    rows.put(row, [pid])
    results.write(Path(os.environ["GNNLAB_RUN"], "result.json"), result, rows)
match mode:
    case "raise": finish(); raise KeyError("one\\ntwo")
    case "die": os._exit(3)
    case "slow": time.sleep(600)
    case "pass": finish(*LAST)"""


def write_notebook(path, last=("passed",), **about):
    kernel = {"name": "mine", "display_name": "M", "language": "python"}
    body = f"NAME, LAST = {path.stem!r}, {last!r}\n{BODY}"
    small_notebooks.write(path, PARAMETERS, "# The answer\nin words", body, kernel=kernel, **about)


def make_repository(root):
    write_notebook(root / "notebooks/01_first.ipynb")
    write_notebook(root / "notebooks/02_second.ipynb", ("skipped", "no GPU here"), needs=["01"])
    write_notebook(root / "notebooks/03_third.ipynb", needs=["01", "02"], timeout_minutes=0.05)
    for set_, names in {"quick": ("01_first", "02_second", "03_third"), "npu": ("02_second", "03_third")}.items():
        for name in names:
            (root / "params" / set_).mkdir(parents=True, exist_ok=True)
            (root / "params" / set_ / f"{name}.yaml").write_text('width: "10"\n')
    return root


def steady(patch):
    """Make the surroundings the same in every test, and only count the sites that are built."""
    built = []
    site = types.SimpleNamespace(build_site=lambda folder: built.append(folder) or folder / "index.html")
    patch.setitem(sys.modules, "gnnlab.lab.report", site)
    patch.setattr(runner.machine, "about", lambda: {"cores": 2})
    patch.setattr(runner.gnnlab, "__file__", str(run_folders.__file__))  # a small package
    return built


@pytest.fixture(autouse=True)
def sites(monkeypatch):
    return steady(monkeypatch)


@pytest.fixture
def without_kernels(monkeypatch):
    """Notebooks "run" in this process: each leaves the result before it as another run, until `.fail` is a reason."""
    made = types.SimpleNamespace(runs=0, fail=None)

    def execute(worker, path, output, parameters, timeout_s, bar, GNNLAB_RUN):
        shutil.copy(path, output)
        if made.fail:
            return "failed", made.fail
        made.runs += 1
        before = results.newest(output.parents[1], path.stem)[0]
        if before:
            result = results.read(before).model_copy(update={"run": f"run {made.runs}"})
            results.write(output.with_name(before.name), result, results.table_of(before, result))
        return "passed", None

    monkeypatch.setattr(execution, "execute", execute)
    return made


def start(repository, *numbers, **options):
    """Run, and return the outcomes by number and what was printed."""
    console = Console(file=io.StringIO(), width=60)
    with contextlib.chdir(repository):
        outcomes = runner.run(numbers, console=console, **options)
    return {outcome.notebook[:2]: outcome for outcome in outcomes}, console.file.getvalue()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A repository after its first run: 01 passed, 02 skipped itself, 03 could not start for it."""
    repository = make_repository(tmp_path_factory.mktemp("a{b}"))  # braces in a path are only braces
    broken = tmp_path_factory.mktemp("jupyter") / "kernels/python3/kernel.json"  # what a user may have installed
    broken.parent.mkdir(parents=True)
    broken.write_text('{"argv": ["/no/such/python", "{connection_file}"], "display_name": "P", "language": "python"}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(broken.parents[2]))
        steady(patch)
        return repository, *start(repository)


@pytest.fixture
def repository(ran, tmp_path):
    """A copy of its own of the repository after the first run."""
    return shutil.copytree(ran[0], tmp_path / "repository")


def good(repository, name="01_first"):
    """The folder of the newest run that passed."""
    return run_folders.newest(repository / "outputs/quick", name).parent


def contents(folder):
    files_ = (path for path in folder.rglob("*") if path.is_file() and path.name not in (files.LOCK, results.MARK))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_}


# ---- the first run, and again


def test_what_passes_or_skips_itself_leaves_results_and_a_line_at_the_start_and_at_the_end(ran):
    repository, outcomes, printed = ran
    folder = repository / "outputs/quick"
    assert [outcome.status for outcome in outcomes.values()] == ["passed", "skipped", "skipped"]
    assert outcomes["01"].ran and not outcomes["03"].ran and runner.exit_code(outcomes.values()) == 0
    names = ("notebook.ipynb", "result.json", "samples.parquet")
    left = {good(repository, name).relative_to(folder) / kind for name in ("01_first", "02_second") for kind in names}
    assert set(contents(folder)) == {path.as_posix() for path in left} | {"kernel.pid"}
    assert [re.sub(r"[\d.]+ s", "T", line) for line in printed.splitlines()] == [
        "01_first   running  first run",
        "01_first   passed   T",
        "02_second  running  first run",
        "02_second  skipped  T  no GPU here",
        "03_third   skipped  it needs 02_second, which is skipped",
        "report: outputs/quick/index.html",
    ]
    notebook = nbformat.read(good(repository) / "notebook.ipynb", as_version=4)
    streams = [output.text for cell in notebook.cells for output in cell.get("outputs", [])]
    assert streams == [f"one\n{sys.executable}\n", "aside\n"]  # a kernel of this interpreter
    assert results.read(good(repository) / "result.json").parameters == {"width": 10}


def test_what_is_unchanged_is_not_run_again_and_says_why(repository, sites):
    before = contents(repository)
    outcomes, printed = start(repository)
    assert not any(outcome.ran for outcome in outcomes.values())
    assert re.search(
        r"01_first +passed +unchanged since \d{4}-\d\d-\d\d \d\d:\d\d: parameters, code, inputs, versions, machine",
        printed,
    )
    assert "02_second  skipped  no GPU here (unchanged since" in printed
    assert contents(repository) == before
    assert sites == [repository / "outputs/quick"]


def test_what_changed_runs_again_and_is_named(repository, without_kernels, monkeypatch):
    (repository / "params/quick/01_first.yaml").write_text("width: 9")
    monkeypatch.setattr(runner.machine, "about", lambda: {"cores": 4})
    _, printed = start(repository, "01")
    assert "01_first  running  runs again: parameters and machine changed" in printed


# ---- failures


def test_a_failure_leaves_earlier_results_and_stands_beside_them_until_it_passes(repository, without_kernels):
    without_kernels.fail = "no luck"
    folder = repository / "outputs/quick"
    before = contents(folder)
    outcomes, printed = start(repository, "01", "02", force=True)
    assert (outcomes["01"].status, outcomes["01"].reason) == ("failed", "no luck")
    assert f"01_first   failed   {text.duration(outcomes['01'].seconds)}  no luck" in printed
    assert outcomes["02"].reason == "it needs 01_first, which is failed" and runner.exit_code(outcomes.values()) == 1
    result = results.read(results.newest(repository / "outputs/quick", "01_first")[1])
    assert (result.status, result.reason) == ("failed", "no luck")
    assert contents(folder).items() >= before.items() and len(results.runs_of(folder)[0]["01_first"]) == 1

    without_kernels.fail = None
    outcomes, printed = start(repository, "01")
    assert outcomes["01"].status == "passed" and "runs again: its last run did not pass" in printed
    assert results.newest(folder, "01_first")[1] is None
    shutil.rmtree(folder / "01_first")
    unwritten = "it ended without writing result.json; its last cell has to call finish"
    assert start(repository, "01")[0]["01"].reason == unwritten


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [
        ("raise", "failed", "KeyError: 'one\\ntwo' (cell [3])"),
        ("die", "failed", "could not be executed (DeadKernelError: Kernel died)"),
        ("slow", "timeout", "not done after 3 seconds; "),  # one limit for all its cells
    ],
)
def test_every_failure_has_a_reason_of_one_line(repository, mode, status, reason):
    if mode == "slow":
        write_notebook(repository / "notebooks/01_first.ipynb", timeout_minutes=0.05)
    outcome = start(repository, "01", overrides=[("mode", mode)])[0]["01"]
    assert outcome.status == status and reason in outcome.reason and "\n" not in outcome.reason
    result = results.read(results.newest(repository / "outputs/quick", "01_first")[1])
    assert (result.status, result.reason, result.parameters["mode"]) == (status, outcome.reason, mode)


@pytest.fixture
def slow_run(repository):
    """Another process that runs notebook 01, which sleeps, and the process of its kernel."""
    pid = repository / "outputs/quick/kernel.pid"
    pid.unlink()
    main = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # it is off in the background
    main += "from gnnlab import cli; raise SystemExit(cli.main(['run', '01', '-p', 'mode', 'slow']))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, "-c", main], cwd=repository, **pipes)
    try:
        limit = time.monotonic() + 200
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None and time.monotonic() < limit, "the notebook did not start"
            time.sleep(0.05)
        yield process, psutil.Process(int(pid.read_text()))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals to send Ctrl-C to another process")
@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_stopped_in_mid_run_finished_work_stays_and_the_kernel_ends(repository, slow_run, sent, code):
    folder, (process, kernel) = repository / "outputs/quick", slow_run
    before = {name: content for name, content in contents(folder).items() if name.startswith("0")}
    with pytest.raises(GnnlabError, match="another process runs notebooks into"):
        start(repository, "01")
    process.send_signal(getattr(signal, sent))
    printed = process.communicate(timeout=100)[0]
    kernel.wait(timeout=100)

    assert process.returncode == code and "Traceback" not in printed
    if sent == "SIGINT":
        assert printed.splitlines()[-1] == "stopped; 0 of 1 notebooks are done; run again to go on"
    outcomes, _ = start(repository, "03")  # takes over what a dead run held
    assert outcomes["03"].status == "skipped"
    after = contents(folder)
    made = {".01_first.new/notebook.ipynb", "kernel.pid"}
    assert {k: v for k, v in after.items() if k not in made} == before


# ---- several runs


def pooled(repository):
    """The ids of the runs of notebook 01 that the ledger pools."""
    runs_of, problems = results.runs_of(repository / "outputs/quick")
    assert not problems
    return [result.run for result, _ in runs_of["01_first"]]


@pytest.fixture
def three(repository, without_kernels):
    """The repository after three runs of notebook 01."""
    _, printed = start(repository, "01", runs=3)
    assert [re.sub(r"[\d.]+ s", "T", line) for line in printed.splitlines()[:-1]] == [
        "01_first  running  run 2 of 3",
        "01_first  passed   T",
        "01_first  running  run 3 of 3",
        "01_first  passed   T",
    ]
    assert len(pooled(repository)) == 3
    return repository


def test_runs_that_are_there_are_not_made_again_and_one_of_other_parameters_stands_alone(three):
    before = contents(three)
    for wanted in (1, 3):
        outcomes, printed = start(three, "01", runs=wanted)
        assert not outcomes["01"].ran and "3 runs, unchanged since" in printed
    assert contents(three) == before
    assert start(three, "01", force=True)[0]["01"].status == "passed" and len(pooled(three)) == 4
    assert start(three, "01", overrides=[("width", "11")])[0]["01"].status == "passed" and len(pooled(three)) == 1


def test_a_further_run_that_fails_leaves_the_earlier_ones_and_the_next_goes_on(three, without_kernels):
    before, without_kernels.fail = pooled(three), "no luck"
    outcomes, printed = start(three, "01", runs=5)
    assert (outcomes["01"].status, outcomes["01"].reason) == ("failed", "no luck")
    assert "running  run 4 of 5" in printed and "run 5 of 5" not in printed and pooled(three) == before
    without_kernels.fail = None
    outcomes, printed = start(three, "01", runs=4)
    assert outcomes["01"].status == "passed" and "running  run 4 of 4" in printed and len(pooled(three)) == 4


def test_a_notebook_that_skips_itself_runs_once(repository, without_kernels):
    outcomes, printed = start(repository, "02", runs=3, force=True)
    assert outcomes["02"].status == "skipped" and printed.count("02_second  running") == 1
    assert not start(repository, "02", runs=3)[0]["02"].ran


def test_runs_of_code_that_changes_meanwhile_are_not_pooled(three, monkeypatch):
    cores = iter([2, 2, 4, 4])  # looked at before the first, and as each run begins
    monkeypatch.setattr(runner.machine, "about", lambda: {"cores": next(cores)})
    assert start(three, "01", runs=5)[0]["01"].status == "passed" and len(pooled(three)) == 1


# ---- what is asked for


def test_a_need_without_results_is_named_and_a_notebook_without_a_parameter_file_is_skipped(repository):
    outcomes, _ = start(repository, "01", params_set="npu")
    assert outcomes["01"].status == "skipped" and outcomes["01"].reason == "npu has no 01_first.yaml"
    shutil.rmtree(repository / "outputs")
    outcomes, printed = start(repository, "02")
    assert outcomes["02"].reason == "run 01 first: gnnlab run 01 --params quick"
    assert not outcomes["02"].ran and "02_second  skipped  run 01 first" in printed


def test_every_parameter_is_checked_before_anything_is_touched(repository, without_kernels):
    before = contents(repository)
    with pytest.raises(GnnlabError, match="did you mean width"):
        start(repository, overrides=[("widht", "4")])
    (repository / "params/quick/03_third.yaml").write_text("width: 1e9")
    with pytest.raises(GnnlabError, match=r"03_third\.yaml: width: got .* less than or equal to 64"):
        start(repository, force=True)
    (repository / "params/quick/03_third.yaml").write_text('width: "10"\n')
    assert contents(repository) == before and not without_kernels.runs


# ---- as long as nothing has changed


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder with a notebook, a result that it needs and a user's files."""
    monkeypatch.setattr(runner.machine, "versions", lambda *_: {"torch": "2.13"})
    package = [f"package/{name}" for name in ("lab/a.py", "templates/page.j2", "__pycache__/a.pyc")]
    examples = ["examples/shown.py", "examples/other.py"]
    for name in ("outputs/quick/00_need/1/result.json", "graph.npz", "mine/models.py", *examples, *package):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("made")
    write_code(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_code(root, code="run('shown.py')", prose="words"):
    small_notebooks.write(root / "notebooks/01_a.ipynb", "", f"# {prose}", code)


NEED = "outputs/quick/00_need/1/result.json"


def fingerprint(root, **parameters):
    values = {"width": 8, "graph": "graph.npz", "model": "mine.models:make", "kinds": ["lap"]} | parameters
    return runner.fingerprint(Notebook(root / "notebooks/01_a.ipynb"), values, [root / NEED], root / "outputs/quick")


CHANGES = {
    "the notebook's code": ("code", lambda root, patch: write_code(root, code="shown = 2")),
    "an example that it shows": ("code", lambda root, patch: (root / "examples/shown.py").write_text("other")),
    "a module": ("code", lambda root, patch: (root / "package/lab/a.py").write_text("other")),
    "a new module": ("code", lambda root, patch: (root / "package/lab/b.py").touch()),
    "a graph": ("inputs", lambda root, patch: (root / "graph.npz").write_text("other")),
    "a module of models": ("inputs", lambda root, patch: (root / "mine/models.py").write_text("other")),
    "a result before it": ("inputs", lambda root, patch: (root / NEED).write_text("[]")),
    "a package": ("versions", lambda root, patch: patch(runner.machine, "versions", lambda *_: {"torch": "2.14"})),
    "the machine": ("machine", lambda root, patch: patch(runner.machine, "about", lambda: {"cores": 4})),
}


@pytest.mark.parametrize(("part", "change"), CHANGES.values(), ids=CHANGES)
def test_each_change_is_seen_and_named_but_not_one_of_prose_or_of_what_renders(made, monkeypatch, part, change):
    monkeypatch.setattr(gnnlab, "__file__", str(made / "package/__init__.py"))
    before = fingerprint(made)
    write_code(made, prose="better words")
    for name in ("package/templates/page.j2", "package/__pycache__/a.pyc", "examples/other.py"):
        (made / name).write_text("new")
    assert runner.why_again(before, fingerprint(made)) is None
    change(made, monkeypatch.setattr)
    assert runner.why_again(before, fingerprint(made)) == f"{part} changed"
    assert runner.why_again(before, fingerprint(made, width=9)) == f"parameters and {part} changed"
    assert runner.why_again({"run": "a"}, fingerprint(made)) == "its last run was not by gnnlab run"


@pytest.mark.parametrize("value", [NEED, "", ".", "x" * 5000, "~nobody/x", "no.such:module", "C:\\x"])
def test_results_and_values_that_name_no_file_are_no_inputs(made, value):
    assert fingerprint(made, graph=value, model="")["inputs"] == fingerprint(made, graph="", model="")["inputs"]
