"""What there is to run, in which order, with which parameters, and where results go."""

import math

import pytest
import small_notebooks
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal as refused

from gnnlab.errors import GnnlabError
from gnnlab.lab import discovery
from gnnlab.lab.discovery import Parameter

FIRST, SECOND = "01_profile_bottlenecks", "02_optimize_gnn"
CELL = "width: int = 8  # channels; 1..64\noutput_dir: str = 'outputs/lab'  # where results go"


def notebook(repository, name, source=CELL, **about):
    return small_notebooks.write(repository / "notebooks" / f"{name}.ipynb", source, **about)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two notebooks, and a parameter set with a file for each."""
    notebook(tmp_path, FIRST)
    notebook(tmp_path, SECOND, CELL + "\nrate: float = 0.1  # learning rate\nat: list[int] = [1]  # where")
    for own in ("scratch", "02_draft", f"{SECOND}.nbconvert", f"{FIRST}-Copy1", "11_mine"):
        notebook(tmp_path, own, "this is nobody's business")
    for name in (FIRST, SECOND):
        (tmp_path / "params/quick").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"params/quick/{name}.yaml").write_text("width: '9'")
    (tmp_path / "params/full").mkdir()
    monkeypatch.chdir(tmp_path / "params/quick")
    return tmp_path


def values(*overrides, numbers=(), params="quick"):
    return discovery.request(numbers, params, overrides).values


def test_the_repository_is_the_one_around_the_current_folder_or_the_package_and_no_project_of_a_user(
    repository, tmp_path, monkeypatch
):
    assert discovery.root() == repository
    monkeypatch.setattr(discovery, "__file__", str(repository / "gnnlab/lab/discovery.py"))
    monkeypatch.chdir("/")
    assert discovery.root() == repository
    mine = tmp_path / "project"
    for name in (f"notebooks/{FIRST}-Copy1.ipynb", "params/quick/a.yaml"):
        (mine / name).parent.mkdir(parents=True)
        (mine / name).touch()
    monkeypatch.chdir(mine)
    assert discovery.root() == repository
    (repository / f"notebooks/{FIRST}.ipynb").unlink()
    assert f"holds notebooks/{FIRST}.ipynb and params/quick; change to" in refused(discovery.root)


def test_notebooks_are_chosen_by_number_name_or_path_and_stay_in_order(repository):
    def chosen(*wanted):
        return [path.stem[:2] for path in discovery.notebooks(repository, wanted)]

    for word in ("01", "1", FIRST, f"notebooks/{FIRST}.ipynb"):
        assert chosen("2", word, "02") == chosen() == ["01", "02"] and chosen(word) == ["01"]
    for word in ("4", "01.ipynb/", "01.txt", f"{FIRST}/", ""):
        assert f"there is no notebook {word!r}; there are: {FIRST}, {SECOND}" in refused(chosen, "1", word)


def test_a_parameter_set_is_a_name_or_a_folder_with_files(repository, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine")
    for name in ("ful", "", "full", str(mine)):
        message = refused(values, params=name)
        assert message == f"there is no parameter set {name!r}, nor a folder with *.yaml; sets are full, quick"
    (mine / f"{FIRST}.yaml").write_text("width: 7")
    assert values(params=str(mine))[FIRST]["width"] == 7


def test_an_override_goes_before_a_file_and_a_file_before_the_default(repository):
    there = {"output_dir": "outputs/quick"}
    assert values(("rate", "1e-3"), ("at", "[2, 3]")) == {
        FIRST: {"width": 9, **there},
        SECOND: {"width": 9, "rate": 0.001, "at": [2, 3], **there},
    }
    assert values(("width", "10"), numbers=["01"]) == {FIRST: {"width": 10, **there}}
    assert "-p widht: unknown parameter 'widht' (did you mean width?)" in refused(values, ("widht", "1"))
    (repository / f"params/quick/{FIRST}.yaml").unlink()
    assert values()[FIRST]["width"] == 8


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("01_profile_botlenecks.yaml", f"did you mean {FIRST}.yaml?"),
        (f"{SECOND}.yml", f"{SECOND}.yaml"),
        ("x.yaml", ""),
    ],
)
def test_a_file_that_is_wrong_or_belongs_to_no_notebook_is_refused(repository, name, hint):
    (repository / f"params/quick/{SECOND}.yaml").write_text("widht: 5")
    assert f"{SECOND}.yaml: unknown parameter 'widht' (did you mean width?)" in refused(values)
    (repository / "params/quick" / name).write_text("")
    message = refused(values)
    assert f"{name} belongs to no notebook" in message and hint in message


def test_a_file_that_is_a_link_to_nowhere_is_not_taken_for_none(repository):
    file = repository / f"params/quick/{FIRST}.yaml"
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        values()


def test_results_go_to_the_folder_of_the_set_or_where_parameters_say(repository, monkeypatch):
    def folder(*overrides):
        return discovery.request((), "quick", overrides).folder

    assert folder() == repository / "outputs/quick"
    monkeypatch.setenv("HOME", "/home/me")
    for named, where in (("x/y", repository / "x/y"), ("/elsewhere", "/elsewhere"), ("~/x", "/home/me/x")):
        assert folder(("output_dir", named)) == discovery.Path(where).resolve()
    assert "run gnnlab run --params quick first" in refused(discovery.results_of, "quick")
    (repository / f"params/quick/{FIRST}.yaml").write_text("output_dir: x/y")
    assert "different output_dir; one run has one folder" in refused(folder)


DECLARATIONS = """\
# what to profile
graph: str = "digits"            # a name, a PyG dataset or random:...
local: str = "gin"               # local message passing; gin|gat|gcn
hidden: int = 64                 # channels of a hidden layer; 8..1024
rate: float = 1e-3               # learning rate; 0..1

compiled: bool = False           # also measure under torch.compile
nodes: list[int] = [100, 500]    # graph sizes, nodes; 1..
rates: list[float] = []          # learning rates to try, none is all; nodes/edges
kinds: list[str] = ["lap"]       # encodings; lap|rwse|none
output_dir: str = "outputs/x=y"  # where results go
"""
DECLARED = {
    "graph": Parameter("graph", "str", "digits", "a name, a PyG dataset or random:..."),
    "local": Parameter("local", "str", "gin", "local message passing", "gin|gat|gcn"),
    "hidden": Parameter("hidden", "int", 64, "channels of a hidden layer", "8..1024"),
    "rate": Parameter("rate", "float", 1e-3, "learning rate", "0..1"),
    "compiled": Parameter("compiled", "bool", False, "also measure under torch.compile"),
    "nodes": Parameter("nodes", "list[int]", [100, 500], "graph sizes, nodes", "1.."),
    "rates": Parameter("rates", "list[float]", [], "learning rates to try, none is all; nodes/edges"),
    "kinds": Parameter("kinds", "list[str]", ["lap"], "encodings", "lap|rwse|none"),
    "output_dir": Parameter("output_dir", "str", "outputs/x=y", "where results go"),
}


def declaring(path, source=DECLARATIONS, **options):
    return small_notebooks.write(path / "01_x.ipynb", source, "a = 1", **options)


# ---- what a parameter cell declares


def test_a_declaration_gives_name_type_default_meaning_and_limits(tmp_path):
    declared = discovery.declared(declaring(tmp_path))
    assert declared == DECLARED and list(declared) == list(DECLARED)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("x: int = open('executed', 'w')  # m", "does not read"),  # it is read, and not executed
        ("x: int = 5", "does not read"),
        ("x: str = 'a#b'  # m", "does not read"),
        ("x: int = 5  # m; 6..9", "x: got 5; allowed is a whole number, 6..9"),
        ("x: str = 'a'  # m; b|c", "x: got 'a'; allowed is a text, b|c"),
        ("x: list[int] = 5  # m", "x: got 5; allowed is a list as [a, b], of a whole number each"),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_with_what_is_wrong(tmp_path, monkeypatch, line, part):
    monkeypatch.chdir(tmp_path)
    message = refused(discovery.declared, declaring(tmp_path, line))
    assert message.startswith("01_x.ipynb, cell 'parameters': ") and part in message
    assert not (tmp_path / "executed").exists()


def test_a_file_of_another_kind_or_without_its_one_parameters_cell_is_refused(tmp_path):
    for content in (b"", b"\xff\xfe"):
        (tmp_path / "01_x.ipynb").write_bytes(content)
        assert "01_x.ipynb is not a notebook" in refused(discovery.declared, tmp_path / "01_x.ipynb")
    assert "0 cells tagged 'parameters'" in refused(discovery.declared, declaring(tmp_path, tags=()))


@pytest.mark.parametrize(
    ("name", "given", "understood"),
    [
        ("rate", "1e-3", 0.001),
        ("hidden", 64.0, 64),
        ("hidden", "1e3", 1000),
        ("hidden", "1_000", 1000),
        ("compiled", True, True),
        ("compiled", "true", True),
        ("nodes", (1, "2"), [1, 2]),
        ("nodes", "[1, 2]", [1, 2]),  # from a command line
        ("graph", "'a: b'", "'a: b'"),
        ("nodes", [2**60 + 1], [2**60 + 1]),
        ("rates", [], []),
    ],
)
def test_values_are_understood_by_their_type(name, given, understood):
    value = discovery.check_parameters({name: given}, DECLARED)[name]
    assert value == understood and type(value) is type(understood)


@pytest.mark.parametrize(
    ("name", "given", "part"),
    [
        ("hidden", "abc", "hidden: got 'abc'; allowed is a whole number, 8..1024"),
        ("hidden", 4, "got 4; allowed is"),
        ("hidden", True, "got True; allowed is a whole number"),
        ("rate", math.nan, "got nan; allowed is a number, 0..1"),
        ("compiled", "yes", "got 'yes'; allowed is true or false"),
        ("local", "gcnn", "got 'gcnn'; allowed is a text, gin|gat|gcn"),
        ("graph", 5, "got 5; allowed is a text"),
        ("nodes", [], "got []; allowed is a list"),
        ("nodes", "[1,", "got '[1,'; allowed is a list"),
        ("nodes", "[" * 5000, "...; allowed is a list"),
        ("hidden", "１２８", "got '１２８'; allowed is a whole number"),
        ("hidden", "1_28", "got '1_28'; allowed is a whole number"),
        ("nodes", "[１]", "got '１'; allowed is a whole number"),
        ("rate", "0.٥", "got '0.٥'; allowed is a number"),
        ("nodes", [1, 0], "got 0; allowed is a whole number, 1.."),
        ("hiden", 1, "unknown parameter 'hiden' (did you mean hidden?)"),
        (5, 1, "unknown parameter 5; known are graph, local"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_allowed(name, given, part):
    message = refused(discovery.check_parameters, {name: given}, DECLARED)
    assert part in message and len(message) < 300


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates())


@given(st.sampled_from(["hidden", "rate", "compiled", "graph", "local", "nodes", "kinds"]), PLAIN | st.lists(PLAIN))
def test_any_value_is_understood_or_refused_and_never_passed_on(name, value):
    parameter = DECLARED[name]
    try:
        understood = parameter.understood(value)
    except GnnlabError as error:
        assert len(str(error).splitlines()) == 1
    else:
        choices, (low, _, high) = parameter.allowed.split("|"), parameter.allowed.partition("..")
        for item in understood if parameter.type.startswith("list") else [understood]:
            assert type(item).__name__ in parameter.type
            assert item in choices if len(choices) > 1 else not low or float(low) <= item <= float(high or math.inf)


# ---- parameter files, and the command line


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"- 1", "no `name: value` lines"),
        (b"hidden: [1", 'not YAML in UTF-8 (while parsing a flow sequence in "<unicode string>", line 1'),
        (b"\xff\x00", "not YAML in UTF-8"),
        (b"hidden: 9\x00", "not YAML in UTF-8"),
        (b"nodes: " + b"[" * 5000, "not YAML in UTF-8"),
        (b"hidden: 9\nhidden: 10", "a name stands twice; it has hidden, hidden"),
        (b"hidden: 4", "hidden: got '4'"),
        (b"hiden: 9", "did you mean hidden?"),
    ],
)
def test_a_bad_parameter_file_is_named(tmp_path, content, part):
    (tmp_path / "a.yaml").write_bytes(content)
    message = refused(discovery.read_parameters, tmp_path / "a.yaml", DECLARED)
    assert str(tmp_path / "a.yaml") in message and part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# none", {}),
        ("\ufeffhidden: 128\r\nrates: [1e-3, 0.5]\r\n", {"hidden": 128, "rates": [0.001, 0.5]}),
        ("graph: '1'\ncompiled: true\nhidden: 010", {"graph": "1", "compiled": True, "hidden": 10}),
        ("graph: 1:30\noutput_dir: yes", {"graph": "1:30", "output_dir": "yes"}),
        ("graph: random:nodes=10\noutput_dir: C:\\x", {"graph": "random:nodes=10", "output_dir": "C:\\x"}),
    ],
)
def test_the_declared_type_says_what_a_value_in_a_file_is(tmp_path, text, expected):
    (tmp_path / "a.yaml").write_bytes(text.encode())
    declared = DECLARED | {"hidden": Parameter("hidden", "int", 64, "")}
    assert discovery.read_parameters(tmp_path / "a.yaml", declared) == expected


# ---- a notebook that papermill runs alone


def executed(injected=""):
    """The namespace of a kernel after its parameter cells."""
    namespace = {"In": ["", DECLARATIONS, injected]}
    exec(DECLARATIONS + injected, namespace)
    return namespace


def test_a_namespace_gives_the_declared_parameters_understood_and_none_that_are_not_declared():
    values = discovery.from_namespace(executed('# Parameters\nrate = "1e-2"\nhidden = 16\n'), DECLARED)
    assert values == {name: parameter.default for name, parameter in DECLARED.items()} | {"rate": 0.01, "hidden": 16}
    namespace = executed("# Parameters\nhiden = 16\n")
    assert "did you mean hidden?" in refused(discovery.from_namespace, namespace, DECLARED)
    assert "graph has no value" in refused(discovery.from_namespace, {}, DECLARED)
