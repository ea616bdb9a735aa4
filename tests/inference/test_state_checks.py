"""An invalid state is refused in one line that names the node and the field; a valid one is read as it stands."""

import copy
import json
import math

import pytest
from edge_states import random_state
from refusals import refused

from gnnlab.inference.state_checks import MOST, Node, check, json_schema
from gnnlab.workloads.edge_networks import FEATURES

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


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(cpu_util=1.7), r"node 'node_2': Expected `float` <= 1.0 - at `\$.nodes\[2\].cpu_util`"),
        (changed(mem_util=-0.1), r"Expected `float` >= 0.0 - at `\$.nodes\[2\].mem_util`"),
        (changed(cpu_util=math.nan), r"\.cpu_util"),
        (changed(energy="120"), r"Expected `float`, got `str` - at `\$.nodes\[2\].energy`"),
        (changed(cpu_util=True), r"Expected `float`, got `bool` - at `\$.nodes\[2\].cpu_util`"),
        (changed(queue_len=2.0), r"Expected `int`, got `float` - at `\$.nodes\[2\].queue_len`"),
        (changed(node_type=3), r"Expected `int` <= 2 - at `\$.nodes\[2\].node_type`"),
        (without("energy"), "node 'node_2': Object missing required field `energy`"),
        (changed(cpu=0.5), "node 'node_2': Object contains unknown field `cpu`"),
        (changed(**{"a\n\nb": 0.5}), "unknown field `a b`"),
        (changed(node_id=""), r"\.node_id"),
        (changed(node_id="node_0"), r"node 'node_0': its node_id is that of nodes 0 and 2 \(from 0\)"),
        (changed(node_id="a\nb", cpu_util=2), r"node 'a\\nb': Expected"),
        (linked(["node_0", "node_9"]), r"link 0 \(from 0\), \['node_0', 'node_9'\]: a link joins two different nodes"),
        (linked(["node_0", "node_0"]), "link 0 .* a link joins two different nodes"),
        (linked(["node_0", "node_1"], ("node_1", "node_0")), r"link 1 \(from 0\).*given once"),
        (linked(["node_0"]), r"Expected `array` of length 2.* - at `\$.links\[0\]`"),
        ({**GOOD, "time": 3}, "unknown field `time`"),
        ({"nodes": []}, r"Expected `array` of length >= 1 - at `\$.nodes`"),
        ({}, "missing required field `nodes`"),
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
