import copy
from itertools import pairwise

import numpy as np
from edge_states import node, random_state, states
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.inference.topology import Topology
from gnnlab.workloads.edge_networks import edges, features


def as_set(edge_index):
    return sorted(map(tuple, np.asarray(edge_index).T.tolist()))


def each(networks):
    """(x, edges) of each network, edges numbered from its first node."""
    for number, (start, x) in enumerate(zip(networks.starts, networks.split(networks.x), strict=False)):
        own = networks.network_of[networks.edge_index[1]] == number
        yield x, networks.edge_index[:, own] - start


@settings(max_examples=60)
@given(st.lists(states(), min_size=1, max_size=4))
def test_arrays_are_the_features_and_edges_of_each_state(many):
    together = NetworkArrays.of(many)
    assert len(together) == len(many) and together.x.dtype == np.float32
    for state, (x, edge_index) in zip(many, each(together), strict=True):
        assert np.array_equal(x, features(state)) and np.array_equal(edge_index, edges(state))
    source, target, starts = together.topology.by_target
    assert as_set([source, target]) == as_set(together.edge_index)
    assert (np.diff(target) >= 0).all() and np.array_equal(starts, target.searchsorted(np.arange(len(together.x))))
    adjacency = np.zeros((len(together.x), len(together.x)))
    np.add.at(adjacency, (target, source), 1)
    assert np.array_equal(together.topology.adjacency, adjacency)
    assert list(together.ids) == [n["node_id"] for state in many for n in state["nodes"]]


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
    expected = [a + values[a:b].index(max(values[a:b])) for a, b in pairwise(networks.starts)]
    assert networks.decide(scores) == expected


def test_a_ghost_comes_last_and_touches_nobody():
    networks = NetworkArrays.of([{"nodes": [node("a"), node("b")], "links": []}])
    source, _, starts = networks.topology.with_ghost()
    assert source.tolist() == [2, 2] and len(starts) == 3 and (starts < len(source)).all()


def test_edges_of_many_nodes_are_sorted_as_those_of_few():
    random = np.random.default_rng(0)
    edge_index = random.integers(70_000, size=(2, 1000))
    source, target, _ = Topology(edge_index, 70_000).by_target
    assert as_set([source, target]) == as_set(edge_index) and (np.diff(target) >= 0).all()


def test_links_may_be_left_out():
    usual, bare = random_state(6, 1), {"nodes": random_state(5, 2)["nodes"]}
    for many in ([bare], [usual, bare], [bare, bare, usual]):
        for state, (x, edge_index) in zip(many, each(NetworkArrays.of(many)), strict=True):
            assert np.array_equal(x, features(state)) and as_set(edge_index) == as_set(edges(state))
