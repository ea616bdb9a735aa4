"""A model that cannot be compared is refused in one line. The proof takes what is equal, by the rounding of the user's
own model, and notices what is wrong on one graph."""

import copy
from dataclasses import replace

import own_models
import pytest
import torch
from own_models import own_sum
from refusals import refused
from torch import nn

from gnnlab.optimize import equivalence

pytestmark = pytest.mark.usefixtures("dropout_again")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("own_models:fails", "own_models:fails raised RuntimeError: no such file"),
        ("own_models:ends", "raised SystemExit: 3"),
        ("own_models:no_module", "must return a torch.nn.Module"),
        ("own_models:wants_more", "forward wants positions, which the graph lacks"),
        ("own_models:wants_other_sizes", "its forward raised"),
        ("own_models:always_drops", "is random in eval mode"),
        ("own_models:counts_its_calls", "changes its weight calls"),
        ("own_models:scales_its_weight", "changes its weight lin.weight"),
        ("own_models:writes_to_x", "changes its argument x"),
        ("own_models:gives_a_number", "returns float 3.0"),
        ("own_models:gives_nothing", "must return tensors"),
        ("own_models:gives_nan", "NaN"),
        ("own_models:not_there", "no function 'not_there'"),
        ("symptom_gat", "no module:factory"),
    ],
)
def test_a_model_that_cannot_be_compared_is_refused_in_one_line(spec, words):
    with refused(words):
        equivalence.check(equivalence.load(spec, "karate", False))


@pytest.mark.parametrize("train", [False, True])
def test_tuples_and_dicts_of_tensors_are_fine_and_training_runs_without_dropout(train):
    user = equivalence.load("own_models:with_edges", "symptoms", train)
    equivalence.check(user)
    assert user.model.training is train
    outputs = [user.model(**user.batch)["classes"] for _ in range(2)]
    assert torch.equal(*outputs) or not train


def test_a_model_that_keeps_the_first_graph_is_proven_on_that_alone(monkeypatch):
    monkeypatch.setattr(own_models, "gcn", lambda data: own_models.GCN(data.num_features, 8, 2, 3, cached=True))
    assert list(equivalence.graphs(equivalence.load("own_models:gcn", "karate", False))) == [equivalence.YOUR_GRAPH]


def test_drawn_graphs_are_moved_to_the_device_and_tried_on_the_cpu_before(monkeypatch):
    user = equivalence.load("own_models:gcn", "karate", False)
    tried, values = [], equivalence.values

    def on_cpu(model, batch, train):
        tried.append(batch["x"].device.type)
        if len(batch["x"]) > user.data.num_nodes:
            raise IndexError("index out of range")  # which on CUDA would end the process
        return values(model, batch, train)

    monkeypatch.setattr(equivalence, "values", on_cpu)
    monkeypatch.setattr(equivalence, "_in_float64", lambda *_: None)
    monkeypatch.setattr(equivalence, "device_of", lambda *_: torch.device("meta"))
    monkeypatch.setattr(equivalence, "BaselineOutput", lambda *_, **__: None)
    cases = equivalence.reference(user)
    assert set(tried) == {"cpu"} and len(tried) == len(cases) - 2  # of the user's own graph it is known
    for name, case in cases.items():
        if case.batch is None:
            assert case.why == "IndexError: index out of range" and equivalence.graphs(user)[name].num_nodes > 34
        else:
            assert {tensor.device.type for tensor in case.batch.values()} == {"cpu" if "your" in name else "meta"}
    assert {equivalence.SAME_SIZE, "no edges"} <= {name for name, case in cases.items() if case.batch is not None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_here_is_refused_in_one_line():
    with refused("device 'cuda' cannot be used here"):
        equivalence.load("own_models:gcn", "karate", False, "cuda")


@pytest.fixture
def reference():
    """The model of a factory, and what compares others with it."""

    def write(factory, train=False, graph="karate"):
        user = equivalence.load(f"own_models:{factory}", graph, train)
        cases = equivalence.reference(user)
        return user, lambda model: equivalence.compare(model, user, cases)

    return write


def test_the_graphs_are_what_they_are_called():
    user = equivalence.load("own_models:with_edges", "symptoms", False)
    data, graphs = user.data, equivalence.graphs(user)
    hard = graphs["isolated nodes, repeated edges, self-loops"]
    pairs = hard.edge_index.T.tolist()
    assert len(set(map(tuple, pairs))) < len(pairs) and any(a == b for a, b in pairs)
    assert hard.edge_index.max() < hard.num_nodes - 1
    assert hard.edge_weight.shape == (hard.num_edges,) and hard.x.shape == (hard.num_nodes, data.num_features)
    assert graphs["no edges"].num_edges == 0 and graphs["one node with a self-loop"].num_nodes == 1
    same = graphs[equivalence.SAME_SIZE]
    assert (same.num_nodes, same.num_edges) == (data.num_nodes, data.num_edges)
    assert not torch.equal(same.edge_index, data.edge_index)
    assert set(graphs["four graphs, one without nodes"].batch.tolist()) == {0, 1, 3}


def test_self_loops_at_one_node_have_one_weight():
    """Of several that differ, PyG's `add_remaining_self_loops` takes any: there is no right answer."""
    drawn = equivalence.graphs(equivalence.load("own_models:with_edges", "symptoms", False))
    several = 0
    for name, graph in drawn.items():
        weights = {}
        for source, target, weight in zip(*graph.edge_index.tolist(), graph.edge_weight.tolist(), strict=True):
            if source == target:
                weights.setdefault(source, []).append(weight)
        several += any(len(one) > 1 for one in weights.values())
        assert name == equivalence.YOUR_GRAPH or all(len(set(one)) == 1 for one in weights.values()), name
    assert several >= 3


def test_the_model_itself_is_equal_on_every_graph(reference):
    user, compare = reference("gat")
    proven = compare(user.model)
    assert proven.equal and len(proven.passed) == 8 and proven.error <= equivalence.ALLOWED


def altered(change):
    class Changed(type(own_sum(None))):
        def forward(self, x, edge_index):
            return change(super().forward(x, edge_index), x, edge_index)

    return Changed()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda y, x, e: y * (1 + 1e-4), equivalence.YOUR_GRAPH),
        (lambda y, x, e: y + (e[0] == e[1]).any(), equivalence.SAME_SIZE),  # only where there are self-loops
        (lambda y, x, e: y + (e.shape[1] == 0), "no edges"),
        (lambda y, x, e: y[:, :1].expand_as(y), equivalence.YOUR_GRAPH),
        (lambda y, x, e: y / (e.shape[1] != 0), "no edges"),  # not finite
    ],
)
def test_what_is_wrong_on_one_kind_of_graph_is_noticed(reference, change, wrong):
    _, compare = reference("own_sum")
    proven = compare(altered(change))
    assert wrong in proven.wrong and wrong not in proven.passed


def test_a_variant_that_is_right_at_one_size_alone_is_not_equal(reference):
    user, compare = reference("own_sum")
    proven = compare(altered(lambda y, x, e: y + (len(x) != user.data.num_nodes)))
    assert "a larger graph" in proven.wrong and equivalence.YOUR_GRAPH in proven.passed and not proven.equal


def test_what_keeps_the_first_graph_is_wrong(reference):
    user, compare = reference("own_sum")
    first = user.batch["edge_index"]

    class Stale(type(user.model)):
        def forward(self, x, edge_index):
            return super().forward(x, first if edge_index.shape == first.shape else edge_index)

    proven = compare(Stale())
    assert equivalence.SAME_SIZE in proven.wrong and not proven.equal


class Least(nn.Module):
    """The sum, of graphs with so many nodes."""

    def __init__(self, nodes):
        super().__init__()
        self.sum, self.nodes = own_sum(None), nodes

    def forward(self, x, edge_index):
        if len(x) < self.nodes:
            raise ValueError("too small")
        return self.sum(x, edge_index)


def test_a_graph_that_the_users_model_does_not_take_is_skipped_and_one_that_the_variant_refuses_is_wrong():
    user = replace(equivalence.load("own_models:own_sum", "karate", False), model=Least(2))
    proven = equivalence.compare(Least(20), user, equivalence.reference(user))
    assert proven.skipped == {"one node with a self-loop": "ValueError: too small"}
    assert proven.wrong == {"no edges": "it fails, ValueError: too small,"} and not proven.equal


def test_gradients_are_compared_each_by_itself(reference):
    user, compare = reference("with_edges", train=True, graph="symptoms")
    other = copy.deepcopy(user.model)
    assert compare(other).equal
    other.out.weight.register_hook(lambda gradient: gradient * 1.001)
    assert "gradient of out.weight" in compare(other).wrong[equivalence.YOUR_GRAPH]


def test_a_miss_is_looked_at_again_and_a_model_that_gives_two_results_is_to_blame(reference):
    user, compare = reference("own_sum")
    off = iter([1e-3])
    assert compare(altered(lambda y, x, e: y + next(off, 0.0))).equal
    shift = [0.0]
    shifts = replace(user, model=altered(lambda y, x, e: y + shift[0]))
    cases = equivalence.reference(shifts)
    shift[0] = 1e-3
    wrong = equivalence.compare(altered(lambda y, x, e: y + 1), shifts, cases).wrong[equivalence.YOUR_GRAPH]
    assert wrong.startswith("own_models:own_sum itself gave two results for one input")


def test_a_graph_on_which_the_users_model_gives_nothing_but_nan_is_held_where_the_variant_gives_the_same(reference):
    user, _ = reference("own_sum")
    user = replace(user, model=altered(lambda y, x, e: y / min(e.shape[1], 1) if e.shape[1] else y * float("nan")))
    cases = equivalence.reference(user)
    assert "no edges" in equivalence.compare(copy.deepcopy(user.model), user, cases).passed
    assert "no edges" in equivalence.compare(own_sum(None), user, cases).wrong


def test_a_variant_may_give_more_gradients_and_not_fewer(reference):
    user, compare = reference("with_edges", train=True, graph="symptoms")
    other = copy.deepcopy(user.model)
    other.more = nn.Parameter(torch.ones(()))
    other.out.register_forward_hook(lambda layer, _, y: y * other.more)
    assert compare(other).equal
    other.out.weight.requires_grad_(False)
    assert "has the keys gradient of out.weight" in compare(other).wrong[equivalence.YOUR_GRAPH]
