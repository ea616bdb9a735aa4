"""Costs follow their formula, and random networks are what they say."""

import numpy as np
import pytest
from edge_states import random_state
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.workloads import edge_networks
from gnnlab.workloads.edge_networks import FEATURES, costs, edges, features, random_states

NO_LINKS = np.empty((2, 0), dtype=np.int64)
EDGE_SERVER = (0.5, 0.4, 120.0, 15.0, 200.0, 5.0, 1.0)


def row(**changes):
    return np.array([[changes.get(name, value) for name, value in zip(FEATURES, EDGE_SERVER, strict=True)]])


def cost(**changes):
    return costs(row(**changes), NO_LINKS)[0]


def test_the_cost_of_a_node_alone_is_that_of_the_formula_by_hand():
    # 15 latency + 10 transfer + 6 tasks of 20 ms + 10 ms/J * 120 W * 0.02 s
    assert cost() == pytest.approx(15 + 10 + 6 * 20 + 24)


def test_neighbours_share_the_medium_and_even_out_the_queues():
    x = np.concatenate([row(), row(cpu_util=0.8, queue_len=1.0), row(cpu_util=0.2, queue_len=2.0)])
    path = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 - 1 - 2
    waiting = 5 + (1 - 5) / 3  # the weight is 1 / (1 + degree of node 1)
    assert costs(x, path)[0] == pytest.approx(15 + 10 * 1.8 + (waiting + 1) * 20 + 24)
    alone = costs(x, NO_LINKS)
    assert costs(x, path)[0] != alone[0] and costs(x, np.array([[1, 2], [2, 1]]))[0] == pytest.approx(alone[0])


def test_an_overloaded_node_costs_a_time_out_more_and_a_full_processor_or_a_dead_link_much_but_not_infinitely_much():
    assert cost(cpu_util=1.0) < 1e5 and 1e4 < cost(bandwidth=0.0) < 1e5
    for name in ("cpu_util", "mem_util"):
        assert cost(**{name: 0.951}) - cost(**{name: 0.95}) > edge_networks.TIME_OUT_MS


@pytest.mark.parametrize("name", ["cpu_util", "mem_util", "energy", "latency", "queue_len"])
def test_more_of_a_burden_never_costs_less(name):
    most = 1 if name.endswith("util") else 1000
    along = [cost(**{name: value}) for value in np.linspace(0, most, 50)]
    assert np.all(np.diff(along) >= 0) and along[-1] > along[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_random_network_is_connected_and_simple_and_the_same_again(nodes, seed):
    state = random_state(nodes, seed)
    assert state == random_state(nodes, seed)
    assert len({node["node_id"] for node in state["nodes"]}) == nodes
    links = [frozenset(link) for link in state["links"]]
    assert len(set(links)) == len(links) and all(len(link) == 2 for link in links)
    reached = {"node_0"}
    while beyond := [link for link in links if link & reached and not link <= reached]:
        reached |= frozenset().union(*beyond)
    assert len(reached) == nodes
    assert {len(state["nodes"]) for state in random_states(100, (1, 4), seed=0)} == {1, 2, 3, 4}


def test_features_and_edges_are_read_in_the_order_of_the_state():
    state = random_state(3, seed=0)
    state["links"] = [["node_2", "node_0"]]
    assert edges(state).tolist() == [[2, 0], [0, 2]]
    assert features(state).dtype == np.float32 and edges(state).dtype == np.int64
    assert features(state)[1].tolist() == pytest.approx([state["nodes"][1][name] for name in FEATURES])
    del state["links"]
    assert edges(state).shape == (2, 0) and features({"nodes": []}).shape == (0, 7)


def test_a_link_to_nowhere_and_a_network_of_no_nodes_are_refused():
    with refused("a link names 'node_9', which is no node_id of this network"):
        edges({**random_state(2, seed=0), "links": [["node_0", "node_9"]]})
    with refused("a network of 0 nodes cannot be had; 1 or more are needed"):
        random_state(0, seed=0)
