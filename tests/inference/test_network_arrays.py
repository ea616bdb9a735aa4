import copy
from itertools import pairwise

import numpy as np
from edge_states import node, random_state, states
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.inference.network_arrays import NetworkArrays, Topology
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


@settings(max_examples=60)
@given(states(), states())
def test_cached_links_are_those_of_this_very_state(state, other):
    for asked in (state, other, state, copy.deepcopy(state)):
        assert as_set(NetworkArrays.of([asked]).edge_index) == as_set(edges(asked))
    state["links"].clear()  # in place: what is cached does not follow
    assert NetworkArrays.of([state]).edge_index.size == 0


def test_a_network_that_keeps_its_links_keeps_its_topology():
    first, second = random_state(12, 0), random_state(12, 0)
    second["nodes"][3]["cpu_util"] = 0.9
    assert NetworkArrays.of([first]).topology is NetworkArrays.of([second]).topology
    assert NetworkArrays.of([first]).topology is not NetworkArrays.of([random_state(12, 1)]).topology


@settings(max_examples=60)
@given(st.lists(states(), min_size=1, max_size=5), st.data())
def test_the_first_of_the_highest_scores_is_chosen_in_each_network(many, data):
    networks = NetworkArrays.of(many)
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=len(networks.x), max_size=len(networks.x)))
    scores = np.array(values, dtype=np.float32)
    first = networks.ptr.tolist()
    expected = [a + values[a:b].index(max(values[a:b])) for a, b in pairwise(first)]
    assert networks.decide(scores).tolist() == expected


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


def test_links_may_be_left_out():
    usual, bare = random_state(6, 1), {"nodes": random_state(5, 2)["nodes"]}
    for many in ([bare], [usual, bare], [bare, bare, usual]):
        for state, (x, edge_index) in zip(many, NetworkArrays.of(many).parts(), strict=True):
            assert np.array_equal(x, features(state)) and as_set(edge_index) == as_set(edges(state))
