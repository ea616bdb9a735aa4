"""The strict check of parameters: a clear line for the reader, or values that fit; never anything else."""

import math

import pytest
import small_notebooks
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal as refused

from gnnlab.errors import GnnlabError
from gnnlab.lab import parameters
from gnnlab.lab.parameters import Parameter

CELL = """\
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


def notebook(path, source=CELL, **options):
    return small_notebooks.write(path / "01_x.ipynb", source, "a = 1", **options)


# ---- the declaration


def test_a_declaration_gives_name_type_default_meaning_and_limits(tmp_path):
    declared = parameters.declared(notebook(tmp_path))
    assert declared == DECLARED and list(declared) == list(DECLARED)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("x: int = open('executed', 'w')  # m", "not of the form"),  # it is read, and not executed
        ("x = 5  # m", "not of the form"),
        ("x: int = 5", "not of the form"),
        ("%matplotlib inline", "not of the form"),
        ("x: str = 'a#b'  # m", "not of the form"),
        ("x: int = 5  # m; 6..9", "x: got 5; allowed is a whole number, 6..9"),
        ("x: str = 'a'  # m; b|c", "x: got 'a'; allowed is a text, b|c"),
        ("x: list[int] = 5  # m", "x: got 5; allowed is a list as [a, b], of a whole number each"),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_with_what_is_wrong(tmp_path, monkeypatch, line, part):
    monkeypatch.chdir(tmp_path)
    message = refused(parameters.declared, notebook(tmp_path, line))
    assert message.startswith("01_x.ipynb, cell 'parameters': ") and part in message
    assert not (tmp_path / "executed").exists()


def test_a_file_of_another_kind_or_without_its_one_parameters_cell_is_refused(tmp_path):
    for content in (b"", b"\xff\xfe"):
        (tmp_path / "01_x.ipynb").write_bytes(content)
        assert "01_x.ipynb is not a notebook" in refused(parameters.declared, tmp_path / "01_x.ipynb")
    assert "0 cells tagged 'parameters'" in refused(parameters.declared, notebook(tmp_path, tags=()))


# ---- the check


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
    value = parameters.check({name: given}, DECLARED)[name]
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
        ("nodes", [1, 0], "got 0; allowed is a whole number, 1.."),
        ("hiden", 1, "unknown parameter 'hiden' (did you mean hidden?)"),
        (5, 1, "unknown parameter 5; known are graph, local"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_allowed(name, given, part):
    message = refused(parameters.check, {name: given}, DECLARED)
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
        (b"hidden: 9\nhidden: 10", "a name stands twice; it has hidden, hidden"),
        (b"hidden: 4", "hidden: got '4'"),
        (b"hiden: 9", "did you mean hidden?"),
    ],
)
def test_a_bad_parameter_file_is_named(tmp_path, content, part):
    (tmp_path / "a.yaml").write_bytes(content)
    message = refused(parameters.read, tmp_path / "a.yaml", DECLARED)
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
    assert parameters.read(tmp_path / "a.yaml", DECLARED | {"hidden": Parameter("hidden", "int", 64, "")}) == expected


# ---- a notebook that papermill runs alone


def executed(injected=""):
    """The namespace of a kernel after its parameter cells."""
    namespace = {"In": ["", CELL, injected]}
    exec(CELL + injected, namespace)
    return namespace


def test_a_namespace_gives_the_declared_parameters_understood_and_none_that_are_not_declared():
    values = parameters.from_namespace(executed('# Parameters\nrate = "1e-2"\nhidden = 16\n'), DECLARED)
    assert values == {name: parameter.default for name, parameter in DECLARED.items()} | {"rate": 0.01, "hidden": 16}
    namespace = executed("# Parameters\nhiden = 16\n")
    assert "did you mean hidden?" in refused(parameters.from_namespace, namespace, DECLARED)
    assert "graph has no value" in refused(parameters.from_namespace, {}, DECLARED)
