"""The runner: what runs, what is kept, what is said; on a little repository of three notebooks."""

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

from gnnlab import files
from gnnlab.errors import GnnlabError
from gnnlab.lab import discovery, execution, results, runner, runs, text
from gnnlab.lab.results import Status

PARAMETERS = """\
mode: str = "pass"                  # what happens; pass|raise|die|slow|silent|damage
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
    case "damage": Path(os.environ["GNNLAB_RUN"], "result.json").write_text("{}")
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
    patch.setattr(runs, "package_code", lambda: {"lab/a.py": "1"})
    patch.setattr(runs, "this_machine", lambda: {"cores": 2})
    return built


@pytest.fixture(autouse=True)
def sites(monkeypatch):
    return steady(monkeypatch)


def not_run(blank, place):
    result = blank.model_copy(update={"reason": "not really run"})
    results.write(place / results.RESULT, result)
    return result


@pytest.fixture
def attempted(monkeypatch):
    """Names of the notebooks that would be run; nothing is."""
    names = []

    def pretend(notebook, given, blank, place, bar):
        names.append(notebook.name)
        return not_run(blank, place)

    monkeypatch.setattr(execution, "execute", pretend)
    return names


def start(repository, *numbers, **options):
    """Run, and return the outcomes by number and what was printed."""
    console = Console(file=io.StringIO(), width=60)
    with contextlib.chdir(repository):
        outcomes = runner.run(numbers, console=console, **options)
    return {outcome.notebook[:2]: outcome for outcome in outcomes}, console.file.getvalue()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A repository after its first run: 01 passed, 02 skipped itself, 03 could not start for it."""
    repository = make_repository(tmp_path_factory.mktemp("repository"))
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


def failed(repository, name="01_first"):
    """The folder of the newest run that failed, where none has passed since."""
    return results.newest(repository / "outputs/quick", name)[1].parent


def contents(folder):
    files_ = (path for path in folder.rglob("*") if path.is_file() and path.name != files.LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_}


RUN = ("notebook.ipynb", "result.json", "samples.parquet")

# ---- the first run


def test_what_passes_or_skips_itself_leaves_results(ran):
    repository, outcomes, _ = ran
    folder = repository / "outputs/quick"
    assert [outcome.status for outcome in outcomes.values()] == ["passed", "skipped", "skipped"]
    assert outcomes["01"].ran and not outcomes["03"].ran
    assert outcomes["02"].reason == "no GPU here"
    assert outcomes["03"].reason == "it needs 02_second, which is skipped"
    left = {good(repository, name).relative_to(folder) / kind for name in ("01_first", "02_second") for kind in RUN}
    assert set(contents(folder)) == {path.as_posix() for path in left} | {"kernel.pid", ".gnnlab"}
    assert runner.exit_code(outcomes.values()) == 0


def test_the_kernel_is_of_this_interpreter_and_its_parameters_are_understood(ran):
    notebook = nbformat.read(good(ran[0]) / "notebook.ipynb", as_version=4)
    streams = [output.text for cell in notebook.cells for output in cell.get("outputs", [])]
    assert streams == [f"one\n{sys.executable}\n", "aside\n"]
    assert results.read(good(ran[0]) / "result.json").parameters == {"width": 10}


def test_a_log_gets_one_line_at_the_start_and_one_at_the_end(ran):
    lines = ran[2].splitlines()
    assert [re.sub(r"[\d.]+ s", "T", line) for line in lines] == [
        "01_first   running  first run",
        "01_first   passed   T",
        "02_second  running  first run",
        "02_second  skipped  T  no GPU here",
        "03_third   skipped  it needs 02_second, which is skipped",
        "report: outputs/quick/index.html",
    ]


# ---- again


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


def test_what_changed_runs_again_and_is_named(repository, attempted, monkeypatch):
    (repository / "params/quick/01_first.yaml").write_text("width: 9")
    monkeypatch.setattr(runs, "package_code", lambda: {"lab/a.py": "2"})
    _, printed = start(repository, "01")
    assert "01_first  running  runs again: parameters changed (width); code changed (lab/a.py)" in printed
    assert attempted == ["01_first"]


def test_what_parameters_name_is_looked_for_where_the_user_is(repository, attempted, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "root", lambda: repository)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.npz").write_text("a graph")
    runner.run(
        ["01"], force=True, overrides=[("mode", "pass"), ("graph", "mine.npz")], console=Console(file=io.StringIO())
    )
    result = results.read(failed(repository) / "result.json")
    assert list(result.fingerprint["inputs"]) == ["mine.npz"] and attempted == ["01_first"]


def test_what_needs_a_failed_notebook_is_skipped(repository, attempted):
    outcomes, _ = start(repository, "02", "01", force=True)
    assert list(outcomes) == ["01", "02"] and attempted == ["01_first"]
    assert outcomes["02"].reason == "it needs 01_first, which is failed"


def test_force_runs_what_is_unchanged_and_braces_in_a_path_are_only_braces(repository):
    overrides = [("output_dir", "outputs/a{b}")]
    outcomes, printed = start(repository, "1", force=True, overrides=overrides)
    assert outcomes["01"].status == "passed" and "running  forced" in printed
    assert run_folders.newest(repository / "outputs/a{b}", "01_first").with_name("notebook.ipynb").exists()


# ---- failures


def test_a_failure_leaves_earlier_results_and_stands_beside_them_until_it_passes(repository):
    folder = repository / "outputs/quick"
    before = contents(folder)
    outcomes, printed = start(repository, "01", overrides=[("mode", "raise")])

    assert outcomes["01"].status == "failed" and runner.exit_code(outcomes.values()) == 1
    assert outcomes["01"].reason == "KeyError: 'one\\ntwo' (cell [3])"
    assert f"01_first  failed   {text.duration(outcomes['01'].seconds)}  KeyError" in printed
    after = contents(folder)
    place = failed(repository)
    why = results.read(place / "result.json")
    assert why.status == "failed" and why.reason == outcomes["01"].reason and why.parameters["mode"] == "raise"
    assert (place / "notebook.ipynb").exists()
    assert all(after[name] == before[name] for name in before if name != "kernel.pid")
    assert len(results.runs_of(folder)[0]["01_first"]) == 1

    outcomes, printed = start(repository, "01")
    assert outcomes["01"].status == "passed" and "runs again: its last run did not pass" in printed
    assert results.newest(folder, "01_first")[1] is None


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [
        ("die", "failed", "could not be executed (DeadKernelError: Kernel died)"),
        ("silent", "failed", "it ended without writing result.json; its last cell has to finish the session"),
        ("damage", "failed", "result.json is not a result file of this version"),
        ("slow", "timeout", "not done after 3 seconds; "),  # one limit for all its cells
    ],
)
def test_every_failure_has_a_reason_of_one_line(repository, mode, status, reason):
    if mode == "slow":
        write_notebook(repository / "notebooks/01_first.ipynb", timeout_minutes=0.05)
    before = (good(repository) / "result.json").read_bytes()
    outcome = start(repository, "01", overrides=[("mode", mode)])[0]["01"]
    assert outcome.status == status and reason in outcome.reason and "\n" not in outcome.reason
    assert (good(repository) / "result.json").read_bytes() == before
    result = results.read(failed(repository) / "result.json")
    assert (result.status, result.reason) == (status, outcome.reason)


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
    (folder / "01_first.notes").write_text("mine")
    before = contents(folder)
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
    assert {k: v for k, v in after.items() if k not in made} == {k: v for k, v in before.items() if k not in made}


# ---- several runs


def pooled(repository):
    """The ids of the runs of notebook 01 that the ledger pools."""
    runs_of, problems = results.runs_of(repository / "outputs/quick")
    assert not problems
    return [result.run for result, _ in runs_of["01_first"]]


@pytest.fixture
def without_kernels(monkeypatch):
    """Notebooks "run" in this process: each leaves the result before it as another run, until `.fail` is a reason."""
    made = types.SimpleNamespace(runs=0, fail=None)

    def run_cells(notebook, parameters, place, bar):
        shutil.copy(notebook.path, place / results.NOTEBOOK)
        if made.fail:
            return Status.FAILED, made.fail
        made.runs += 1
        path = run_folders.newest(place.parent, notebook.name)
        result = results.read(path).model_copy(update={"run": f"run {made.runs}"})
        results.write(place / path.name, result, results.table_of(path, result))
        return Status.PASSED, None

    monkeypatch.setattr(execution, "run_cells", run_cells)
    return made


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


def test_runs_that_are_there_are_not_made_again(three):
    before = contents(three)
    for wanted in (1, 3):
        outcomes, printed = start(three, "01", runs=wanted)
        assert not outcomes["01"].ran and "3 runs, unchanged since" in printed
    assert contents(three) == before


def test_a_forced_run_is_one_more_and_one_of_other_parameters_stands_alone(three):
    assert start(three, "01", force=True)[0]["01"].status == "passed" and len(pooled(three)) == 4
    assert start(three, "01", overrides=[("width", "11")])[0]["01"].status == "passed"
    assert len(pooled(three)) == 1


def test_a_further_run_that_fails_leaves_the_earlier_ones_and_the_next_goes_on(three, without_kernels):
    before, without_kernels.fail = pooled(three), "no luck"
    outcome = start(three, "01", runs=5)[0]["01"]
    assert (outcome.status, outcome.reason) == ("failed", "run 4 of 5: no luck; the runs before it stand")
    assert pooled(three) == before

    without_kernels.fail = None
    outcomes, printed = start(three, "01", runs=4)
    assert outcomes["01"].status == "passed" and "running  run 4 of 4" in printed
    assert len(pooled(three)) == 4 and results.newest(three / "outputs/quick", "01_first")[1] is None


def test_a_notebook_that_skips_itself_runs_once(repository, without_kernels):
    outcomes, printed = start(repository, "02", runs=3, force=True)
    assert outcomes["02"].status == "skipped" and printed.count("02_second  running") == 1
    assert not start(repository, "02", runs=3)[0]["02"].ran


def test_runs_of_code_that_changes_meanwhile_are_not_pooled(three, monkeypatch):
    versions = iter(["1", "1", "2", "2", "2"])  # looked at before the first, and as each run begins
    monkeypatch.setattr(runs, "package_code", lambda: {"lab/a.py": next(versions)})
    assert start(three, "01", runs=5)[0]["01"].status == "passed" and len(pooled(three)) == 1
    assert "02" not in start(three, "01", runs=2)[0] and len(pooled(three)) == 2


# ---- what is asked for


def test_a_need_without_results_is_named_and_a_notebook_without_a_parameter_file_is_skipped(repository):
    outcomes, _ = start(repository, "01", params_set="npu")
    assert outcomes["01"].status == "skipped" and outcomes["01"].reason == "npu has no 01_first.yaml"
    shutil.rmtree(repository / "outputs")
    outcomes, printed = start(repository, "02")
    assert outcomes["02"].reason == "run 01 first: gnnlab run 01 --params quick"
    assert not outcomes["02"].ran and "02_second  skipped  run 01 first" in printed
    outcomes, _ = start(repository, "02", overrides=[("output_dir", "outputs/mine")])
    assert outcomes["02"].reason == "run 01 first: gnnlab run 01 --params quick -p output_dir outputs/mine"


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        ([], {"overrides": [("widht", "4")]}, "did you mean width?"),
        (["9"], {}, "there is no notebook '9'"),
        ([], {"overrides": [("output_dir", "notebooks")]}, "is not empty and is no outputs folder"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_touched(repository, arguments, options, part):
    before = contents(repository)
    with pytest.raises(GnnlabError, match=re.escape(part)) as refusal:
        start(repository, *arguments, **options)
    assert len(str(refusal.value).splitlines()) == 1
    assert contents(repository) == before


def test_every_parameter_file_is_checked_before_anything_runs(repository, attempted):
    shutil.rmtree(repository / "outputs")
    (repository / "params/quick/03_third.yaml").write_text("width: 1e9")
    with pytest.raises(GnnlabError, match=r"03_third\.yaml: width: got .* from 1 to 64"):
        start(repository)
    assert not (repository / "outputs").exists() and attempted == []
