"""Layers of PyG and of one's own, fast: the same outputs and gradients, and it is known which kernel each takes."""

import ast
import copy
import dataclasses
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import layer_cases
import pytest
import torch
from layer_cases import (
    CASES,
    CLOSE,
    DEGREES,
    EDGE,
    GRAPHS,
    IN,
    OUT,
    arguments,
    assert_same,
    build,
    edges_of,
    network,
    results,
)
from safetensors.torch import load_file
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.nn import aggr
from torch_geometric.nn.conv import MessagePassing

from gnnswap import attention, compile_ops, direct, layer, swap
from gnnswap.errors import SwapError
from gnnswap.layer import DIRECT, NONE, SUM
from gnnswap.sparse import ANY_SIZE, SparseInputs

MANY = edges_of("many edges")  # 60, of 13 nodes


def swapped(model):
    return swap(model, measure=False).model


@pytest.fixture(scope="module")
def of_pyg_alone(tmp_path_factory):
    """What PyG gives in a process that never saw gnnswap."""
    file = tmp_path_factory.mktemp("layers") / "pyg.safetensors"
    command = [sys.executable, "-W", "ignore", layer_cases.__file__, str(file)]
    subprocess.run(command, check=True, cwd=Path(__file__).parent)
    return load_file(file)


# what a layer becomes in its first call, with values of edges that want gradients: own kernels, one sum, or nothing
NOT_FAST = "EG", "GCN max", "Graph several", "LE", "SAGE several"
OF_ONE_SUM = {name for name in CASES if name.startswith(("GCN ", "Graph", "GIN bi", "SAGE bi", "GAT bi", "GATv2 bi"))}
OF_ONE_SUM |= {"AGNN", "APPNP", "APPNP without norm", "Cheb", "ClusterGCN", "FA", "GATv2 with edges", "GCN", "GCN2",
               "GIN mean", "GatedGraph", "LG", "MF", "MixHop", "PDN", "SAGE max", "SG", "SSG", "Signed", "Simple",
               "TAG", "WL"}  # fmt: skip
OF_ONE_SUM -= {"GCN plain"}
EXPECTED = {name: NONE if name in NOT_FAST else SUM if name in OF_ONE_SUM else DIRECT for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_each_gradient_are_those_of_pyg_alone(name, of_pyg_alone):
    model = swapped(build(name))
    for graph, (nodes, _) in GRAPHS.items():
        inputs, called = arguments(name, edges_of(graph), nodes)
        state = torch.get_rng_state()
        ours = results(model, inputs, called)
        assert torch.equal(state, torch.get_rng_state())
        expected = [of_pyg_alone.get(f"{name}/{graph}/{at}") for at in range(len(ours))]
        assert_same(ours, expected)
        assert_same(results(model, inputs, called), expected)  # what is kept serves the second call
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                torch.testing.assert_close(model(*called), expected[0], **CLOSE)
    for one in model.modules():
        if hasattr(one, "_fast"):
            assert (one._fast.mechanism("cpu") or NONE) == EXPECTED[name], one._fast.why


@pytest.mark.parametrize("name", CASES)
def test_a_changed_graph_and_changed_values_are_seen(name):
    reference, edge_index = build(name), MANY.clone()
    model = swapped(reference)
    inputs, called = arguments(name, edge_index, 13)
    fixed = {id(value): value.detach() for value in inputs}  # values that want no gradient are kept

    def plain(value):
        return tuple(map(plain, value)) if isinstance(value, tuple) else fixed.get(id(value), value)

    def check():
        torch.testing.assert_close(model(*plain(called)), reference(*plain(called)), **CLOSE)

    check()
    edge_index.copy_(edges_of("many edges", seed=1))
    check()
    for value in fixed.values():
        value.mul_(1.5)
        check()
    inputs, called = arguments(name, edges_of("few edges", seed=2), 13, seed=3)
    assert_same(results(model, inputs, called), results(reference, inputs, called))


# ---- kernels written for a class of layers --------------------------------------------------------------------------

SERVED = [name for name, (make, _) in CASES.items() if type(make()) in direct.KERNELS and not direct.why_not(make())]
SERVED = [name for name in SERVED if "bipartite" not in name]


def in_a_trace(name):
    """(the layer, what its kernel gives for a call where it is traced)."""
    one = build(name)
    one._fast = SimpleNamespace(caches=SimpleNamespace(inputs=SparseInputs(ANY_SIZE)))
    kernel = direct.KERNELS[type(one)]

    def call(x, edge_index, values=None):
        return kernel.run(one, x, compile_ops.Traced(kernel, kernel.options(one), edge_index, values))

    call.parameters = one.parameters
    return one, call


def test_each_kernel_is_tried():
    assert {type(CASES[name][0]()) for name in SERVED} == set(direct.KERNELS)


@pytest.mark.parametrize("name", SERVED)
def test_in_a_trace_a_kernel_gives_what_the_layer_gives_and_calls_or_opens_every_module(name):
    one, traced = in_a_trace(name)
    inputs, called = arguments(name, MANY, 13)
    called = *called[:2], *(value.detach() for value in called[2:])
    for _ in range(2):  # x is known to be sparse the second time
        assert_same(results(traced, inputs[:1], called), results(one, inputs[:1], called))
    options = direct.KERNELS[type(one)].options(one)
    assert ast.literal_eval(repr(options)) == options and hash(options) is not None
    opened = {id(module) for module in direct.KERNELS[type(one)].opened(one)}
    inside, seen = [module for module in one.modules() if module is not one], set()
    for module in inside:
        module.register_forward_hook(lambda module, *_: seen.add(id(module)))
    traced(*called)
    apart = nn.ModuleList, pyg.MLP, nn.Sequential, nn.Identity
    assert not [module for module in inside if type(module) not in apart and id(module) not in opened | seen]


def with_part(layer, name, module):
    setattr(layer, name, module)
    return layer


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


class OwnSum(aggr.SumAggregation):
    """Who knows what it does."""


class OwnReLU(nn.ReLU):
    """Who knows what it does."""


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pyg.GATConv(IN, 4, edge_dim=EDGE, fill_value="max"), "fill_value='max'"),
        (lambda: pyg.GATConv(IN, 4, edge_dim=EDGE, fill_value=torch.tensor(0.0)), "fill_value=tensor(0.)"),
        (lambda: pyg.GATv2Conv(IN, 4, aggr="max"), "aggr='max'"),
        (lambda: pyg.GCNConv(IN, 4, flow="target_to_source"), "its flow"),
        (lambda: pyg.GCNConv(IN, 4, cached=True), "PyG's own cache"),
        (lambda: pyg.GCNConv(-1, 4), "no shape"),
        (lambda: pyg.SAGEConv(IN, 4, project=True), "a projection"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "aggr_module", aggr.MaxAggregation()), "aggr='add'"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "aggr_module", OwnSum()), "aggr='add'"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", nn.Sequential(nn.Linear(IN, 4))), ""),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", nn.utils.parametrizations.weight_norm(nn.Linear(IN, 4))),
         "a ParametrizedLinear inside"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", hooked(nn.Linear(IN, 4))), "hooks of its Linear"),
        (lambda: pyg.GINConv(nn.Sequential(hooked(nn.Linear(IN, 4)))), "hooks of its Linear"),
        (lambda: pyg.GINConv(hooked(nn.Sequential(nn.Linear(IN, 4)))), "hooks of its Sequential"),
        (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 4), hooked(nn.ReLU()))), "hooks of its ReLU"),
        (lambda: pyg.ResGatedGraphConv(IN, 8, act=nn.Tanh()), "another activation"),
        (lambda: pyg.FiLMConv(IN, 8, num_relations=2), "several relations or another activation"),
        (lambda: pyg.FiLMConv(IN, 8, act=OwnReLU()), "several relations or another activation"),
        (lambda: pyg.PNAConv(IN, 8, ["mean"], ["identity"], DEGREES, pre_layers=2), "several layers before"),
        (lambda: pyg.EdgeConv(nn.Sequential(nn.ReLU(), nn.Linear(2 * IN, 8))), "begins with no linear layer"),
        (lambda: pyg.NNConv(IN, 2, nn.Sequential(nn.Linear(EDGE, 2 * IN), nn.Tanh())), "ends with no linear layer"),
        (lambda: pyg.GENConv(IN, IN, aggr="powermean", p=2.0), "aggr="),
        (lambda: pyg.GENConv(IN, IN, aggr=["mean", "max"]), "several aggregations"),
        (lambda: pyg.GINEConv(network(), aggr="median"), "aggr="),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_said(make, why):
    assert why in direct.why_not(make())


def test_relations_that_there_are_not_are_left_out_or_refused_as_pyg_does():
    x, edge_index, types = torch.randn(13, IN).double(), MANY, torch.arange(60) % 5 - 1
    reference = pyg.RGCNConv(IN, OUT, 3, num_blocks=2).double()
    assert_same(*(results(one, [], (x, edge_index, types)) for one in (swapped(reference), reference)))
    reference = pyg.RGCNConv(IN, OUT, 3).double()
    for one in (reference, swapped(reference)):
        with pytest.raises((RuntimeError, SwapError)):
            one(x, edge_index, types)


def test_attention_of_a_small_graph_goes_over_all_pairs_but_for_features_of_edges_and_dropout(monkeypatch):
    went, over_pairs = [], attention._Dense.run.__func__
    counted = lambda *given: went.append(1) or over_pairs(*given)  # noqa: E731
    monkeypatch.setattr(attention._Dense, "run", classmethod(counted))
    for name, pairs in (("GAT", 1), ("GATv2", 1), ("Transformer", 1), ("Transformer with edges", 0), ("dropout", 0)):
        dropping = name == "dropout"
        model = swapped(pyg.GATConv(IN, 4, dropout=0.5).double() if dropping else build(name).eval())
        called = arguments("GAT" if dropping else name, MANY, 13)[1]
        model(*called)
        went.clear()
        model.train(dropping)(*called)
        assert len(went) == pairs, name


def test_without_numba_the_layers_that_need_it_stay_those_of_pyg(monkeypatch):
    monkeypatch.delitem(sys.modules, "gnnswap.fused_numba", raising=False)
    monkeypatch.delattr("gnnswap.fused_numba", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    report = swap(pyg.ResGatedGraphConv(IN, 8), (torch.randn(13, IN), MANY), measure=False)
    assert not report.replaced and "import of numba" in str(report)


# ---- layers of one's own --------------------------------------------------------------------------------------------


class Weighted(MessagePassing):
    """Rows with the weights of the edges, and a number that is learned. `say(layer, x_j, weight)` is its message."""

    def __init__(self, say, aggr="add"):
        super().__init__(aggr=aggr)
        self.say, self.scale = say, nn.Parameter(torch.tensor(2.0))

    def forward(self, x, edge_index, weight):
        return self.propagate(edge_index, x=x, weight=weight.view(-1, 1))

    def message(self, x_j, weight):
        return self.say(self, x_j, weight)


COLUMNS = torch.arange(1, IN + 1, dtype=torch.double)
SUMS = {
    "a weight an edge": lambda one, x_j, weight: one.scale * weight * x_j,
    "a weight an entry, as in SchNet": lambda one, x_j, weight: x_j * (weight * COLUMNS).sin(),
}


def own_call():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, IN, generator=generator, dtype=torch.double, requires_grad=True)
    weight = torch.rand(60, generator=generator, dtype=torch.double, requires_grad=True)
    return [x, weight], (x, MANY, weight)


@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("say", SUMS.values(), ids=SUMS)
def test_messages_that_are_weighted_rows_are_one_sum(say, aggr):
    reference, (inputs, called) = Weighted(say, aggr).double(), own_call()
    model = swapped(reference)
    for _ in range(2):
        assert_same(results(model, inputs, called), results(reference, inputs, called))
    assert model._fast.mechanism("cpu") == SUM, model._fast.why


def test_weights_that_are_drawn_in_each_call_are_not_cached():
    model = swapped(Weighted(lambda one, x_j, weight: x_j * (torch.rand(x_j.shape[0], 1) < 0.5)).double())
    _, called = own_call()
    first, second = model(*called), model(*called)
    assert model._fast.mechanism("cpu") == SUM and not torch.equal(first, second)


@pytest.mark.parametrize(
    ("model", "called", "why"),
    [
        (build("GCN max"), arguments("GCN max", MANY, 13)[1],
         "own kernel: aggr='max'; sparse sum: its message, of x_j: a maximum of weighted rows in eval"),
        (Weighted(lambda one, x_j, weight: x_j @ torch.eye(IN).double()).double(), own_call()[1],
         "sparse sum: its message, of x_j: matmul in eval"),
        (Weighted(lambda one, x_j, weight: weight * torch.ones(1, IN)).double(), own_call()[1],
         "sparse sum: its message, of x_j: its result does not follow from the rows alone in eval"),
    ],
)  # fmt: skip
def test_a_layer_that_stays_says_why_in_plain_words(model, called, why):
    report = swap(model, measure=False)
    report.model(*called)
    assert report.kept[0][2] == why, report


# ---- the comparison -------------------------------------------------------------------------------------------------


@pytest.fixture
def with_kernel(monkeypatch):
    """GCN whose kernel is another."""

    def swapped_with(run):
        kernel = dataclasses.replace(direct.KERNELS[pyg.GCNConv], run=run)
        monkeypatch.setitem(direct.KERNELS, pyg.GCNConv, kernel)
        layer._CLASSES.pop(pyg.GCNConv, None)
        return swapped(build("GCN plain"))

    yield swapped_with
    layer._CLASSES.pop(pyg.GCNConv, None)


RIGHT = direct.KERNELS[pyg.GCNConv].run


def off_where(condition):
    return lambda one, x, total: RIGHT(one, x, total) * (1.001 if condition(one, x, total) else 1)


def of_second_order(one, x, total):
    return RIGHT(one, x, total) + 0.1 * (x - x.detach()).square().sum()


def draws(one, x, total):
    return RIGHT(one, x, total) + 0 * torch.rand(1).double()


def writes(one, x, total):
    x.data.add_(0), x.detach().add_(0)
    return RIGHT(one, x, total)


def leaves(one, x, total):
    one.last = x.detach()
    return RIGHT(one, x, total)


def is_sparse(one, x, total):
    return one._fast.caches.inputs.get(x) is not None


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (off_where(lambda one, x, total: one.training), "1.0e-03 in training"),
        (off_where(lambda one, x, total: x.shape[0] not in (23, 66)), "1.0e-03 in eval"),  # of the drawn graphs
        (off_where(lambda one, x, total: not x.requires_grad), "1.0e-03 in eval"),
        (off_where(lambda one, x, total: isinstance(total, compile_ops.Traced)), "e-03 in eval"),
        (off_where(is_sparse), "1.0e-03"),
        (lambda one, x, total: RIGHT(one, x.detach(), total), "the gradient of argument x: it is missing in eval"),
        (of_second_order, "the second gradient of argument x"),
        (draws, "the next random number differs"),
        (writes, "it writes to its inputs"),
        (leaves, "what it leaves in last: it is missing"),
        (lambda one, x, total: RIGHT(one, x, total.nothing), "it fails: AttributeError: "),
    ],
    ids=["training", "the user's own edges", "fixed inputs", "torch.compile", "zeros", "a gradient", "a second one",
         "random numbers", "inputs written to", "something left", "it raises"],
)  # fmt: skip
def test_a_kernel_that_is_wrong_in_one_case_alone_is_not_taken(kernel, why, with_kernel):
    model, reference = with_kernel(kernel), build("GCN plain")
    inputs, called = arguments("GCN plain", MANY, 13)
    assert_same(results(model.train(), inputs, called), results(reference.train(), inputs, called))
    assert model._fast.direct == {(None, "cpu", ""): False} and why in model._fast.why[DIRECT], model._fast.why


# ---- calls that a kernel was not made for ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN plain", "SAGE mean", "GIN", "GAT", "GATv2", "Transformer with edges"])
def test_a_call_that_does_not_fit_fails_and_is_not_computed(name):
    model, reference = swapped(build(name)), build(name)
    _, (x, edge_index, *more) = arguments(name, MANY, 13)
    x = (x * (x.abs() > 2)).detach()
    for _ in range(3):
        model(x, edge_index, *more)
    wrong = [(x[:, :5], edge_index, *more), (torch.cat([x, x], 1), edge_index, *more), (x[:8], edge_index, *more),
             *([(x, edge_index)] if more else [])]  # fmt: skip
    for call in wrong:
        for one in (reference, model, model, model):
            with pytest.raises((RuntimeError, IndexError, ValueError, AssertionError)):
                one(*call)


def test_the_class_and_other_instances_stay_as_they_are():
    before = dict(vars(pyg.GCNConv))
    one, other = pyg.GCNConv(IN, 3), pyg.GCNConv(IN, 3)
    model = swapped(one)
    assert dict(vars(pyg.GCNConv)) == before
    assert type(one) is type(other) is pyg.GCNConv and type(model) is not pyg.GCNConv
    assert isinstance(model, pyg.GCNConv)


@pytest.mark.parametrize("name", ["GATv2", "PNA", "TAG"])
def test_copies_and_pickles_are_as_fast(name):
    model, (inputs, called) = swapped(build(name)), arguments(name, MANY, 13)
    expected, file = results(model, inputs, called), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert_same(results(other, inputs, called), expected)
        assert type(other) is type(model) and other._fast.mechanism("cpu") == EXPECTED[name], other._fast.why


def test_edges_of_pygs_own_class_and_attention_weights_come_from_pygs_code():
    for name in ("GCN plain", "GATv2", "Transformer", "GAT with edges"):
        reference, model = build(name), swapped(build(name))
        _, (x, edge_index, *more) = arguments(name, MANY, 13)
        ordered = EdgeIndex(edge_index, sparse_size=(13, 13)).sort_by("col").values
        torch.testing.assert_close(model(x, ordered, *more), reference(x, ordered, *more), **CLOSE)
        if name != "GCN plain":
            given = {"return_attention_weights": True}
            assert_same(*(one(x, edge_index, *more, **given)[1] for one in (model, reference)))


# ---- torch.compile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN plain", "GAT", "Transformer with edges", "RGCN", "PNA"])
def test_torch_compile_keeps_a_kernel_whole_in_eval_then_in_training_and_on_other_sizes(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # reset leaves what other tests counted
    model, reference = swapped(build(name)), build(name)
    model(*arguments(name, MANY, 13)[1])  # compared
    seen = []
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: seen.append(str(graph.graph)) or graph)
    for nodes, edges, seed in ((13, 60, 0), (40, 170, 1)):
        edge_index = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
        (x, *_), called = arguments(name, edge_index, nodes)
        called = *called[:2], *(one.detach() for one in called[2:])
        with torch.no_grad():
            torch.testing.assert_close(compiled.eval()(*called), reference.eval()(*called), **CLOSE)
        assert_same(results(compiled.train(), [x], called), results(reference.train(), [x], called))
    assert seen and all("gnnswap" in graph for graph in seen), "the kernel is not in the graph"


def test_what_changes_after_compiling_is_seen():
    torch._dynamo.reset()
    reference, x = pyg.GATConv(IN, 4, heads=2, edge_dim=3).double(), torch.randn(13, IN, dtype=torch.double)
    model = swapped(reference)
    model(x, MANY)  # without features of edges: their weight gets no gradient
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    changes = (
        lambda one: setattr(one, "negative_slope", 0.9),
        lambda one: setattr(one, "add_self_loops", False),
        lambda one: setattr(one, "lin", nn.Sequential(nn.Tanh(), one.lin)),
    )
    for change in changes:
        assert_same(results(compiled, [], (x, MANY)), results(reference, [], (x, MANY)))
        change(model), change(reference)
        torch.testing.assert_close(compiled(x, MANY), reference(x, MANY), **CLOSE)
