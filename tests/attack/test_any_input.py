"""Whole inputs as people and programs write them give what a naive reader of them gives, or one line; no traceback.

Files of graphs and tables have their own tests beside their readers.
"""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnlab import cli
from gnnlab.commands import infer
from gnnlab.errors import GnnlabError
from gnnlab.inference.predictor import Predictor
from gnnlab.lab import discovery, parameters
from gnnlab.rewrite import claim_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
MANY = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


def given_or_refused(call):
    """What a call gives; None where it is refused in one line."""
    try:
        return call()
    except GnnlabError as error:
        assert len(str(error).splitlines()) == 1


@MANY
@given(st.data())
def test_parameters_of_every_notebook_are_of_their_type_and_range_or_refused(data):
    declared = data.draw(st.sampled_from(list(discovery.notebooks(ROOT).values()))).declared
    one = declared[data.draw(st.sampled_from(sorted(declared)))]
    value, text = data.draw(VALUES), data.draw(st.text(max_size=20))
    kind = {"int": int, "float": (int, float), "str": str, "bool": bool}[one.element]
    for make in (lambda: value, lambda: parameters.parse(text, one)):
        checked = given_or_refused(lambda make=make: parameters.check({one.name: make()}, declared))
        if checked is not None:
            for element in checked[one.name] if one.is_list else [checked[one.name]]:
                assert isinstance(element, kind) and (not one.choices or element in one.choices)
                assert one.low is None or one.low <= element <= (math.inf if one.high is None else one.high)


@pytest.fixture(scope="module")
def predictor():
    return Predictor("hybrid", "cpu")


@MANY
@given(st.data())
def test_states_are_answered_as_when_asked_alone_or_each_bad_one_says_why(predictor, data):
    good = (ROOT / "examples/states.jsonl").read_text(encoding="utf-8").splitlines()
    lines = data.draw(st.lists(st.sampled_from(good), min_size=1, max_size=4))
    changed = json.loads(lines[0])
    node = data.draw(st.sampled_from(changed["nodes"]))
    node[data.draw(st.sampled_from([*node, "other"]))] = data.draw(VALUES)
    lines += [json.dumps(data.draw(st.sampled_from([changed, data.draw(VALUES)]))), "no JSON"]
    answers = {answer["line"]: answer for answer in infer.answer_together(predictor, [line.encode() for line in lines])}
    assert set(answers) <= set(range(1, len(lines) + 1))
    for number, line in enumerate(lines, start=1):
        if line in good:
            assert answers[number]["node"] == predictor.predict(json.loads(line)).node
        elif "error" in answers.get(number, {}):
            assert len(answers[number]["error"].splitlines()) == 1


CODE = ("1", "None", "lambda x: x", "'1.5x'", "'half'", "(1,)", "{}", "[]", "1/0", "undefined", "print", "float('nan')")
FIELDS = ("before", "after", "inputs", "claim", "mode", "tolerance")


@MANY
@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, st.sampled_from(CODE) | st.text(max_size=12))))
def test_a_claim_file_is_understood_or_refused_in_one_line(tmp_path, fields):
    text = "\n".join(f"{name} = {value}" for name, value in fields.items())
    path = tmp_path / "clàim.py"
    path.write_text(text, encoding="utf-8", errors="replace")
    read = given_or_refused(lambda: claim_file.read(path))
    assert read is None or (callable(read.before) and callable(read.after) and 0 <= read.tolerance < 1)


WORDS = ("params", "claims", "compare", "--json", "quick", "01", "99", "--params", "-p", "--", "é", "\udcff", "\0")


@MANY
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=4))
def test_any_words_of_a_command_line_are_understood_or_refused(capsys, monkeypatch, words):
    """Of a command that reads; what would be run is not."""
    monkeypatch.chdir(ROOT)
    code = cli.main(["params", *words])
    err = capsys.readouterr().err
    assert code in (0, 2) and (code == 0 or len(err.splitlines()) == 1), err
