"""Any input gives what a naive reader of it gives, or one line; never a traceback, and within a time.

Properties of single readers stand beside their tests; here are whole inputs as people and programs write them.
"""

import csv
import io
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from gnnlab import cli
from gnnlab.commands import infer
from gnnlab.errors import GnnlabError
from gnnlab.inference.predictor import Predictor
from gnnlab.lab import discovery, parameters
from gnnlab.lab.claims import Claim, Rule
from gnnlab.rewrite import claim_file
from gnnlab.workloads import graph_files, table_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
AWKWARD = [
    "",
    " ",
    "a",
    "é",
    "名",
    "0",
    "1",
    "-1",
    "007",
    "1e3",
    "nan",
    "inf",
    "NULL",
    "a,b",
    'q"',
    "x\ny",
    ";",
    "\u2028",
]
CELLS = st.sampled_from(AWKWARD) | st.text(max_size=6)


@pytest.fixture
def attack(number):
    """Runs a property `number` times from the attack's seed."""
    first = int(os.environ.get("ATTACK_SEED", "1"))

    def run(property_):
        seed(first)(settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))(property_))()

    return run


def one_line(error):
    return len(str(error).splitlines()) == 1


def counted(tally, name, call, check):
    """Count what becomes of a call: a value that `check` holds against the oracle, or one line."""
    try:
        found = call()
    except GnnlabError as error:
        outcome = "survived" if one_line(error) else "lost"
    except Exception:
        tally[name]["lost"] += 1
        raise
    else:
        outcome = "survived" if check(found) else "invented"
    tally[name][outcome] += 1
    assert outcome == "survived"


# ---- graphs -------------------------------------------------------------------------------------------------------


def test_edge_lists_are_the_edges_that_stand_in_them(tmp_path, attack, tally):
    path = tmp_path / "gräph 名.csv"

    @given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12))
    def property_(edges):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("source", "target"), *edges])
        path.write_text(text.getvalue(), encoding="utf-8", newline="")

        def same(found):
            ends = [(a.strip(), b.strip()) for a, b in edges if a.strip() or b.strip()]
            names = list(dict.fromkeys([a for a, _ in ends] + [b for _, b in ends]))
            whole = all(ascii_digits(name) for name in names)
            number = {name: int(name) for name in names} if whole else {name: name for name in names}
            given_, read = [(number[a], number[b]) for a, b in ends], found.edge_index.t().tolist()
            same_ends = len(set(number.values())) == found.num_nodes and len(given_) == len(read)
            return same_ends and len({*zip(given_, map(tuple, read), strict=True)}) == len({*given_}) == len(
                {*map(tuple, read)}
            )

        counted(tally, "edge list", lambda: graph_files.read(path), same)

    attack(property_)


def ascii_digits(name):
    digits = name.lstrip("+-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18 and len(name) - len(digits) <= 1


ARRAYS = st.lists(st.integers(-2, 6), max_size=8)


def test_npz_arrays_are_a_graph_that_holds_together_or_refused(tmp_path, attack, tally):
    path = tmp_path / "g.npz"

    @given(ARRAYS, ARRAYS, st.lists(st.integers(-1, 7), max_size=3), st.lists(st.floats(width=32), max_size=8))
    def property_(indices, indptr, shape, values):
        names = ("adj_indices", "adj_indptr", "adj_shape", "adj_data")
        np.savez(path, **dict(zip(names, map(np.array, (indices, indptr, shape, values)), strict=True)))

        def same(found):
            dense = np.zeros(shape)
            for row in range(shape[0]):
                for place in range(indptr[row], indptr[row + 1]):
                    dense[row, indices[place]] += values[place]
            weight = found.edge_weight.numpy() if found.edge_weight is not None else np.ones(found.num_edges)
            read = np.zeros(shape)
            np.add.at(read, tuple(found.edge_index.numpy()), weight)
            return np.allclose(read, dense, rtol=1e-5) and found.num_nodes == shape[0]

        counted(tally, "npz", lambda: graph_files.read(path), same)

    attack(property_)


def test_graphml_with_one_element_changed_is_a_graph_or_one_line(tmp_path, attack, tally):
    whole = (
        '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="w" for="edge" '
        'attr.name="weight" attr.type="double"/><graph edgedefault="undirected"><node id="a"/><node id="b"/>'
        '<edge source="a" target="b"><data key="w">0.5</data></edge></graph></graphml>'
    )
    pieces = st.sampled_from(
        ["", "<node/>", "undirected", "double", "&x;", "<edge>", "9e999", "long", "-", "<![CDATA[", "名"]
    )
    path = tmp_path / "g.graphml"

    def sound(found):
        ends, weight = found.edge_index, found.edge_weight
        within = not ends.numel() or (int(ends.min()) >= 0 and int(ends.max()) < found.num_nodes)
        return within and (weight is None or bool(torch.isfinite(weight).all()))

    @given(st.integers(0, len(whole)), st.integers(0, 30), pieces)
    def property_(start, length, piece):
        path.write_text(whole[:start] + piece + whole[start + length :], encoding="utf-8")
        counted(tally, "GraphML", lambda: graph_files.read(path), sound)

    attack(property_)


# ---- tables -------------------------------------------------------------------------------------------------------


def test_tables_number_the_values_that_stand_in_them(tmp_path, attack, tally):
    path = tmp_path / "täbelle.csv"

    @given(
        st.lists(st.tuples(CELLS, CELLS, st.sampled_from(["yes", "no", "", "NA", "yes;no"])), min_size=1, max_size=20)
    )
    def property_(rows):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("a", "b", "t"), *rows])
        path.write_text(text.getvalue(), encoding="utf-8", newline="")

        def same(found):
            kept = [row for row in rows if row[2].strip() not in table_files.MISSING]
            for place, name in enumerate(found.field_names):
                column = [row["ab".index(name)].strip() for row in kept]
                codes = found.fields[:, place].tolist()
                if len(codes) != len(column):
                    return False
                if any((code == 0) != (cell in table_files.MISSING) for code, cell in zip(codes, column, strict=True)):
                    return False
                pairs = {(code, cell) for code, cell in zip(codes, column, strict=True) if code}
                if len(pairs) < len({code for code, _ in pairs}) or len({code for code, _ in pairs}) > len(
                    {cell for _, cell in pairs}
                ):
                    return False
            return True

        counted(tally, "table", lambda: table_files.load(path, fields=["a", "b"], targets=["t"]), same)

    attack(property_)


# ---- parameters -----------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


def test_parameters_of_every_notebook_are_of_their_type_and_range_or_refused(attack, tally):
    notebooks = list(discovery.notebooks(ROOT).values())
    kinds = {"int": int, "float": (int, float), "str": str, "bool": bool}

    @given(st.data())
    def property_(data):
        declared = data.draw(st.sampled_from(notebooks)).declared
        name = data.draw(st.sampled_from(sorted(declared)))
        one, value = declared[name], data.draw(VALUES)

        def fits(found):
            each = found[name] if one.is_list else [found[name]]
            for element in each:
                if not isinstance(element, kinds[one.element]) or (one.choices and element not in one.choices):
                    return False
                if one.low is not None and not one.low <= element <= (math.inf if one.high is None else one.high):
                    return False
            return True

        counted(tally, "parameter", lambda: parameters.check({name: value}, declared), fits)
        text = data.draw(st.text(max_size=20))
        counted(
            tally, "parameter, written", lambda: parameters.check({name: parameters.parse(text, one)}, declared), fits
        )

    attack(property_)


# ---- states and claims ----------------------------------------------------------------------------------------------


def test_states_are_answered_as_when_asked_alone_or_each_bad_one_says_why(attack, tally):
    predictor = Predictor("hybrid", "cpu")
    good = [json.loads(line) for line in (ROOT / "examples/states.jsonl").read_text(encoding="utf-8").splitlines()]
    alone = {json.dumps(state): predictor.predict(state).node for state in good}

    @given(st.data())
    def property_(data):
        states = []
        for _ in range(data.draw(st.integers(1, 4))):
            state = json.loads(json.dumps(data.draw(st.sampled_from(good))))
            if data.draw(st.booleans()):
                node = data.draw(st.sampled_from(state["nodes"]))
                node[data.draw(st.sampled_from([*node, "other"]))] = data.draw(VALUES)
            states.append(data.draw(st.sampled_from([state, state, state, data.draw(VALUES)])))
        lines = [json.dumps(state).encode() for state in states]
        lines.insert(
            data.draw(st.integers(0, len(lines))), data.draw(st.binary(max_size=10)).replace(b"\n", b"") or b"x"
        )

        def right(answers):
            answered = {answer["line"]: answer for answer in answers}
            for number, line in enumerate(lines, start=1):
                answer = answered.get(number)
                known = alone.get(json.dumps(json.loads(line))) if is_json(line) else None
                if known is not None and (answer is None or answer.get("node") != known):
                    return False
                if answer and "error" in answer and len(answer["error"].splitlines()) != 1:
                    return False
            return set(answered) <= set(range(1, len(lines) + 1))

        counted(tally, "states", lambda: list(infer.answer_together(predictor, lines)), right)

    attack(property_)


def is_json(line):
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def test_a_claim_file_is_understood_or_refused_in_one_line(tmp_path, attack, tally):
    path = tmp_path / "clàim.py"
    values = st.sampled_from(
        [
            "1",
            "None",
            "lambda x: x",
            "'1.5x'",
            "'half'",
            "(1,)",
            "{}",
            "[]",
            "1/0",
            "undefined",
            "print",
            "float('nan')",
        ]
    ) | st.text(max_size=12)

    @given(st.fixed_dictionaries(dict.fromkeys(("before", "after", "inputs", "claim", "mode", "tolerance"), values)))
    def property_(fields):
        text = "\n".join(f"{name} = {value}" for name, value in fields.items())
        path.write_text(text, encoding="utf-8", errors="replace")

        def understood(found):
            return callable(found.before) and callable(found.after) and 0 <= found.tolerance < 1

        counted(tally, "claim file", lambda: claim_file.read(path), understood)

    attack(property_)


def test_a_row_of_the_catalogue_with_anything_in_it_is_a_claim_or_refused(attack, tally):
    names = ["id", "notebook", "metric", "statement", "of", "claimed", "margin", "at_least", "processor"]
    plain = {
        "id": "a",
        "notebook": "01",
        "metric": "ratio",
        "statement": "s",
        "of": {"study": "x"},
        "claimed": [1.5, 2],
    }

    @given(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    def property_(changes):
        try:
            found = Claim(**{**plain, **changes})
        except ValueError:  # pydantic's, which a test of the catalogue shows whole
            tally["claims.yaml"]["survived"] += 1
            return
        sound = isinstance(found.of, Rule) and (found.bounds is None or len(found.bounds) == 2)
        tally["claims.yaml"]["survived" if sound else "invented"] += 1
        assert sound

    attack(property_)


def test_any_words_of_a_command_line_are_understood_or_refused(attack, tally, capsys, monkeypatch):
    """Of commands that read; what would be run is not."""
    words = st.sampled_from(
        ["params", "claims", "compare", "--json", "quick", "01", "99", "--params", "-p", "--", "é", "\udcff", "\0"]
    )

    @given(st.lists(words | st.text(max_size=6), max_size=4))
    def property_(rest):
        try:
            code = cli.main(["params", *rest])
        except Exception:
            tally["command line"]["lost"] += 1
            raise
        err = capsys.readouterr().err
        assert code in (0, 2) and (code == 0 or len(err.splitlines()) == 1), err
        tally["command line"]["survived"] += 1

    monkeypatch.chdir(ROOT)
    attack(property_)
