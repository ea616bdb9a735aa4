"""An invalid state is refused in one line that names the node and the field; a valid one is read as it stands."""

import copy
import json
import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from edge_states import random_state, states
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal, refused

from gnnlab.inference import states as states_module
from gnnlab.inference.states import (
    LONGEST_LINE,
    MOST,
    CheckedState,
    NetworkArrays,
    Node,
    Topology,
    TopologyCache,
    check,
    check_or_error,
    json_schema,
)
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


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(cpu_util=1.7), r"node 'node_2': Expected `float` <= 1.0 - at `\$.nodes\[2\].cpu_util`"),
        (changed(cpu_util=math.nan), r"\.cpu_util"),
        (changed(energy="120"), r"Expected `float`, got `str` - at `\$.nodes\[2\].energy`"),
        (changed(queue_len=2.0), r"Expected `int`, got `float` - at `\$.nodes\[2\].queue_len`"),
        (without("energy"), "node 'node_2': Object missing required field `energy`"),
        (changed(cpu=0.5), "node 'node_2': Object contains unknown field `cpu`"),
        (changed(**{"a\n\nb": 0.5}), r"unknown field `a\\n\\nb`"),
        (changed(**{"a" * 900_000: 0.5}), r"node 'node_2': Object contains unknown field `a+\.\.\.$"),
        (changed(**{"- at `$.nodes[9]`": 0.5}), r"node 'node_2': .* - at `\$\.nodes\[2\]`$"),
        (changed(node_id="node_0"), r"node 'node_0': its node_id is that of nodes 0 and 2 \(from 0\)"),
        (changed(node_id="a\nb", cpu_util=2), r"node 'a\\nb': Expected"),
        (linked(["node_0", "node_9"]), r"link 0 \(from 0\), \['node_0', 'node_9'\]: a link joins two different nodes"),
        (linked(["node_0", "node_1"], ("node_1", "node_0")), r"link 1 \(from 0\).*given once"),
        ({"nodes": []}, r"Expected `array` of length >= 1 - at `\$.nodes`"),
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


NODES = json.dumps(GOOD["nodes"])[1:-1].encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b'{"nodes": NaN}',
        b"[" * 200_000,
        b'{"nodes": [%b]}' % NODES.replace(b"node_2", b"Z\xfcrich"),
        b'{"nod\xff": 1}',
        b'{"nodes": [%b], "$.nodes[7]": 1}' % NODES,
        b'{"nodes": [%b], "- at `$.nodes[%b]`": 1}' % (NODES, b"9" * 5000),
        b'{"nodes": [{"$.nodes[7]": 1}]}',
        b'{"nodes": [{"node_id": "a", "cpu_util": 2}], "x": ' + b"[" * 100_000,
        b'{"nodes": [{"a": 1}], "nodes": []}',
        b'{"nodes": [3], "nodes": 3}',
    ],
)
def test_bytes_that_are_no_state_are_refused_in_one_line(body):
    assert refusal(check, body).startswith(("not JSON", "Expected `", "Object contains"))


@pytest.mark.parametrize("given", [None, 3, "{}", [], {1: 2}, object(), {"nodes": [{"node_id": "a"}] * 3, "links": 3}])
def test_objects_that_are_no_state_are_refused_in_one_line(given):
    assert refusal(check, given).startswith(("Expected `", "Object missing", "node 'a': Object missing"))


@pytest.mark.parametrize("fault", [MemoryError(), OverflowError("too\nlarge"), RecursionError(), KeyError("\u202e")])
def test_whatever_a_decoder_raises_is_a_refusal(monkeypatch, fault):
    def decode(body):
        raise fault

    monkeypatch.setattr(states_module, "_decoder", SimpleNamespace(decode=decode))
    assert refusal(check, b"{}").isprintable()


FOREIGN = [b"9" * 5000, b"[" * 5000, b'{"a":' * 5000, b'"%b":1,' % (b"x" * 5000), "\x85\u2028\u202e".encode()]
FOREIGN += b'\x00 \xff \xfc \n \x85 \x1b[2J \\ " \xed\xa0\x80 \\ud800 \\u0000 [ ] { } , : - 1e999 NaN null'.split(b" ")
FOREIGN += b'"nodes":[], "node_id":"\\ud83d", "$.nodes[1]":1, "`a`-`at`-`$.nodes[9]":1,'.split(b" ")
CHANGE = st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(FOREIGN) | st.binary(max_size=3))


@settings(max_examples=2000, deadline=None)
@given(st.sampled_from([json.dumps(random_state(n, n)).encode() for n in (1, 3)]), st.lists(CHANGE, max_size=4))
def test_any_change_of_a_state_is_read_or_refused_in_a_short_printable_line(body, changes):
    for where, cut, put in changes:  # at `where` of its length so many bytes make room for others
        at = int(where * len(body))
        body = body[:at] + put + body[at + cut :]
    answers = [check_or_error(body)]
    with suppress(ValueError, RecursionError):
        answers.append(check_or_error(json.loads(body)))
    for answer in answers:
        assert isinstance(answer, CheckedState) or (str(answer).isprintable() and len(str(answer)) <= LONGEST_LINE)


def test_json_is_read_as_the_dict_is_and_values_at_the_limits_are_valid():
    assert check(json.dumps(GOOD).encode()) == check(GOOD)
    for name, most in MOSTS.items():
        for value in (0, most) if name in ("queue_len", "node_type") else (0, 0.0, -0.0, most, float(most)):
            check(changed(**{name: value}))


def test_the_schema_has_the_fields_that_the_model_reads_with_limits_and_units():
    fields = json_schema()["properties"]["nodes"]["items"]["properties"]
    assert {name: fields[name]["maximum"] for name in FEATURES} == MOSTS and Node.__struct_fields__[1:] == FEATURES
    assert fields["energy"]["description"] == "W" and fields["queue_len"]["type"] == "integer"


# ---- as arrays ------------------------------------------------------------------------------------------------------


def as_set(edge_index):
    return sorted(map(tuple, np.asarray(edge_index).T.tolist()))


@settings(max_examples=30)
@given(st.lists(states(), min_size=1, max_size=4), st.integers(0, 4))
def test_arrays_are_the_features_and_edges_of_each_state(many, bare):
    many = [{"nodes": s["nodes"]} if place == bare and not s["links"] else s for place, s in enumerate(many)]
    together = NetworkArrays.of(many)
    assert len(together.starts) == len(many) + 1 and together.x.dtype == np.float32
    for number, (state, x) in enumerate(zip(many, together.split(together.x), strict=True)):
        own = together.network_of[together.edge_index[1]] == number
        assert np.array_equal(x, features(state))
        assert np.array_equal(together.edge_index[:, own] - together.starts[number], edges(state))
    source, target, starts = together.topology.by_target
    assert as_set([source, target]) == as_set(together.edge_index)
    assert (np.diff(target) >= 0).all() and np.array_equal(starts, target.searchsorted(np.arange(len(together.x))))
    adjacency = np.zeros((len(together.x), len(together.x)))
    np.add.at(adjacency, (target, source), 1)
    assert np.array_equal(together.topology.adjacency, adjacency)
    assert list(together.ids) == [n["node_id"] for state in many for n in state["nodes"]]


@settings(max_examples=30)
@given(states(), states())
def test_cached_links_are_those_of_this_very_state(state, other):
    for asked in (state, other, state, copy.deepcopy(state)):
        assert as_set(NetworkArrays.of([asked]).edge_index) == as_set(edges(asked))
    state["links"].clear()  # in place: what is cached does not follow
    assert NetworkArrays.of([state]).edge_index.size == 0


def test_a_network_that_keeps_its_links_keeps_its_topology():
    first, second = random_state(12, 0), random_state(12, 0)
    second["nodes"][3]["cpu_util"] = 0.9
    assert check(first).topology is check(second).topology is not check(random_state(12, 1)).topology


def line(nodes, name="n"):
    """(ids, links) of a network in a row."""
    ids = tuple(f"{name}{i}" for i in range(nodes))
    return ids, tuple(pairwise(ids))


def test_kept_topologies_have_a_bound_in_bytes_and_those_used_last_stay():
    topologies = TopologyCache(most_bytes=200_000)
    first = topologies.topology(*line(20))
    for place in range(100):
        topologies.topology(*line(20, f"{place}-"))
        assert topologies.topology(*line(20)) is first and topologies.held_bytes <= 200_000
    assert topologies.held_bytes > 150_000  # and what the bound allows is used
    assert topologies.topology(*line(20, "0-")) is not topologies.topology(*line(20, "1-"))
    held = topologies.held_bytes
    for large in (line(500), line(2, "x" * 30_000)):
        assert topologies.topology(*large) is not topologies.topology(*large) and topologies.held_bytes == held


def test_a_kept_topology_holds_no_more_than_it_is_counted_as():
    for nodes in (2, 20, 400):
        tracemalloc.start()
        kept = TopologyCache()
        topology = kept.topology(*line(nodes, "node_"))
        assert topology.by_target and (nodes > 64 or topology.adjacency is not None)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept.held_bytes / 3 < held < kept.held_bytes + 10_000


def test_threads_share_kept_topologies():
    topologies, lines = TopologyCache(most_bytes=50_000), [line(12, f"{place}-") for place in range(40)]

    def ask(seed):
        for place in np.random.default_rng(seed).integers(len(lines), size=300):
            ids, links = lines[place]
            ends = topologies.topology(ids, links).edge_index
            assert ends.shape == (2, 22) and topologies.held_bytes <= 50_000

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))


def test_the_first_of_the_highest_scores_is_chosen_in_each_network():
    networks = NetworkArrays.of([random_state(nodes, 0) for nodes in (3, 1, 4)])
    assert networks.decide(np.array([0, 2, 2, -1, -1, -2, -1, -3], dtype=np.float32)) == [1, 3, 4]


def test_edges_of_many_nodes_are_sorted_as_those_of_few():
    edge_index = np.random.default_rng(0).integers(70_000, size=(2, 1000))
    source, target, _ = Topology(edge_index, 70_000).by_target
    assert as_set([source, target]) == as_set(edge_index) and (np.diff(target) >= 0).all()
