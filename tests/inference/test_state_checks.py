"""An invalid state is refused in one line that names the node and the field; a valid one is read as it stands."""

import copy
import json
import math

import numpy as np
import pytest
from edge_states import random_state
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.inference.state_checks import MOST, Node, check, json_schema
from gnnlab.workloads.edge_networks import FEATURES, edges, features

GOOD = random_state(4, seed=0)
MOSTS = {"cpu_util": 1, "mem_util": 1, "node_type": 2} | dict.fromkeys(
    ("energy", "latency", "bandwidth", "queue_len"), MOST
)


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


def test_the_fields_of_a_node_are_those_that_the_model_reads():
    assert Node.__struct_fields__ == ("node_id", *FEATURES)


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(10**400), st.floats(), st.text(max_size=2),
    st.sampled_from([1_000_000, 1_000_001, np.float32(0.5), np.int64(1), [], {}, (1,)]),
)  # fmt: skip
IDS = st.sampled_from(["node_0", "node_1", "node_2", "node_9", "", 1, None, True])
LINKS = st.lists(
    st.one_of(st.lists(IDS, max_size=3), st.tuples(IDS, IDS), st.text(max_size=2), st.integers()), max_size=3
)


def obeys_the_rules(state):
    ids = [node["node_id"] for node in state["nodes"]]
    pairs = [frozenset(link) for link in state["links"]]
    return (
        all(0 <= node[name] <= most for node in state["nodes"] for name, most in MOSTS.items())
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
def test_whatever_comes_is_read_within_the_rules_or_refused_in_one_line(fields, left_out, links):
    state = changed(**fields) | {"links": links}
    for field in left_out:
        del state["nodes"][2][field]
    try:
        networks = NetworkArrays.of([state])
    except GnnlabError as error:
        assert "\n" not in str(error)
    else:
        assert not left_out and "x" not in fields and obeys_the_rules(state)
        assert np.array_equal(networks.x, features(state))
        assert sorted(networks.edge_index.T.tolist()) == sorted(edges(state).T.tolist())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(cpu_util=1.7), r"node 'node_2': Expected `float` <= 1.0 - at `\$.nodes\[2\].cpu_util`"),
        (changed(mem_util=-0.1), r"Expected `float` >= 0.0 - at `\$.nodes\[2\].mem_util`"),
        (changed(cpu_util=math.nan), r"\.cpu_util"),
        (changed(latency=math.inf), r"\.latency"),
        (changed(energy="120"), r"Expected `float`, got `str` - at `\$.nodes\[2\].energy`"),
        (changed(energy=10**400), r"\.energy"),
        (changed(cpu_util=True), r"Expected `float`, got `bool` - at `\$.nodes\[2\].cpu_util`"),
        (changed(queue_len=True), r"\.queue_len"),
        (changed(queue_len=2.0), r"Expected `int`, got `float` - at `\$.nodes\[2\].queue_len`"),
        (changed(node_type=3), r"Expected `int` <= 2 - at `\$.nodes\[2\].node_type`"),
        (without("energy"), "node 'node_2': Object missing required field `energy`"),
        (changed(cpu=0.5), "node 'node_2': Object contains unknown field `cpu`"),
        (changed(**{"a\n\nb": 0.5}), "unknown field `a b`"),
        (changed(**{"x" * 1000: 0.5}), r"unknown field `xxx.*\.\.\.$"),
        (without("node_id"), r"missing required field `node_id` - at `\$.nodes\[2\]`"),
        (changed(node_id=7), r"\.node_id"),
        (changed(node_id=""), r"\.node_id"),
        (changed(node_id="node_0"), r"node 'node_0': its node_id is that of nodes 0 and 2 \(from 0\)"),
        (changed(node_id="a\nb", cpu_util=2), r"node 'a\\nb': Expected"),
        (linked(["node_0", "node_9"]), r"link 0 \(from 0\), \['node_0', 'node_9'\]: a link joins two different nodes"),
        (linked(["node_0", "node_0"]), "link 0 .* a link joins two different nodes"),
        (linked(["node_0", "node_1"], ("node_1", "node_0")), r"link 1 \(from 0\).*given once"),
        (linked(["node_0"]), r"Expected `array` of length 2.* - at `\$.links\[0\]`"),
        (linked("ab"), r"\$.links\[0\]"),
        ({**GOOD, "links": None}, r"\$.links"),
        ({**GOOD, "time": 3}, "unknown field `time`"),
        ({"nodes": []}, r"Expected `array` of length >= 1 - at `\$.nodes`"),
        ({"nodes": [3]}, r"Expected `object`, got `int` - at `\$.nodes\[0\]`"),
        ({}, "missing required field `nodes`"),
        ([], "Expected `object`, got `array`"),
        (None, "Expected `object`, got `null`"),
    ],
)
def test_an_invalid_state_is_refused_with_its_node_and_field(state, message):
    with refused(message):
        check(state)
    try:
        body = json.dumps(state, allow_nan=False).encode()
    except ValueError:  # JSON has no NaN
        return
    with refused(message):
        check(body)


@pytest.mark.parametrize("body", [b"", b"nope", b"\xff\xfe", b'{"nodes": NaN}', b"[" * 200_000, b'{"nodes":' * 200_000])
def test_bytes_that_are_no_state_are_refused_in_one_line(body):
    with refused("not JSON|Expected `object`|Expected `array`"):
        check(body)


def test_json_is_read_as_the_dict_is():
    assert check(json.dumps(GOOD).encode()) == check(GOOD)


def test_values_at_the_limits_are_valid():
    for name, most in MOSTS.items():
        for value in (0, most) if name in ("queue_len", "node_type") else (0, 0.0, -0.0, most, float(most)):
            check(changed(**{name: value}))


def test_the_schema_has_the_limits_and_units():
    node = json_schema()["properties"]["nodes"]["items"]["properties"]
    assert {name: node[name]["maximum"] for name in FEATURES} == MOSTS
    assert node["energy"]["description"] == "W" and node["queue_len"]["type"] == "integer"
