"""Plans read and write in their notation, the candidates are those that the rules allow, and no others."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from gnnlab.planning.plans import Block, Plan, Space, parse

UNITS = ("CPU", "GPU", "NPU")
GUIDE = '[[["CPU","GPU"],[1,2,3,4,5],[0.5,0.5]],[["NPU"],[6,7]]]'
NPU = {"NPU": {3, 4}}


def test_the_guides_example_reads_and_writes():
    plan = parse(GUIDE)
    assert plan.blocks == (Block(("CPU", "GPU"), 1, 5, (0.5, 0.5)), Block(("NPU",), 6, 7))
    assert str(plan) == GUIDE and plan.words() == "stages 1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU"
    assert parse(plan.words()) == parse("1-5 on CPU and GPU (0.5,0.5), 6-7 on NPU") == plan
    assert parse([[["CPU"], [1, 2, 3]]]) == parse("[[['CPU'], [1,2,3]]]") == Plan((Block(("CPU",), 1, 3),))


@pytest.mark.parametrize(
    ("unable", "ratios", "options", "count"),
    [
        (NPU, (0.5,), {}, 28),  # 28 is what an NPU without two stages leaves; S4's runs all seven
        ({}, (0.5,), {}, 49),
        (NPU, (0.3, 0.5, 0.7), {"one_unit": True}, 42),
        (NPU, (0.3, 0.5, 0.7), {"one_unit": True, "max_blocks": 3}, 92),
    ],
)
def test_the_rules_count_as_the_guide_does(unable, ratios, options, count):
    space = Space(UNITS, unable=unable, ratios=ratios)
    plans = space.candidates(**options)
    assert len(plans) == len({str(p) for p in plans}) == count
    for plan in plans:
        assert space.check(parse(str(plan))) == plan
        assert parse(plan.words()) == plan
    alone = {p.units[0] for p in space.candidates(max_blocks=1, one_unit=True) if len(p.units) == 1}
    assert alone == ({"CPU", "GPU"} if unable else set(UNITS))


@given(st.integers(1, 4), st.integers(1, 5), st.sets(st.integers(1, 5)), st.integers(1, 4))
def test_every_candidate_is_legal_and_every_legal_plan_without_sharing_is_a_candidate(units, stages, barred, blocks):
    names = tuple("ABCD"[:units])
    space = Space(names, stages, {"A": barred}, sharing=())
    plans = {str(space.check(p)) for p in space.candidates(max_blocks=blocks, one_unit=True)}
    assignments = {()}
    for _ in range(stages):
        assignments = {(*a, n) for a in assignments for n in names}
    expected = set()
    for owners in assignments:
        runs = [owners[0]] + [b for a, b in itertools.pairwise(owners) if a != b]
        legal = len(set(runs)) == len(runs) <= blocks
        if legal and not any(owner == "A" and place in barred for place, owner in enumerate(owners, 1)):
            expected.add(tuple(owners))
    assert {tuple(b.units[0] for b in parse(p).blocks for _ in b.stages) for p in plans} == expected
    assert len(plans) == len(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not understood"),
        ("no plan", "not understood"),
        ("[]", "no blocks"),
        (7, "no blocks"),
        ("1-5 on CPU; 6-7 on NPU", "not understood"),
        ("1-5 on CPU and GPU (0.5.5, 0.5)", "not understood"),
        ("1-99999999999 on CPU", "not understood"),
        ("[{[1]: 2}]", "not understood"),
        *(
            (block, "is no \\[units, stages, ratios\\]")
            for block in (
                "1-5 on CPU and GPU, 6-7 on NPU",
                "7-6 on CPU",
                "[7]",
                "[[[1],[1]]]",
                '[[["CPU"],[]]]',
                '[[["CPU"],[1,3]]]',
                '[[["CPU"],[2,1]]]',
                '[[["CPU","GPU"],[1],[0.5,0.6]]]',
                '[[["CPU","GPU"],[1],[1.5,-0.5]]]',
                '[[["CPU"],[1],["x"]]]',
            )
        ),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text, words):
    with refused(words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[["CPU"],[1,2,3]]]', "ends with stage 3"),
        ('[[["CPU"],[2,3,4,5,6,7]]]', "stage 1 should come next"),
        ('[[["CPU"],[1,2]],[["GPU"],[2,3,4,5,6,7]]]', "stage 3 should come next"),
        ('[[["TPU"],[1,2,3,4,5,6,7]]]', "'TPU' is unknown; there are CPU, GPU, NPU"),
        ('[[["CPU"],[1,2]],[["GPU"],[3,4]],[["CPU"],[5,6,7]]]', "CPU stands in two places"),
        ('[[["CPU","NPU"],[1,2],[0.5,0.5]],[["GPU"],[3,4,5,6,7]]]', "CPU\\+NPU may not share"),
        ('[[["CPU"],[1,2]],[["NPU"],[3,4,5,6,7]]]', "NPU cannot run stage 3, 4"),
        ('[[["CPU"],[1,2,3,4,5,6,7,8]]]', "the layer has 7"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_with_the_rule(text, words):
    with refused(words):
        Space(UNITS, unable=NPU).check(parse(text))
