"""Claims of one's own: known times give the known verdict, and what cannot be judged is said in one line."""

import json
import math
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from gnnlab import check as check_file
from gnnlab.check import read_claim
from gnnlab.child import Answer
from gnnlab.errors import GnnlabError
from gnnlab.lab import claims
from gnnlab.measure import estimates, timing
from gnnlab.measure.versus import Made, Memory, Peak, Versus, peak, race, turn

NAMES = ("before", "after", "inputs")
EXAMPLES = sorted((Path(__file__).parents[1] / "examples" / "claims").glob("*.py"))
PLANTED = """
import torch
from gnnlab.measure import timing

now = 0.0
timing.race.__kwdefaults__["clock"] = lambda: now  # a busy machine's would add what was not asked for

def takes(seconds):
    def variant(x):
        global now
        now += seconds
        return torch.cat([x, x])
    return variant

before, after = takes({before}), takes({after})
inputs = (torch.ones(1000),)
claim = "{claim}"
"""
HOLDS = """
import torch

def before(x):
    return [x + 1 for _ in range(4)][0]

def after(x):
    held = [x + 1 for _ in range(2)]
    return held[0]

inputs = {"x": torch.ones(4_000_000)}
claim = "half the memory"
"""


TRAINED = """
import torch

before = after = torch.nn.Linear(8, 8)
before(torch.ones(1, 8)).sum().backward()  # with gradients, as one trains
inputs = (torch.ones(8),)
claim = "same memory"
"""
PAGE = (Path(__file__).parents[1] / "docs" / "check.md").read_text("utf-8")
ON_THE_PAGE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))  # `after` is in the end what swap makes


def written(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


@pytest.fixture
def check(command):
    """Runs `gnnlab check` on a file: exit code, standard output and standard error."""
    return lambda path, *options: command("check", str(path), "--seconds", "0.2", "--processes", *options)


@pytest.fixture
def in_this_process(monkeypatch):
    """The file is read and raced here, without fresh processes; of memory nothing that counts is seen."""

    class Here:
        __enter__, __exit__ = lambda self: self, lambda *_: None

        def call(self, target, arguments, *, timeout_s):
            return Answer("done", check_file.described(**arguments))

    def versus(*sides, processes, seconds, memory, tell, **options):
        raced = race(*map(asdict, sides), seconds=seconds, **options)
        speed, *ms = estimates.ratio(raced["before"], raced["after"]), *map(estimates.summary, (raced["before"],) * 2)
        unseen = Memory(*[Peak(40.0, 90.0, False, "cpu", 1.0, 1.0)] * 2) if memory else None
        return Versus(speed, (speed,), *ms, raced["error"], raced["conditions"], raced["device"], unseen)

    monkeypatch.setitem(timing.race.__kwdefaults__, "clock", time.perf_counter)  # as it was, after the test
    monkeypatch.setattr(check_file, "Worker", Here)
    monkeypatch.setattr(check_file, "versus", versus)


@pytest.mark.parametrize(
    ("after", "claim", "code", "said"),
    [
        (0.002, "at least 2x", 0, "| at least 2x |"),
        (0.02, "same speed within 1 %, 30x", 1, "| same speed within 1 % |"),
        (0.002, "2x, half the memory", 3, "half the memory: inconclusive, before: torch's allocator 40 MiB"),
    ],
)
def test_times_give_their_verdict_in_markdown(tmp_path, check, in_this_process, after, claim, code, said):
    path = written(tmp_path, PLANTED.format(before=0.02, after=after, claim=claim))
    ended, out, _ = check(path, "1")  # the interval within it
    assert ended == code and out.startswith("**mine.py**: ") and said in out


def test_the_result_may_be_printed_as_json_and_the_cost_comes_first(tmp_path, check):
    code, out, err = check(written(tmp_path, HOLDS), "1", "--json")
    report = json.loads(out)
    assert code == 0
    (row,) = report["claims"]
    assert row["verdict"] == "reproduced" and row["value"] == pytest.approx(2, rel=0.02)
    assert report["memory"]["before"]["agrees"] and report["memory"]["after"]["process_mib"] > 25
    assert len(report["processes"]) == 1 and report["before_ms"]["n"] >= estimates.LEAST_SAMPLES
    line, cost, *_ = err.splitlines()
    assert line == report["read"] and line.endswith("mine.py: inputs x=[4000000]; before before, after after")
    assert cost.startswith("1 process, 0.2 s of sampling in each: about ") and "process 1 of 1" in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("before = 1", "defines no after and no inputs and no claim"),
        ("before = 1; after = max; inputs = (1,); claim = 'faster'", "before is 1"),
        ("before = after = max; inputs = (1,); claim = 2", "claim is 2"),
        ("before = after = abs; inputs = (1,); claim = 'so much better'", "is not understood"),
        ("before = after = abs; inputs = (1,); claim = '2x'; mode = 'both'", "mode is 'both'"),
        ("before = after = abs; inputs = (1,); claim = '2x'; tolerance = 'none'", "tolerance is 'none'"),
        ("raise RuntimeError('no data')", "RuntimeError: no data"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("def", "SyntaxError"),
    ],
)
def test_a_file_that_is_no_claim_is_refused_in_one_line(tmp_path, text, why):
    with refused(re.escape(why)):
        check_file.read(written(tmp_path, text))
    with refused("a Python file is needed"):
        check_file.read(tmp_path / "none.py")


def test_a_file_that_ends_its_process_is_bad_input(tmp_path, check):
    code, out, err = check(written(tmp_path, "import os; os._exit(0)"), "1")
    assert (code, out) == (2, "") and "mine.py: the process exited with code 0" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("before = abs; after = lambda x: x + 1; inputs = lambda: (1.0,); claim = '2x'", "differs from that of before"),
        ("before = abs; after = max; inputs = ('a',); claim = '2x'", "the baseline 'before' fails"),
    ],
)
def test_what_cannot_be_judged_ends_with_code_2_and_one_line(tmp_path, check, in_this_process, text, why):
    code, out, err = check(written(tmp_path, text), "1")
    assert code == 2 and out == "" and why in err.splitlines()[-1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_variants_of_an_example_agree(path):
    given = {"path": str(path), "inputs": None}
    variants = {name: Made("gnnlab.check:part", given | {"name": name}) for name in NAMES}
    mode, tolerance = (check_file.read(path).model_dump()[name] for name in ("mode", "tolerance"))
    sides = {name: asdict(made) for name, made in variants.items()}
    raced = race(**sides, mode=mode, tolerance=tolerance, seconds=0.01)
    assert raced["error"] <= 1e-5 and len(raced["before"]) == len(raced["after"]) >= estimates.LEAST_SAMPLES


@pytest.mark.parametrize("text", [ON_THE_PAGE, TRAINED], ids=["made by swap", "trained in the file"])
def test_time_and_memory_are_measured_of_what_is_made_with_gradients(tmp_path, text):
    """Memory too: there all is made a second time."""
    given = {"path": str(written(tmp_path, text)), "inputs": None}
    before, after, inputs = (asdict(Made("gnnlab.check:part", given | {"name": name})) for name in NAMES)
    raced = race(before, after, inputs, mode="inference", tolerance=1e-5, seconds=0.01)
    assert raced["error"] <= 1e-5 and len(raced["after"]) >= estimates.LEAST_SAMPLES
    assert min(turn(before, after, inputs, mode="inference", names=["before", "after"])) > 0
    seen = {name: peak(variant, inputs, "inference") for name, variant in (("before", before), ("after", after))}
    assert seen["after"]["torch_mib"] <= seen["before"]["torch_mib"] / (5 if text == ON_THE_PAGE else 1)


def test_a_part_of_the_measuring_that_fails_names_itself_the_file_once_and_its_line(tmp_path, check):
    count = "from pathlib import Path\nruns = Path('runs.txt'); n = len(runs.read_text()) if runs.exists() else 0\n"
    fails = "runs.write_text(n * '.' + '.')\nif n > 1: raise OSError('none left')\n"
    path = written(tmp_path, count.replace("runs.txt", str(tmp_path / "runs.txt")) + fails + TRAINED)
    code, out, err = check(path, "1")
    line = err.splitlines()[-1]
    assert (code, out) == (2, "")
    assert line == f"gnnlab: peak memory of before: {path} fails: OSError: none left (mine.py, line 4)"


def test_inputs_may_come_from_a_function_in_place_of_the_file(tmp_path, monkeypatch):
    path = written(tmp_path, HOLDS.replace("before(x)", "before(x, y=0)"))
    (tmp_path / "more_inputs.py").write_text(
        "import torch\nfrom torch_geometric.data import Data\n"
        "def pair(): return torch.ones(3), torch.rand(1)\ndef data(): return Data(x=torch.ones(2, 1))\n"
    )
    monkeypatch.chdir(tmp_path)
    first, again = (check_file.read(path, "more_inputs:pair").inputs for _ in range(2))
    assert first[0].shape == (3,) and first[1].equal(again[1])
    (whole,) = check_file.read(path, "more_inputs:data").inputs
    assert whole.num_nodes == 2
    path.write_text(
        "from torch import nn\nclass Model(nn.Module):\n    def forward(self, x): return x\n"
        "before = after = Model()\nclaim = 'same speed'\n"
    )
    assert set(check_file.read(path, "more_inputs:data").inputs) == {"x"}  # a module's arguments have names
    with refused("module more_inputs has no function 'none'"):
        check_file.read(path, "more_inputs:none")


@pytest.mark.parametrize(
    ("words", "id"), [("10-15 %", "gat.compile"), ("5-10 %", "gat.expand"), ("10-15 %", "fm.vectorized")]
)
def test_words_of_a_seed_claim_what_the_catalogue_does(words, id):
    claimed = claims.catalogue()[id].claimed
    assert read_claim(words)[0].claimed == pytest.approx(claimed, rel=0.005)


@pytest.mark.parametrize(
    ("words", "claimed"),
    [
        ("1.2 - 1.5 x", (1.2, 1.5)),
        ("2 times", (2, 2)),
        ("twice as fast", (2, 2)),
        ("10 %", (1 / 0.9, 1 / 0.9)),
        ("10-15% less time", (1 / 0.9, 1 / 0.85)),
        ("20 % faster", (1.2, 1.2)),
        ("at least 10 %", (1 / 0.9, math.inf)),
        ("At least  1.5x", (1.5, math.inf)),
        ("half the time", (2, 2)),
        ("faster", None),
        ("same speed", (1, 1)),
        ("half the memory", (2, 2)),
        ("30 % less memory", (1 / 0.7,) * 2),
        ("less memory", None),
        ("same memory", (1, 1)),
    ],
)
def test_words_are_ratios_of_time_or_of_memory(words, claimed):
    (part,) = read_claim(words)
    assert part.claimed == (claimed and pytest.approx(claimed)) and part.memory == ("memory" in words)


def test_parts_stand_behind_commas_and_and():
    speed, memory = read_claim("same speed within 2 %, half the memory")
    assert (speed.margin, speed.memory, memory.claimed, memory.memory) == (0.02, False, (2, 2), True)
    assert [part.text for part in read_claim("1.5x and less memory")] == ["1.5x", "less memory"]


@pytest.mark.parametrize("words", ["", " , ", "much faster", "0.5x", "1x", "100 %", "0 %", "1.5-1.2x", "-3 %", "x"])
def test_what_is_not_understood_is_said_with_what_is(words):
    with refused("understood are"):
        read_claim(words)


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused_in_one_line(words):
    try:
        assert all(part.claimed is None or part.claimed[0] >= 1 for part in read_claim(words))
    except GnnlabError as error:
        assert len(str(error).splitlines()) == 1
