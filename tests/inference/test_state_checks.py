"""What is no state is refused in one line that names the node and the field; what is one is parsed as it stands."""

import copy
import math

import numpy as np
import pytest
from edge_states import random_state
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.inference.state_checks import LIMITS, check, check_batch
from gnnlab.workloads.edge_networks import FEATURES, edges, features, random_states

GOOD = random_state(4, seed=0)
NUMBER = "a number 0..1 is needed"


def changed(**fields):
    """The good state with fields of node_2 changed."""
    state = copy.deepcopy(GOOD)
    state["nodes"][2] |= fields
    return state


def without(field):
    state = copy.deepcopy(GOOD)
    del state["nodes"][2][field]
    return state


def linked(*links):
    return {**GOOD, "links": list(links)}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.booleans())
def test_a_good_state_is_parsed_as_the_workload_reads_it(nodes, seed, linked):
    state = random_state(nodes, seed)
    if not linked:
        del state["links"]
    before = copy.deepcopy(state)
    found = check(state)
    assert found.node_ids == tuple(node["node_id"] for node in state["nodes"])
    for got, expected in ((found.x, features(state)), (found.edge_index, edges(state))):
        assert got.dtype == expected.dtype and np.array_equal(got, expected) and got.flags.c_contiguous
    assert state == before


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(10**400), st.floats(), st.text(max_size=2),
    st.sampled_from([1_000_000, 1_000_001, np.float32(0.5), np.int64(1), np.float64(0.5), [], {}, (1,)]),
)  # fmt: skip
IDS = st.sampled_from(["node_0", "node_1", "node_2", "node_9", "", 1, None, True])
LINKS = st.lists(
    st.one_of(st.lists(IDS, max_size=3), st.tuples(IDS, IDS), st.text(max_size=2), st.integers()), max_size=3
)


def obeys_the_rules(state):
    ids = [node["node_id"] for node in state["nodes"]]
    pairs = [frozenset(link) for link in state["links"]]
    return (
        all(0 <= node[name] <= most for node in state["nodes"] for name, (_, most, _) in LIMITS.items())
        and len(set(ids)) == len(ids)
        and all(len(pair) == 2 and pair <= set(ids) for pair in pairs)
        and len(set(pairs)) == len(pairs)
    )


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*FEATURES, "node_id", "x"]), ANY, max_size=2),
    st.sets(st.sampled_from([*FEATURES, "node_id"]), max_size=1),
    st.one_of(st.just([]), LINKS, ANY),
)
def test_whatever_comes_is_parsed_within_the_rules_or_refused_in_one_line(fields, left_out, links):
    state = changed(**fields) | {"links": links}
    for field in left_out:
        del state["nodes"][2][field]
    try:
        found = check(state)
    except GnnlabError as error:
        assert "\n" not in str(error)
    else:
        assert not left_out and "x" not in fields and obeys_the_rules(state)
        assert np.array_equal(found.x, features(state)) and np.array_equal(found.edge_index, edges(state))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_plain_value_within_the_limits_passes(data):
    fields = {
        name: data.draw(
            st.integers(0, most) if kind is int else st.one_of(st.floats(0, most), st.integers(0, most)), label=name
        )
        for name, (kind, most, _) in LIMITS.items()
    }
    assert np.isfinite(check(changed(**fields)).x).all()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(cpu_util=1.7), f"node 'node_2', field cpu_util: 1.7 given, {NUMBER}"),
        (changed(mem_util=-0.1), f"node 'node_2', field mem_util: -0.1 given, {NUMBER}"),
        (changed(cpu_util=math.nan), f"node 'node_2', field cpu_util: nan given, {NUMBER}"),
        (changed(latency=math.inf), "field latency: inf given, a number 0..1000000 ms is needed"),
        (changed(energy="120"), "field energy: '120' given, a number 0..1000000 W is needed"),
        (changed(cpu_util=True), f"field cpu_util: True given, {NUMBER}"),
        (changed(queue_len=True), "field queue_len: True given, an integer 0..1000000 tasks is needed"),
        (changed(queue_len=2.0), "field queue_len: 2.0 given, an integer"),
        (changed(node_type=3), "field node_type: 3 given, an integer 0..2 is needed"),
        (changed(bandwidth=None), "field bandwidth: None given, a number 0..1000000 Mbit/s is needed"),
        (without("energy"), "node 'node_2', field energy: missing, a number 0..1000000 W is needed"),
        (changed(cpu=0.5), "node 'node_2', field 'cpu': not known; a node has node_id, cpu_util"),
        (changed(cpu_util=2, mem_util=2), r"field cpu_util: 2 given, a number 0..1 is needed \(and 1 more\)"),
        (without("node_id"), r"node 2 \(from 0\), field node_id: missing, a string"),
        (changed(node_id=7), r"node 2 \(from 0\), field node_id: 7 given"),
        (changed(node_id=""), r"node 2 \(from 0\), field node_id: '' given"),
        (changed(node_id="node_0"), r"node 'node_0', field node_id: given at places 0 and 2 \(from 0\)"),
        (changed(node_id="a\nb", cpu_util=2), r"node 'a\\nb', field cpu_util"),
        (linked(["node_0", "node_9"]), r"link 0 \(from 0\), \['node_0', 'node_9'\]: there is no node 'node_9'"),
        (linked(["node_0", "node_0"]), "joins a node with itself"),
        (linked(["node_0", "node_1"], ("node_1", "node_0")), r"link 1 \(from 0\).*given twice"),
        (linked(["node_0"]), r"link 0 \(from 0\): \['node_0'\] given, a pair of two node_ids is needed"),
        (linked("ab"), "link 0"),
        ({**GOOD, "links": "ab"}, "links: 'ab' given, a list of pairs of node_ids is needed"),
        ({**GOOD, "links": None}, "links: None given"),
        ({**GOOD, "time": 3}, "field 'time': not known; a state has nodes and links"),
        ({"nodes": []}, r"nodes: \[\] given, a list of one node or more is needed"),
        ({"nodes": [3]}, r"node 0 \(from 0\): 3 given, an object with node_id, cpu_util"),
        ({}, "nodes: missing, a list of one node or more is needed"),
        ([], r"state: \[\] given, an object with nodes and links is needed"),
        (None, "state: None given"),
    ],
)
def test_what_is_wrong_is_said_with_its_node_and_field(state, message):
    with refused(message):
        check(state)


def test_values_at_the_limits_are_good():
    for name, (kind, most, _) in LIMITS.items():
        for value in (0, most) if kind is int else (0, 0.0, -0.0, most, float(most)):
            check(changed(**{name: value}))


def test_a_batch_answers_the_good_states_and_names_the_bad():
    states = random_states(5, (1, 9), seed=1)
    states[1:1] = [changed(energy=math.nan)]
    states.append(None)
    good, errors = check_batch(states)
    assert sorted(good) == [0, 2, 3, 4, 5] and sorted(errors) == [1, 6]
    for place, found in good.items():
        assert np.array_equal(found.x, features(states[place]))
    assert "node 'node_2', field energy" in str(errors[1]) and "None" in str(errors[6])
    assert check_batch([]) == ({}, {})
