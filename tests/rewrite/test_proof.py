"""The proof takes what is equal, by the rounding of the user's own model, and notices what is wrong on one graph."""

import numpy as np
import pytest
import torch
from own_models import own_sum
from torch import nn

from gnnlab.rewrite import proof, subject


@pytest.fixture
def reference(tmp_path):
    """The subject of a factory, with its reference written."""

    def write(factory, train=False, graph="karate"):
        found = subject.load(f"own_models:{factory}", graph, train)
        proof.write_reference(found.model, found.data, found.spec, train, tmp_path, False)
        return found, lambda model: proof.compare(model, found.data, found.spec, train, tmp_path, False)

    return write


def test_the_graphs_are_what_they_are_called():
    data = subject.load("own_models:with_edges", "symptoms", False).data
    found = proof.graphs(data)
    hard = found["isolated nodes, repeated edges, self-loops"]
    pairs = hard.edge_index.T.tolist()
    assert len(set(map(tuple, pairs))) < len(pairs) and any(a == b for a, b in pairs)
    assert hard.edge_index.max() < hard.num_nodes - 1
    assert hard.edge_weight.shape == (hard.num_edges,) and hard.x.shape == (hard.num_nodes, data.num_features)
    assert found["no edges"].num_edges == 0 and found["one node with a self-loop"].num_nodes == 1
    same = found[proof.SAME_SIZE]
    assert (same.num_nodes, same.num_edges) == (data.num_nodes, data.num_edges)
    assert not torch.equal(same.edge_index, data.edge_index)
    assert set(found["four graphs, one without nodes"].batch.tolist()) == {0, 1, 3}


def test_the_model_itself_is_equal_on_every_graph(reference):
    found, compare = reference("gat")
    proven = compare(found.model)
    assert proven.holds_on_yours and len(proven.held) == 8 and proven.error <= proof.ALLOWED


def altered(change):
    class Changed(type(own_sum(None))):
        def forward(self, x, edge_index):
            return change(super().forward(x, edge_index), x, edge_index)

    return Changed()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda y, x, e: y * (1 + 1e-4), proof.YOURS),
        (lambda y, x, e: y + (e[0] == e[1]).any(), proof.SAME_SIZE),  # only where there are self-loops
        (lambda y, x, e: y + (e.shape[1] == 0), "no edges"),
        (lambda y, x, e: y[:, :1].expand_as(y), proof.YOURS),
        (lambda y, x, e: y / (e.shape[1] != 0), "no edges"),  # not finite
    ],
)
def test_what_is_wrong_on_one_kind_of_graph_is_noticed(reference, change, wrong):
    _, compare = reference("own_sum")
    proven = compare(altered(change))
    assert wrong in proven.wrong and wrong not in proven.held


def test_a_form_of_one_size_holds_on_yours_and_is_wrong_elsewhere(reference):
    found, compare = reference("own_sum")
    proven = compare(altered(lambda y, x, e: y + (len(x) != found.data.num_nodes)))
    assert proven.holds_on_yours and "a larger graph" in proven.wrong


def test_what_keeps_the_first_graph_is_wrong(reference):
    found, compare = reference("own_sum")
    first = found.batch["edge_index"]

    class Stale(type(found.model)):
        def forward(self, x, edge_index):
            return super().forward(x, first if edge_index.shape == first.shape else edge_index)

    proven = compare(Stale())
    assert proof.SAME_SIZE in proven.wrong and not proven.holds_on_yours


class Least(nn.Module):
    """The sum, of graphs with so many nodes."""

    def __init__(self, nodes):
        super().__init__()
        self.sum, self.nodes = own_sum(None), nodes

    def forward(self, x, edge_index):
        if len(x) < self.nodes:
            raise ValueError("too small")
        return self.sum(x, edge_index)


def test_a_graph_that_the_users_model_does_not_take_is_skipped_and_one_that_the_form_refuses_is_told(tmp_path):
    found = subject.load("own_models:own_sum", "karate", False)
    proof.write_reference(Least(2), found.data, found.spec, False, tmp_path, False)
    proven = proof.compare(Least(20), found.data, found.spec, False, tmp_path, False)
    assert proven.skipped == {"one node with a self-loop": "ValueError: too small"}
    assert proven.refused == {"no edges": "ValueError: too small"} and proven.holds_on_yours


def test_gradients_are_compared_each_by_itself(reference, monkeypatch):
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(nn.functional, "dropout", nn.functional.dropout)
    found, compare = reference("with_edges", train=True, graph="symptoms")
    assert compare(found.model).holds_on_yours
    found.model.out.weight.register_hook(lambda gradient: gradient * 1.001)
    assert "gradient of out.weight" in compare(found.model).wrong[proof.YOURS]


def test_rounding_is_measured_by_the_users_own():
    exact = np.array([0.0, 0.0])
    own = {"g": np.array([1e-8, -1e-8], np.float32), "exact g": exact}
    assert proof.difference(own, {"g": np.array([3e-8, 0.0], np.float32)})[0] <= proof.ALLOWED
    assert proof.difference(own, {"g": np.array([3e-7, 0.0], np.float32)})[0] > proof.ALLOWED
    assert proof.difference({"g": exact}, {"g": exact + 1e-30})[0] == float("inf")
    beside = {"g": exact, "h": np.array([2.0])}
    assert proof.difference(beside, beside | {"g": exact + 1e-6})[0] <= proof.ALLOWED
    assert proof.difference(beside, beside | {"g": exact + 1e-5})[0] > proof.ALLOWED
    assert proof.difference({"g": exact}, {})[0] == float("inf")
