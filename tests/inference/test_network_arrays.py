import copy

import numpy as np
import pytest
from allocator_cases import node, states, usual_states
from edge_states import random_state
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.inference import network_arrays, state_checks
from gnnlab.inference.network_arrays import NetworkArrays, Topologies, Topology
from gnnlab.workloads.edge_allocator import decide
from gnnlab.workloads.edge_networks import edges, features


def as_set(edge_index):
    return sorted(map(tuple, np.asarray(edge_index).T.tolist()))


@settings(max_examples=60)
@given(st.lists(states(), min_size=1, max_size=4))
def test_arrays_are_the_features_and_edges_of_each_state(many):
    together = NetworkArrays.of(many)
    assert len(together) == len(many) and together.x.dtype == np.float32
    for state, (x, edge_index) in zip(many, together.parts(), strict=True):
        assert np.array_equal(x, features(state)) and as_set(edge_index) == as_set(edges(state))
    topology, rows = together.topology, np.arange(len(together.x))
    assert (np.diff(topology.target) >= 0).all() and np.array_equal(topology.starts, topology.target.searchsorted(rows))
    assert together.ids == [n["node_id"] for state in many for n in state["nodes"]]


WRONG = [
    lambda s: s["nodes"][0].update(cpu_util=1.5),
    lambda s: s["nodes"][0].update(cpu_util=float("nan")),
    lambda s: s["nodes"][-1].update(latency=-1e-9),
    lambda s: s["nodes"][0].update(energy=float("inf")),
    lambda s: s["nodes"][0].update(queue_len=True),
    lambda s: s["nodes"][0].update(queue_len=2.5),
    lambda s: s["nodes"][0].update(mem_util="0.5"),
    lambda s: s["nodes"][0].update(node_type=3),
    lambda s: s["nodes"][0].update(latency=10**400),
    lambda s: s["nodes"][0].update(extra=1),
    lambda s: s["nodes"][0].pop("energy"),
    lambda s: s["nodes"][0].update(node_id=7),
    lambda s: s["nodes"][0].update(node_id=""),
    lambda s: s["nodes"].append(node("n0")),
    lambda s: s["nodes"].append("n0"),
    lambda s: s.update(nodes=[]),
    lambda s: s.update(nodes=None),
    lambda s: s.update(more=1),
    lambda s: s["links"].append(["n0", "nowhere"]),
    lambda s: s["links"].append(["n0", "n0"]),
    lambda s: s["links"].extend([["n0", "n1"], ["n1", "n0"]]),
    lambda s: s["links"].append(["n0"]),
    lambda s: s["links"].append("n0"),
    lambda s: s["links"].append(None),
    lambda s: s.update(links=None),
]


@settings(max_examples=120)
@given(states(), st.sampled_from(WRONG), st.booleans())
def test_what_state_checks_refuses_is_refused_with_its_message(state, spoil, known_before):
    topologies = Topologies()
    if known_before:
        NetworkArrays.of([state], topologies)
    spoil(state)
    with pytest.raises(GnnlabError) as expected:
        state_checks.check(state)
    for ask in (lambda: NetworkArrays.of([state], topologies), lambda: NetworkArrays.of([*usual_states(2), state])):
        with pytest.raises(GnnlabError) as error:
            ask()
        assert str(error.value) == str(expected.value)


ODD_BUT_GOOD = [
    lambda s: s.update(nodes=tuple(s["nodes"])),
    lambda s: s.pop("links"),
    lambda s: s.update(links=[tuple(pair) for pair in s["links"]]),
    lambda s: s["nodes"][0].update(energy=7),
    lambda s: s["nodes"][0].update(cpu_util=-0.0),
    lambda s: s["nodes"][0].update(cpu_util=np.float64(0.25)),
]


@settings(max_examples=60)
@given(states(), st.sampled_from(ODD_BUT_GOOD))
def test_what_is_not_seen_at_a_glance_is_decided_by_state_checks(state, change):
    change(state)
    try:
        checked = state_checks.check(state)
    except GnnlabError:
        with pytest.raises(GnnlabError):
            NetworkArrays.of([state])
        return
    networks = NetworkArrays.of([state])
    assert np.array_equal(networks.x, checked.x) and as_set(networks.edge_index) == as_set(checked.edge_index)


@settings(max_examples=60)
@given(states(), states())
def test_known_links_are_those_of_this_very_state(state, other):
    topologies = Topologies()
    for asked in (state, other, state, copy.deepcopy(state)):
        networks = NetworkArrays.of([asked], topologies)
        assert as_set(networks.edge_index) == as_set(edges(asked))
    state["links"].clear()  # in place, behind the back of what is kept
    assert NetworkArrays.of([state], topologies).edge_index.size == 0


def test_links_that_stay_are_read_once_and_only_so_many_are_kept():
    topologies, many = Topologies(size=2), usual_states(3)
    for state in (many[0], many[0], copy.deepcopy(many[0])):
        NetworkArrays.of([state], topologies)
    assert (topologies.hits, topologies.misses) == (2, 1)
    for state in many:
        NetworkArrays.of([state], topologies)
    NetworkArrays.of([many[0]], topologies)
    assert topologies.misses == 4
    same_ids = Topologies()
    several = [random_state(12, seed) for seed in range(4)]
    for state in several * 3:
        NetworkArrays.of([state], same_ids)
    assert (same_ids.hits, same_ids.misses) == (8, 4)
    none = Topologies(size=0)
    NetworkArrays.of([many[0]], none), NetworkArrays.of([many[0]], none)
    assert none.misses == 2


@settings(max_examples=60)
@given(st.lists(states(), min_size=1, max_size=5), st.data())
def test_the_choice_is_that_of_the_workload_also_where_scores_are_equal(many, data):
    networks = NetworkArrays.of(many)
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=len(networks.x), max_size=len(networks.x)))
    scores = np.array(values, dtype=np.float32)
    assert networks.decide(scores).tolist() == decide(scores, networks.network_of).tolist()


@settings(max_examples=40)
@given(st.lists(states(), min_size=1, max_size=5), st.integers(1, 12))
def test_pieces_and_parts_taken_are_the_same_networks(many, most_nodes):
    networks = NetworkArrays.of(many)
    pieces = networks.pieces(most_nodes)
    assert all(len(piece.x) <= most_nodes or len(piece) == 1 for piece in pieces)
    assert [i for piece in pieces for i in piece.ids] == networks.ids
    whole = networks.parts()
    found = [part for piece in pieces for part in piece.parts()]
    chosen = list(range(len(many)))[::-1]
    for got, expected in ((found, whole), (networks.take(chosen).parts(), whole[::-1])):
        for (x, edge_index), (wanted_x, wanted_edges) in zip(got, expected, strict=True):
            assert np.array_equal(x, wanted_x) and as_set(edge_index) == as_set(wanted_edges)


def test_a_ghost_comes_last_and_touches_nobody():
    networks = NetworkArrays.of([{"nodes": [node("a"), node("b")], "links": []}])
    padded = networks.with_ghost()
    assert np.array_equal(padded.x[:-1], networks.x) and padded.topology.source.tolist() == [2, 2]
    assert (padded.topology.starts < len(padded.topology.source)).all()


def test_edges_of_many_nodes_are_sorted_as_those_of_few():
    random = np.random.default_rng(0)
    edge_index = random.integers(70_000, size=(2, 1000))
    topology = Topology.of(edge_index, 70_000)
    assert as_set(np.stack([topology.source, topology.target])) == as_set(edge_index)
    assert (np.diff(topology.target) >= 0).all()


def test_the_table_takes_nothing_that_the_limits_forbid():
    assert network_arrays._MOST.tolist() == [state_checks.LIMITS[name][1] for name in network_arrays.FEATURES]


def test_links_that_are_left_out_are_none_and_take_no_closer_look(monkeypatch):
    monkeypatch.setattr(state_checks, "check", None)
    usual, bare = random_state(6, 1), {"nodes": random_state(5, 2)["nodes"]}
    for many in ([bare], [usual, bare], [bare, bare, usual]):
        for state, (x, edge_index) in zip(many, NetworkArrays.of(many).parts(), strict=True):
            assert np.array_equal(x, features(state)) and as_set(edge_index) == as_set(edges(state))
