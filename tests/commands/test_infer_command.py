import io
import json
import sys
from types import SimpleNamespace

import pytest
from edge_states import random_state

from gnnlab import cli
from gnnlab.inference.predictor import Predictor

STATES = [random_state(nodes, nodes) for nodes in (1, 4, 7)]
GOOD = [json.dumps(state).encode() for state in STATES]
BAD_FIELD = json.dumps({"nodes": [{**STATES[0]["nodes"][0], "cpu_util": 1.5}], "links": []}).encode()
DEEP = b"[" * 200_000
LATIN = json.dumps(STATES[1]).replace("node_0", "Zürich").encode("latin-1")
FORGED = b'{"nodes": [{"$.nodes[7]": 1, "\\n\\u2028\\u001b[2J": 1}]}'
CARRIAGE_RETURN = b"\r" + GOOD[0][:-1] + b',\r"x": 1}\r'  # is no end of a line


@pytest.fixture
def infer(capsys, monkeypatch):
    """What `gnnlab infer` answers to lines on standard input: (code, answers, standard error)."""

    def run(lines, *arguments):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n".join(lines))))
        code = cli.main(["infer", "--device", "cpu", "--model-type", "dqn", *arguments])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return run


def test_each_line_is_answered_with_the_chosen_node(infer):
    code, answers, err = infer(GOOD)
    assert code == 0 and "device cpu, as asked for" in err
    assert err.endswith("gnnlab: read 3 states of 1 to 7 nodes, 7 features each\n")
    expected = [Predictor("dqn", "cpu").predict(state) for state in STATES]
    assert [(a["line"], a["node_id"]) for a in answers] == [(i, d.node_id) for i, d in enumerate(expected, start=1)]


BAD = [b"nope", b"\xff\xfe", b"[1]", b"3", BAD_FIELD, DEEP, b'{"nodes": NaN}', b"9" * 5000]


@pytest.mark.parametrize("bad", [*BAD, LATIN, FORGED, CARRIAGE_RETURN, b"a\x0bb\x0cc\x1cd\x85e"])
def test_a_bad_line_is_answered_by_an_error_line_and_stops_no_other(infer, tmp_path, bad):
    lines = [GOOD[0], b"", bad, GOOD[1]]
    code, answers, _ = infer(lines)
    assert code == 1 and [a["line"] for a in answers] == [1, 3, 4]
    assert answers[1]["error"].isprintable() and len(answers[1]["error"]) <= 200
    (tmp_path / "states.jsonl").write_bytes(b"\n".join(lines))
    again = infer([], "--batch", str(tmp_path / "states.jsonl"))
    assert again[0] == 1 and [a.get("node_id") for a in again[1]] == [a.get("node_id") for a in answers]
    assert again[1][1] == answers[1]


def test_batch_reads_a_file_or_standard_input_and_lines_may_end_as_on_windows(infer, tmp_path):
    windows, file = b"\r\n".join(GOOD), tmp_path / "states.jsonl"
    file.write_bytes(windows)
    one_by_one, together = infer(GOOD)[:2], infer(GOOD, "--batch")[:2]
    assert infer([windows])[:2] == one_by_one and infer([], "--batch", str(file))[:2] == together
    assert together[0] == 0 and [a["node_id"] for a in together[1]] == [a["node_id"] for a in one_by_one[1]]


def test_a_byte_order_mark_before_the_first_line_costs_no_line_and_one_size_is_said_once(infer):
    code, answers, err = infer([b"\xef\xbb\xbf" + GOOD[1]])
    assert code == 0 and len(answers) == 1 and err.endswith("read 1 state of 4 nodes, 7 features each\n")
    assert "read 1 state of 1 node, 7" in infer([GOOD[0]])[2]


def test_the_message_names_node_and_field(infer):
    _, answers, _ = infer([BAD_FIELD])
    assert answers == [{"line": 1, "error": "node 'node_0': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"}]


def test_answers_come_while_lines_are_still_coming(capsys, monkeypatch):
    def lines():
        yield GOOD[0]
        assert json.loads(capsys.readouterr().out)["line"] == 1

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines()))
    assert cli.main(["infer", "--device", "cpu", "--model-type", "dqn"]) == 0


def test_int8_answers_too_and_no_input_is_no_error(infer, tmp_path):
    code, answers, _ = infer(GOOD, "--quantize")
    assert code == 0 and len(answers) == 3
    assert infer([])[:2] == (0, [])
    (tmp_path / "empty").write_bytes(b"\n\n")
    assert infer([], "--batch", str(tmp_path / "empty"))[:2] == (0, [])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--model-type", "a2c"], "invalid choice: 'a2c'"),
        (["--device", "tpu"], "device 'tpu': one of auto, cuda, mps, cpu"),
        (["--batch", "no/such/file"], "No such file or directory (no/such/file)"),
        (["--batch", "."], "Is a directory (.)"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(infer, arguments, part):
    code, answers, err = infer([], *arguments)
    assert code == 2 and answers == [] and part in err.splitlines()[-1]
