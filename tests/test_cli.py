"""The command line: what it passes on, what it prints, how it exits."""

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import nbformat
import pytest

import gnnlab
from gnnlab import cli, compare
from gnnlab.commands import devices, notebooks, terminal
from gnnlab.errors import GnnlabError
from gnnlab.lab import claims_report, discovery
from gnnlab.lab import run as runs
from gnnlab.lab.results import Status

HEAVY = {"torch", "numpy", "pandas", "scipy", "matplotlib", "openvino", "papermill", "pydantic", "rich", "yaml"}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one notebook and results of it, to be in."""
    parameters = "hidden: int = 64  # channels of a layer; 8..1024\nodd: str = '[/b]'  # [red]not markup[/red]\n"
    parameters += "output_dir: str = 'outputs/quick'  # where results go"
    cell = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    for folder in ("notebooks", "params/quick", "params/full", "outputs/quick"):
        (tmp_path / folder).mkdir(parents=True)
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": python})
    nbformat.write(made, tmp_path / "notebooks/01_profile_bottlenecks.ipynb")
    for name in ("quick", "full"):
        (tmp_path / f"params/{name}/01_profile_bottlenecks.yaml").write_text(f"output_dir: outputs/{name}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """What the runner is asked for; it answers with the statuses in `.answer`."""
    request = types.SimpleNamespace(answer=["passed"])

    def run(numbers, params_set, **options):
        request.numbers, request.params_set, request.options = numbers, params_set, options
        return {str(number): Status(status) for number, status in enumerate(request.answer)}

    monkeypatch.setattr(runs, "run", run)
    return request


# ---- the command itself


IN_ONE_PROCESS = """
import json, sys
from gnnlab.cli import main
codes = [main(line.split()) for line in ("--help", "run --help", "profile --help", "--version", "")]
print(json.dumps([codes, list(sys.modules)]))
"""


def test_help_loads_nothing_heavy():
    ended = subprocess.run([sys.executable, "-c", IN_ONE_PROCESS], capture_output=True, text=True, timeout=60)
    codes, modules = json.loads(ended.stdout.splitlines()[-1])
    assert codes == [0] * 5 and ended.stderr == "" and not HEAVY & set(modules)


def test_notebooks_are_read_and_validated_without_what_loads_for_seconds():
    code = "import sys; import gnnlab.lab; import nbformat; "
    code += "nbformat.validate(nbformat.v4.new_notebook()); sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_module_is_a_command_with_help_and_examples(command):
    modules = {path.stem for path in Path(notebooks.__file__).parent.glob("*.py")}
    assert modules - {"__init__", "terminal", "notebooks"} == set(cli.COMMANDS) - set(notebooks.COMMANDS)
    listed = command("--help")[1]
    for name in cli.COMMANDS:
        code, out, _ = command(name, "--help")
        assert code == 0 and f"examples:\n  gnnlab {name}" in out and name in listed


def test_python_m_gnnlab_is_the_command():
    ended = subprocess.run([sys.executable, "-m", "gnnlab", "--version"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, f"gnnlab {gnnlab.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nope"], "invalid choice: 'nope'"),
        (["run", "--forc"], "--forc; see gnnlab run --help"),
        (["run", "-p", "width"], "expected 2 arguments"),
        (["run", "--runs", "101"], "'101' is not a whole number from 1 to 100"),
        (["claims", "--json", "--recompute"], "not allowed with argument --json"),
        (["profile", "--num_nodes", "0"], "'0' is not a whole number above 0"),
        (["profile", "--profile", "speed"], "invalid choice: 'speed'"),
        (["profile", "--model", "weights.pt"], "'weights.pt' is not a model"),
        (["check", "none.py"], "none.py: there is no such file"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(command, arguments, part):
    code, out, err = command(*arguments)
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert err.startswith("gnnlab") and part in err and "--help" in err


CLOSED = [("params 01 >&-", 0), ("params 01 2>&-", 0), ("params 01 | exit 0", 1), ("params 99 2>/dev/full", 2)]
CLOSED += [("infer --device cpu 2>&- <&-", 0), ("infer --device cpu --batch 2>&- <&-", 0)]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell and its channels")
@pytest.mark.parametrize(("way", "code"), CLOSED)
def test_a_closed_channel_and_a_python_without_docstrings_are_no_traceback(repository, way, code):
    command = f"set -o pipefail; PYTHONOPTIMIZE=2 '{sys.executable}' -m gnnlab {way}"
    done = subprocess.run(["bash", "-c", command], cwd=repository, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (code, "")


# ---- the commands


def test_run_passes_on_what_is_asked_and_exits_with_1_when_a_notebook_failed_or_timed_out(asked):
    assert cli.main(["run"]) == 0
    assert (asked.numbers, asked.params_set) == ([], "quick")
    assert asked.options == {"missing": False, "runs": 1, "overrides": []}
    given = ["-p", "rate", "-1e-3", "-p", "sizes", "[-1, 2]"]
    assert cli.main(["run", "01", "2", "--params", "full", "--missing", "--runs", "5", *given]) == 0
    assert (asked.numbers, asked.params_set) == (["01", "2"], "full")
    assert asked.options == {"missing": True, "runs": 5, "overrides": [("rate", "-1e-3"), ("sizes", "[-1, 2]")]}
    for asked.answer, code in ((["passed", "skipped"], 0), (["passed", "failed"], 1), (["timeout"], 1), ([], 0)):
        assert cli.main(["run"]) == code


def test_run_in_no_repository_says_so(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "__file__", str(tmp_path / "gnnlab/lab/discovery.py"))
    code, _, err = command("run")
    assert code == 2 and "01_profile_bottlenecks.ipynb and params/quick" in err and "swap, optimize" in err


def test_report_renders_the_site_and_prints_its_page_or_names_the_run(command, repository, monkeypatch):
    site = types.SimpleNamespace(build_site=lambda folder: folder / "index.html")
    monkeypatch.setitem(sys.modules, "gnnlab.lab.report", site)
    monkeypatch.setattr(gnnlab.lab, "report", site, raising=False)
    assert command("report") == (0, f"{repository / 'outputs/quick/index.html'}\n", "")
    code, _, err = command("report", "--params", "full")
    assert code == 2 and "run gnnlab run --params full first" in err
    code, _, err = command("report", "outputs/quick")
    assert code == 2 and "outputs/quick holds no runs of notebooks" in err
    run = repository / "outputs/quick/01_profile_bottlenecks/0001/result.json"
    run.parent.mkdir(parents=True)
    run.touch()
    assert command("report", "outputs/quick") == (0, f"{repository / 'outputs/quick/index.html'}\n", "")


@pytest.fixture
def judged(monkeypatch):
    """`gnnlab claims` prints `.text` for a claims_report, and finds the `.problems` when it computes again."""
    shown = types.SimpleNamespace(text="", problems=[])
    found = lambda folder: types.SimpleNamespace(name=folder.name, to_dict=lambda: folder.name)  # noqa: E731
    monkeypatch.setattr(claims_report, "judge", found)
    monkeypatch.setattr(notebooks, "of_report", lambda judged: shown.text or f"tables of {judged.name}")
    monkeypatch.setattr(claims_report, "recompute", lambda folder: (not shown.problems, shown.problems or ["all"]))
    return shown


def test_claims_prints_the_report_as_tables_as_json_and_computed_again(command, repository, judged):
    assert command("claims") == (0, "tables of quick\n", "")
    assert command("claims", "--json") == (0, '"quick"\n', "")
    run = repository / "elsewhere/01_profile_bottlenecks/0001/result.json"
    run.parent.mkdir(parents=True)
    run.touch()
    assert command("claims", "elsewhere") == (0, "tables of elsewhere\n", "")
    assert command("claims", "--recompute") == (0, "all\n", "")
    judged.problems = ["gat.compile: stored 2, computed again 1", "a.json is damaged"]
    assert command("claims", "--recompute") == (1, "\n".join(judged.problems) + "\n", "")


def test_a_character_that_the_terminal_does_not_know_is_no_error(repository, judged, monkeypatch):
    judged.text = "±5 % ☃"
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert cli.main(["claims"]) == 0
    assert narrow.buffer.getvalue().decode("cp1252").split() == ["±5", "%", "?"]


@pytest.mark.parametrize("name", ["claims", "report"])
@pytest.mark.parametrize(
    ("folder", "part"),
    [
        (".", "holds no runs of notebooks; name a folder of outputs"),
        ("", "holds no runs of notebooks; name a folder of outputs"),
        (os.devnull, "holds no runs of notebooks; name a folder of outputs"),
        ("~nobody-of-that-name/x", "nor a folder with *.yaml"),
    ],
)
def test_what_holds_no_results_is_refused(command, repository, name, folder, part):
    code, out, err = command(name, folder)
    assert code == 2 and out == "" and part in err and err.count("\n") == 1


def test_compare_takes_folders_and_names_of_parameter_sets(command, repository, monkeypatch):
    compared, found = [], compare.RunComparison("a", "b", [], [], [])
    monkeypatch.setattr(compare, "compare", lambda a, b: compared.append((a, b)) or found)
    monkeypatch.setattr(notebooks, "of_comparison", lambda comparison: "table")
    (repository / "elsewhere").mkdir()
    assert command("compare", "quick", "elsewhere") == (0, "table\n", "")
    assert command("compare", "elsewhere", "quick", "--json")[1].startswith('{\n "run_a": "a"')
    assert compared[0] == (repository / "outputs/quick", Path("elsewhere"))
    for name in ("nowhere", "~nobody-of-that-name/x"):
        code, _, err = command("compare", "quick", name)
        assert code == 2 and f"'{name}'" in err and len(err.splitlines()) == 1


def test_a_table_is_not_cut_in_a_file_and_a_column_in_which_nothing_stands_is_left_out(command, repository, judged):
    judged.text = terminal.table("wide", ["a"], [["x" * 120]])
    assert "x" * 120 in command("claims")[1]
    made = terminal.table("t", ["a", "empty", "b"], [["1", "", ""], ["2", "", "x"]], right=("b",))
    assert [column.header for column in made.columns] == ["a", "b"] and made.columns[1].justify == "right"
    assert [column.header for column in terminal.table("t", ["a", "b"], []).columns] == ["a", "b"]


def test_params_shows_every_parameter_and_reads_no_markup(command, repository):
    code, out, _ = command("params", "01")
    assert code == 0 and "01_profile_bottlenecks" in out
    assert "8..1024" in out and "[/b]" in out and "[red]not markup[/red]" in out
    code, _, err = command("params", "07")
    assert code == 2 and "there is no notebook '07'" in err


def test_profile_takes_both_spellings_and_one_graph(command):
    parse = cli._parser().parse_args
    sizes = ["--hidden_dim", "512", "--num-layers", "12", "--ffn-dim", "64", "--num_heads", "2"]
    given = parse(["profile", *sizes, "--dataset", "karate"])
    assert (given.graph, given.hidden_dim, given.num_layers, given.ffn_dim, given.num_heads) == (
        "karate",
        512,
        12,
        64,
        2,
    )
    assert parse(["profile", "--num-nodes", "1000"]).num_nodes == 1000
    assert parse(["profile", "--inputs", "m:inputs"]).graph == "inputs:m:inputs"
    assert command("profile", "--num_nodes", "1000", "--inputs", "m:inputs")[0] == 2


@pytest.fixture
def raising(monkeypatch):
    """`gnnlab devices` raises what the function is called with."""

    def plant(error):
        def run(arguments):
            raise error

        monkeypatch.setattr(devices, "run", run)

    return plant


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (GnnlabError("width: got 'wide'; allowed is a whole number"), "width: got 'wide'; allowed is a whole number"),
        (MemoryError(), "there is too little memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "there is too little memory"),
        (OSError(12, "Cannot allocate memory"), "there is too little memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 4000000000 bytes"), "there is too little memory"),
        (ModuleNotFoundError("", name="redis.asyncio"), "redis, which is not installed: pip install 'gnnlab[export]'"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "set TMPDIR"),
        (OSError(30, "Read-only file system", "/home/me"), "Read-only file system (/home/me)"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), "write: No such file or directory (a.csv)"),
    ],
)
def test_bad_input_and_what_the_machine_lacks_are_one_line_and_exit_code_2(command, raising, error, part):
    raising(error)
    code, out, err = command("devices")
    assert code == 2 and out == "" and part in err and err.startswith("gnnlab: ") and err.count("\n") == 1


def test_an_error_that_is_not_ours_is_not_hidden_and_ctrl_c_is_exit_code_130(command, raising):
    own = ModuleNotFoundError("No module named 'gnnlab.x'", name="gnnlab.x")
    for error in (OSError("another"), own, ValueError("a bug")):
        raising(error)
        with pytest.raises(type(error), match=str(error)):
            cli.main(["devices"])
    raising(KeyboardInterrupt())
    assert command("devices") == (130, "", "")
