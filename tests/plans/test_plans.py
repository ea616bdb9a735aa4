"""Plans read and write in their notation, the candidates are those that the rules allow, and no others."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from gnnlab.plans.plans import Block, Plan, Space, parse

DEVICES = ("CPU", "GPU", "NPU")
GUIDE = '[[["CPU","GPU"],[1,2,3,4,5],[0.5,0.5]],[["NPU"],[6,7]]]'
NPU = {"NPU": {3, 4}}
NOT_UNDERSTOOD, NO_BLOCK = "not understood", r"is no \[devices, stages, ratios\]"


def test_the_guides_example_reads_and_writes():
    plan = parse(GUIDE)
    assert plan.blocks == (Block(("CPU", "GPU"), 1, 5, (0.5, 0.5)), Block(("NPU",), 6, 7))
    assert str(plan) == GUIDE and plan.words() == "1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU"
    assert parse(plan.words()) == parse("1-5 on CPU and GPU (0.5,0.5), 6-7 on NPU") == plan
    assert parse([[["CPU"], [1, 2, 3]]]) == parse("[[['CPU'], [1,2,3]]]") == Plan((Block(("CPU",), 1, 3),))


@pytest.mark.parametrize(
    ("unable", "ratios", "options", "count"),
    [
        (NPU, (0.5,), {}, 28),  # 28 is what an NPU without two stages leaves; S4's runs all seven
        ({}, (0.5,), {}, 49),
        (NPU, (0.3, 0.5, 0.7), {"one_device": True}, 42),
        (NPU, (0.3, 0.5, 0.7), {"one_device": True, "max_blocks": 3}, 92),
    ],
)
def test_the_rules_count_as_the_guide_does(unable, ratios, options, count):
    space = Space(DEVICES, unable=unable, ratios=ratios)
    plans = space.candidates(**options)
    assert len(plans) == len({str(plan) for plan in plans}) == count
    assert all(space.check(parse(str(plan))) == parse(plan.words()) == plan for plan in plans)
    alone = {p.devices[0] for p in space.candidates(max_blocks=1, one_device=True) if len(p.devices) == 1}
    assert alone == ({"CPU", "GPU"} if unable else set(DEVICES))


@given(st.integers(1, 4), st.integers(1, 5), st.sets(st.integers(1, 5)), st.integers(1, 4))
def test_every_candidate_is_legal_and_every_legal_plan_without_sharing_is_a_candidate(devices, stages, barred, blocks):
    names, expected = tuple("ABCD"[:devices]), set()
    space = Space(names, stages, {"A": barred}, sharing=())
    plans = [space.check(plan) for plan in space.candidates(max_blocks=blocks, one_device=True)]
    for owners in itertools.product(names, repeat=stages):
        runs = [owner for owner, _ in itertools.groupby(owners)]
        legal = len(set(runs)) == len(runs) <= blocks
        if legal and not any(owner == "A" and place in barred for place, owner in enumerate(owners, 1)):
            expected.add(owners)
    assert {tuple(b.devices[0] for b in plan.blocks for _ in b.stages) for plan in plans} == expected
    assert len(plans) == len(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((t, NOT_UNDERSTOOD) for t in ("", "no plan", "[]", 7, "[{[1]: 2}]", "1-5 on CPU; 6-7 on NPU")),
        *((t, NOT_UNDERSTOOD) for t in ("1-5 on CPU and GPU (0.5.5, 0.5)", "1-99999999999 on CPU")),
        *((t, NO_BLOCK) for t in ("1-5 on CPU and GPU, 6-7 on NPU", "7-6 on CPU", "[7]", "[[[1],[1]]]")),
        *((f'[[["CPU"],{rest}]]', NO_BLOCK) for rest in ("[]", "[1,3]", "[1,99999999999]", '[1],["x"]')),
        *((f'[[["CPU","GPU"],[1],{ratios}]]', NO_BLOCK) for ratios in ("[0.5,0.6]", "[1.5,-0.5]")),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text, words):
    with refused(words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1-3 on CPU", "ends with stage 3"),
        ("2-7 on CPU", "stage 1 should come next"),
        ("1-2 on CPU, 2-7 on GPU", "stage 3 should come next"),
        ("1-7 on TPU", "'TPU' is unknown; there are CPU, GPU, NPU"),
        ("1-2 on CPU, 3-4 on GPU, 5-7 on CPU", "CPU stands in two places"),
        ("1-2 on CPU and NPU (0.5, 0.5), 3-7 on GPU", "CPU\\+NPU may not share"),
        ("1-2 on CPU, 3-7 on NPU", "NPU has no stage 3, 4"),
        ("1-8 on CPU", "the layer has 7"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_with_the_rule(text, words):
    with refused(words):
        Space(DEVICES, unable=NPU).check(parse(text))
