"""Flat YAML: what is read, what is refused, and that nothing else can happen."""

import math
import re
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.lab import flat_yaml
from gnnlab.lab.flat_yaml import FlatYamlError

ALPHABET = st.sampled_from("ab01:-#[]{},&*!|>'\"%@`?<\\ \n\t.e~=/\x00\x85\ufeff\ud800é")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# only a comment\n", {}),
        ("---\n", {}),
        ("a: 1\nb: 2.5  # comment\nc: gin", {"a": 1, "b": 2.5, "c": "gin"}),
        ("a: [1, 2]\nb:\n  - x\n  - y", {"a": [1, 2], "b": ["x", "y"]}),
        ("a: []", {"a": []}),
        ("a: 1e-3\nb: 1E5\nc: .5\nd: 1_000\ne: -7", {"a": 0.001, "b": 1e5, "c": 0.5, "d": 1000, "e": -7}),
        ("a: '1'\nb: \"true\"", {"a": "1", "b": "true"}),
        ("a: true\nb: False\nc: ~\nd:", {"a": True, "b": False, "c": None, "d": None}),
        ("a: 010\nb: 1:30\nc: yes\nd: 2026-01-02", {"a": "010", "b": "1:30", "c": "yes", "d": "2026-01-02"}),
        (
            "a: random:nodes=10,edges=5\nb: C:\\graphs\\x.npz",
            {"a": "random:nodes=10,edges=5", "b": "C:\\graphs\\x.npz"},
        ),
    ],
)
def test_name_value_lines_are_read(text, expected):
    assert flat_yaml.mapping(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("- 1", "no `name: value` lines"),
        ("just words", "no `name: value` lines"),
        ("a: 1\na: 2", "line 2: 'a' is given twice"),
        ("a: 1\nb: {c: 1}", "line 2: only single values"),
        ("a: [[1]]", "nothing nested"),
        ("a: [{b: 1}]", "nothing nested"),
        ("a: &x 1\nb: *x", "line 1: anchors"),
        ("a: !!python/object:os.system x", "line 1: tags"),
        ("a: !!timestamp x", "line 1: tags"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("a: [1", "not YAML"),
        ("a: 1\n b: 2", "line 2: not YAML"),
        ("a: 1\nb: \x00", "line 2: the character U+0000"),
        ('a: "\\UFFFFFFFF"', "not YAML"),
        ('a: "\\uD800"', "surrogate"),
        ("? [a]\n: 1", "a name must be a plain word"),
    ],
)
def test_anything_else_is_refused_with_its_line(text, part):
    with pytest.raises(FlatYamlError) as refusal:
        flat_yaml.mapping(text)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["[" * 60_000, "a: " + "{" * 60_000, "- " * 30_000, "a: &a [" + "*a, " * 10_000])
def test_hostile_nesting_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(FlatYamlError):
        flat_yaml.mapping(text)
    assert time.process_time() - start < 5  # it took minutes if it were read to its end


@given(st.text(ALPHABET, max_size=60) | st.text(max_size=60))
def test_no_text_makes_anything_but_a_flat_yaml_error(text):
    for read in (flat_yaml.mapping, flat_yaml.value):
        try:
            read(text)
        except FlatYamlError as error:
            assert len(str(error).splitlines()) == 1


EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")  # 1e-3 is a number to everybody but YAML 1.1 and this library
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: not EXPONENT.fullmatch(text)),
)


@given(st.dictionaries(st.text("abcxyz_", min_size=1, max_size=8), SCALARS | st.lists(SCALARS, max_size=4), max_size=5))
def test_what_a_yaml_library_writes_is_read_back(values):
    assert flat_yaml.mapping(yaml.safe_dump(values)) == values


def test_a_number_is_a_number_however_it_is_written():
    assert flat_yaml.scalar("1e-3") == 1e-3
    assert isinstance(flat_yaml.scalar("1e3"), float)
    assert isinstance(flat_yaml.scalar("+12"), int)
    assert math.isnan(flat_yaml.scalar(".nan"))
    assert flat_yaml.scalar("-.inf") == -math.inf
    assert flat_yaml.scalar("1" * 5000) == "1" * 5000
    for text in ("1e", "e5", ".", "0x1f", "1__0", "1,5", "½", "٣"):
        assert flat_yaml.scalar(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("-1e-3", -1e-3),
        ("[1, gin]", [1, "gin"]),
        ("", None),
        ("a b", "a b"),
        ("lrgb:P[0:32]", "lrgb:P[0:32]"),
    ],
)
def test_a_single_value_is_read_as_on_a_command_line(text, expected):
    assert flat_yaml.value(text) == expected


@pytest.mark.parametrize("text", ["a: b", "[", "[[1]]", "1\n---\n2"])
def test_more_than_a_single_value_is_refused(text):
    with pytest.raises(FlatYamlError):
        flat_yaml.value(text)
