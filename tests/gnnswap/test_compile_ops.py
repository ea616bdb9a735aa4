"""Operators of torch.compile: what they compute from is in the trace, and nothing else."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from layer_cases import CLOSE, IN, arguments, assert_same, build, edges_of, results
from torch import nn
from torch_geometric import nn as pyg

from gnnswap import compile_ops, neighbour_sum
from gnnswap.compile_ops import Traced
from gnnswap.direct import KERNELS
from gnnswap.errors import SwapError
from gnnswap.neighbours import Neighbours
from gnnswap.sparse import SparseInputs


class OfKernel(nn.Module):
    """A layer that is computed by its kernel within a trace, and nowhere else."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index, values=None):
        kernel = KERNELS[type(self.layer)]
        return kernel.run(self.layer, x, Traced(kernel, kernel.options(self.layer), edge_index, values))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # reset leaves what other tests counted


def compiled(layer, backend="aot_eager"):
    return torch.compile(OfKernel(layer), fullgraph=True, backend=backend)


def fixed(called):
    """Values of edges want no gradients within a trace."""
    x, edge_index, *values = called
    return x, edge_index, *(one.detach() for one in values)


# other layers: test_layers.py, through `swap`
@pytest.mark.parametrize("name", ["GCN", "GEN with edges", "EdgeConv"])
def test_a_kernel_is_one_graph_in_eval_and_in_training_and_on_other_sizes(name):
    layer = build(name)
    whole = compiled(layer)
    for nodes, edges, seed in ((13, 60, 0), (40, 170, 1)):
        edge_index = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
        (x, *_), called = arguments(name, edge_index, nodes)
        called = fixed(called)
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                torch.testing.assert_close(whole.eval()(*called), layer(*called), **CLOSE)
        assert_same(results(whole.train(), [x], called), results(layer, [x], called))
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: pyg.GATConv(IN, 4, heads=2), "negative_slope", (0.9, 0.4, 0.6)),
        (lambda: pyg.GCNConv(IN, 4), "improved", (True, False, True)),
        (lambda: pyg.GATv2Conv(IN, 4), "add_self_loops", (False, True, False)),
        (lambda: pyg.GENConv(IN, IN, norm="layer"), "aggr_module.t", (0.1, 3.0, 0.5)),
        (
            lambda: pyg.GINEConv(nn.Linear(IN, 4)),
            "aggr_module",
            (pyg.aggr.MaxAggregation(), pyg.aggr.MeanAggregation()),
        ),
    ],
)
def test_an_option_that_changes_after_compiling_is_seen(make, name, value):
    layer = make().double()
    whole = compiled(layer)
    x, edge_index = torch.randn(13, IN).double(), edges_of("many edges")
    called = (x, edge_index, torch.randn(60, IN).double()) if isinstance(layer, pyg.GINEConv) else (x, edge_index)
    *path, last = name.split(".")
    for one in value:
        torch.testing.assert_close(whole(*called), layer(*called), **CLOSE)
        setattr(layer.get_submodule(".".join(path)), last, one)
        torch.testing.assert_close(whole(*called), layer(*called), **CLOSE)


def test_the_operators_take_tensors_numbers_and_text_alone():
    for operator in (torch.ops.gnnswap.aggregate.default, torch.ops.gnnswap.aggregate_back.default):
        kinds = {str(argument.type) for argument in operator._schema.arguments}
        assert kinds <= {"Tensor", "List[Tensor]", "Optional[Tensor]", "str", "List[int]"}, kinds


def test_a_layer_that_is_compiled_is_not_kept_by_the_operators():
    layer = build("GAT")
    _, called = arguments("GAT", edges_of("many edges"), 13)
    compiled(layer)(*called)
    reference = weakref.ref(layer)
    del layer
    torch._dynamo.reset()
    gc.collect()
    assert reference() is None


def test_the_graphs_of_the_process_are_dropped_on_request():
    edge_index = edges_of("many edges")
    neighbour_sum(torch.randn(13, 2), edge_index)
    assert len(compile_ops._GRAPHS)
    compile_ops.forget()
    assert not len(compile_ops._GRAPHS)


@pytest.mark.parametrize("name", ["GCN plain", "GAT", "GEN", "FiLM", "PNA"])
def test_gradients_of_gradients_are_right_within_an_operator(name):
    layer = build(name)
    (x, *_), called = arguments(name, edges_of("many edges"), 13)
    called = fixed(called)

    def second(one):
        wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
        out = one(*called)
        grads = torch.autograd.grad(out.sin().sum(), wanted, create_graph=True, allow_unused=True)
        return torch.autograd.grad(
            sum(one.square().sum() for one in grads if one is not None), wanted, allow_unused=True
        )

    layer._fast = SimpleNamespace(caches=SimpleNamespace(inputs=SparseInputs()))
    for ours, expected in zip(second(OfKernel(layer)), second(layer), strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if expected is None else expected, **CLOSE)


def test_gradients_of_gradients_are_refused_where_torch_compile_has_none():
    layer = build("GAT")
    (x,), (_, edge_index) = arguments("GAT", edges_of("many edges"), 13)
    (grad,) = torch.autograd.grad(compiled(layer)(x, edge_index).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_values_of_edges_that_want_gradients_are_refused_and_not_left_without():
    layer = build("GINE max")
    _, called = arguments("GINE max", edges_of("many edges"), 13)
    out = compiled(layer, "eager")(*called)
    with pytest.raises(SwapError, match="detach them"):
        out.sum().backward()


# ---- neighbour_sum --------------------------------------------------------------------------------------------------


def sum_call(dtype=torch.double):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, IN, generator=generator).to(dtype).requires_grad_()
    weight = torch.rand(60, generator=generator).to(dtype).requires_grad_()
    return x, edges_of("many edges"), weight


def by_hand(x, edge_index, weight=None, num_nodes=None):
    rows = x[edge_index[0]] if weight is None else weight[:, None] * x[edge_index[0]]
    return torch.zeros(num_nodes or x.shape[0], x.shape[1], dtype=rows.dtype).index_add(0, edge_index[1], rows)


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("weighted", [False, True])
def test_neighbour_sum_is_index_add_by_hand(compile, weighted):
    function = torch.compile(neighbour_sum, fullgraph=True, backend="aot_eager") if compile else neighbour_sum
    x, edge_index, weight = sum_call()
    called = (x, edge_index, weight) if weighted else (x, edge_index)
    wanted = [one for one in called if one is not edge_index]
    out, expected = function(*called, num_nodes=20), by_hand(*called, num_nodes=20)
    torch.testing.assert_close(out, expected, **CLOSE)
    grads = (torch.autograd.grad(one.sin().sum(), wanted) for one in (out, expected))
    torch.testing.assert_close(*grads, **CLOSE)


def test_neighbour_sum_takes_neighbours_that_were_prepared():
    x, edge_index, weight = sum_call()
    graph = Neighbours.prepare(edge_index, 20, num_sources=13)
    torch.testing.assert_close(neighbour_sum(x, graph, weight), by_hand(x, edge_index, weight, 20), **CLOSE)
    with pytest.raises(SwapError, match="13 sources and 20 targets"):
        neighbour_sum(x, graph, weight, num_nodes=13)
    ints = torch.arange(13).unsqueeze(1)
    assert torch.equal(neighbour_sum(ints, graph), by_hand(ints, edge_index, None, 20).long())


def test_neighbour_sum_has_second_derivatives():
    x, edge_index, weight = sum_call()
    assert torch.autograd.gradgradcheck(lambda x, weight: neighbour_sum(x, edge_index, weight).sin(), (x, weight))


@pytest.mark.parametrize("x", [torch.randn(13), torch.randn(13, 2, 3), torch.arange(26).view(13, 2),
                               torch.randn(13, 2, dtype=torch.cfloat), torch.randn(13, 2).half()],
                         ids=["one column", "heads", "integers", "complex", "half"])  # fmt: skip
def test_neighbour_sum_takes_what_index_add_takes(x):
    edge_index = edges_of("many edges").int()
    close = {"rtol": 0.01, "atol": 0.01} if x.dtype is torch.half else {}
    expected = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
    torch.testing.assert_close(neighbour_sum(x, edge_index), expected, **close)
    weight = torch.rand(60)
    expected = weight.view(-1, *[1] * (x.dim() - 1)) * x[edge_index[0]]
    expected = expected.new_zeros(x.shape).index_add(0, edge_index[1], expected)
    torch.testing.assert_close(neighbour_sum(x, edge_index, weight), expected, **close)


def test_neighbour_sum_is_transformed_as_index_add_is():
    x, edge_index, weight = sum_call()

    def transforms(function):
        def loss(x, weight):
            return function(x, edge_index, weight).sin().sum()

        yield torch.func.grad(loss)(x, weight)
        yield torch.func.vmap(loss, (0, None))(torch.stack([x, 2 * x, -x]), weight)
        yield torch.func.jvp(loss, (x, weight), (2 * x, -weight))
        yield torch.func.hessian(loss, 1)(x, weight)

    for ours, expected in zip(transforms(neighbour_sum), transforms(by_hand), strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)


class Sums(nn.Module):
    def forward(self, x, edge_index, weight):
        return neighbour_sum(x, edge_index, weight)


@pytest.mark.parametrize("strict", [False, True])
def test_neighbour_sum_is_exported_as_operators_of_torch(strict):
    called = tuple(one.detach() for one in sum_call())
    program = torch.export.export(Sums(), called, strict=strict)
    assert not any("gnnswap" in str(node.target) for node in program.graph.nodes)
    other = torch.randn(13, IN).double(), edges_of("many edges", seed=1), torch.rand(60).double()
    torch.testing.assert_close(program.module()(*other), by_hand(*other), **CLOSE)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_neighbour_sum_is_traced_as_operators_of_torch():
    traced = torch.jit.trace(Sums(), tuple(one.detach() for one in sum_call()))
    other = torch.randn(13, IN).double(), edges_of("many edges", seed=1), torch.rand(60).double()
    torch.testing.assert_close(traced(*other), by_hand(*other), **CLOSE)


def test_neighbour_sum_refuses_shapes_that_do_not_fit_in_a_line():
    x, edge_index, weight = sum_call()
    wrong = {
        "edge_index must have shape": (x, edge_index[0]),
        "weight must have shape": (x, edge_index, weight[:5]),
        "x must have a row": (x[0, 0], edge_index),
    }
    for why, called in wrong.items():
        with pytest.raises(SwapError, match=why):
            neighbour_sum(*called)
