"""The strict check of parameters: a clear line for the reader, or values that fit; never anything else."""

import functools
import math
import tempfile
from pathlib import Path

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
graph: str = "digits"            # a built-in name, a PyG dataset or a path
local: str = "gin"               # local message passing; gin|gat|gcn
hidden: int = 64                 # channels of a hidden layer; 8..1024
rate: float = 1e-3               # learning rate (0..1)
seed: int = -1                   # of the random numbers

compiled: bool = False           # also measure under torch.compile
nodes: list[int] = [100, 500]    # graph sizes, nodes; 1..
rates: list[float] = []          # learning rates to try, 0..1.
kinds: list[str] = ["lap"]       # encodings, lap|rwse|none
heads: int = 4                   # attention heads; 1|2|4|8
output_dir: str = "outputs/x y"  # where results go
"""


def notebook(path, source=CELL, **options):
    return small_notebooks.write(path, source, "a = 1", **options)


@functools.cache
def declared_by_cell():
    with tempfile.TemporaryDirectory() as folder:
        return parameters.declared(notebook(Path(folder) / "01_x.ipynb"))


@pytest.fixture
def declared():
    return declared_by_cell()


# ---- the declaration


def test_a_declaration_gives_name_type_default_meaning_and_limits(declared):
    assert list(declared)[:4] == ["graph", "local", "hidden", "rate"]
    assert declared["graph"] == Parameter("graph", "str", "digits", "a built-in name, a PyG dataset or a path")
    assert declared["hidden"] == Parameter("hidden", "int", 64, "channels of a hidden layer", 8, 1024)
    assert declared["rate"] == Parameter("rate", "float", 1e-3, "learning rate", 0.0, 1.0)
    assert declared["heads"] == Parameter("heads", "int", 4, "attention heads", choices=(1, 2, 4, 8))
    assert declared["nodes"] == Parameter("nodes", "list[int]", [100, 500], "graph sizes, nodes", 1)
    assert declared["rates"].default == [] and declared["rates"].high == 1.0 and declared["seed"].default == -1
    assert declared["local"].choices == ("gin", "gat", "gcn") and declared["output_dir"].default == "outputs/x y"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("x: int = open('f').read()  # m", "not a literal"),
        ("x = 5  # m", "not of the form"),
        ("x: dict = {}  # m", "type 'dict'"),
        ("x: int = 5", "no comment"),
        ("x: int = 5  # m; 6..9", "from 6 to 9"),
        ("x: int = 5  # m; 0.5..9", "a range or choice in the comment of x: got '0.5'"),
        ("x: str = 'a'  # m; b|c", "one of b, c"),
        ("x: int = 2.5  # m", "a whole number"),
        ("x: float = True  # m", "a number"),
        ("x: list[int] = 5  # m", "a list of whole numbers"),
        ("x: int = 5  # m\nx: int = 6  # m", "each name once"),
        ("%matplotlib inline", "not of the form"),
        ("x: str = 'a#b'  # m", "not a literal without '#'"),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_with_what_is_wrong(tmp_path, line, part):
    message = refused(parameters.declared, notebook(tmp_path / "01_x.ipynb", line))
    assert "01_x.ipynb" in message and part in message


def test_a_declaration_is_read_and_not_executed(tmp_path):
    witness = tmp_path / "executed"
    refused(parameters.declared, notebook(tmp_path / "01_x.ipynb", f"x: int = len([open({str(witness)!r}, 'w')])  # m"))
    assert not witness.exists()


def test_a_file_of_another_kind_or_without_its_one_parameters_cell_is_refused(tmp_path):
    path = tmp_path / "01_x.ipynb"
    for content in (b"", b"\xff\xfe"):
        path.write_bytes(content)
        assert "01_x.ipynb is not a notebook" in refused(parameters.declared, path)
    assert "0 cells tagged 'parameters'" in refused(parameters.declared, notebook(path, tags=()))


# ---- the check


@pytest.mark.parametrize(
    ("name", "given", "understood"),
    [
        ("rate", "1e-3", 0.001),
        ("rate", 1, 1.0),
        ("hidden", 64.0, 64),
        ("hidden", "1_000", 1000),
        ("compiled", True, True),
        ("nodes", (1, "2"), [1, 2]),
        ("rates", [], []),
        ("rates", [0, "1e-2"], [0.0, 0.01]),
        ("graph", "a b", "a b"),
        ("heads", "8", 8),
    ],
)
def test_values_are_understood_by_their_type(declared, name, given, understood):
    value = parameters.check({name: given}, declared)[name]
    assert value == understood
    assert type(value) is type(understood)


@pytest.mark.parametrize(
    ("name", "given", "part"),
    [
        ("hidden", "abc", "hidden: got 'abc'; allowed is a whole number from 8 to 1,024"),
        ("hidden", 4, "got 4; allowed is a whole number from 8 to 1,024"),
        ("hidden", True, "got True; allowed is a whole number"),
        ("rate", math.nan, "got nan"),
        ("compiled", "yes", "true or false"),
        ("local", "gcnn", "one of gin, gat, gcn"),
        ("graph", 5, "got 5; allowed is a text"),
        ("nodes", 5, "got 5; allowed is a list of whole numbers"),
        ("nodes", [], "at least one"),
        ("nodes", [1, 0], "got 0; allowed is a list of whole numbers, at least one, from 1 up"),
        ("kinds", ["lap", "x"], "got 'x'; allowed is a list of at least one of: lap, rwse, none"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_allowed(declared, name, given, part):
    message = refused(parameters.check, {name: given}, declared)
    assert message.startswith(name) and part in message and len(message) < 300


@pytest.mark.parametrize("name", ["hiden", "Hidden", "", 5, None, ("a",)])
def test_an_unknown_name_is_refused_and_the_closest_named(declared, name):
    told = refused(parameters.check, {name: 1}, declared)
    assert "unknown parameter" in told and ("did you mean hidden?" in told) == (name in ("hiden", "Hidden"))


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates())


@given(st.sampled_from(["hidden", "rate", "compiled", "graph", "local", "nodes", "kinds"]), PLAIN | st.lists(PLAIN))
def test_any_value_is_understood_or_refused_and_never_passed_on(name, value):
    parameter = declared_by_cell()[name]
    try:
        understood = parameter.understood(value)
    except GnnlabError as error:
        assert len(str(error).splitlines()) == 1
    else:
        for item in understood if parameter.is_list else [understood]:
            assert type(item) is parameters.TYPES[parameter.element]
            assert parameter.low is None or parameter.low <= item <= (parameter.high or math.inf)
            assert not parameter.choices or item in parameter.choices


# ---- parameter files


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"- 1", "no `name: value` lines"),
        (b"a: [1", "not YAML"),
        (b"\xff\x00", "not UTF-8"),
        (b"a: 1\na: 2", "duplicate key"),
    ],
)
def test_a_bad_parameter_file_is_named(tmp_path, content, part):
    (tmp_path / "a.yaml").write_bytes(content)
    message = refused(parameters.load_yaml, tmp_path / "a.yaml")
    assert str(tmp_path / "a.yaml") in message and part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("---\n", {}),
        ("\ufeffhidden: 128\r\nrates: [1e-3, 0.5]\r\n", {"hidden": 128, "rates": [0.001, 0.5]}),
        ("a: [1, 2]\nb:\n  - x\n  - y", {"a": [1, 2], "b": ["x", "y"]}),
        ("a: '1'\nb: true\nc: 1:30\nd: yes\ne: 010", {"a": "1", "b": True, "c": "1:30", "d": "yes", "e": 10}),
        (
            "a: random:nodes=10,edges=5\nb: C:\\graphs\\x.npz",
            {"a": "random:nodes=10,edges=5", "b": "C:\\graphs\\x.npz"},
        ),
    ],
)
def test_a_parameter_file_is_read_as_yaml_1_2(tmp_path, text, expected):
    (tmp_path / "a.yaml").write_bytes(text.encode())
    assert parameters.load_yaml(tmp_path / "a.yaml") == expected


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hidden", "128", 128),
        ("nodes", "[1, 2]", [1, 2]),
        ("graph", "a: b", "a: b"),
        ("graph", "5", "5"),
        ("graph", "'quoted'", "'quoted'"),
        ("graph", "", ""),
        ("compiled", "true", True),
        ("rate", "1e-3", 1e-3),
    ],
)
def test_a_value_on_a_command_line_is_read_by_its_type(declared, name, text, value):
    assert parameters.parse(text, declared[name]) == value
    assert "nodes: got '[1,'" in refused(parameters.parse, "[1,", declared["nodes"])


# ---- a notebook that papermill runs alone


def executed(declared, injected=""):
    """The namespace of a kernel after its parameter cells."""
    namespace = {"In": ["", CELL]}
    exec(CELL, namespace)
    if injected:
        namespace["In"].append(injected)
        exec(injected, namespace)
    return namespace


def test_a_namespace_gives_the_declared_parameters_understood_and_none_that_are_not_declared(declared):
    values = parameters.from_namespace(executed(declared, '# Parameters\nrate = "1e-2"\nhidden = 16\n'), declared)
    assert values["rate"] == 0.01 and values["hidden"] == 16 and values["graph"] == "digits"
    assert list(values) == list(declared)
    namespace = executed(declared, "# Parameters\nhiden = 16\n")
    assert "did you mean hidden?" in refused(parameters.from_namespace, namespace, declared)
    assert "graph has no value" in refused(parameters.from_namespace, {}, declared)
