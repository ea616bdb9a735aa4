"""Counts of operators, FLOPs and bytes against numbers worked out by hand, and against torch's own counter."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.nn import (
    CGConv,
    EdgeConv,
    FiLMConv,
    GATConv,
    GENConv,
    GINConv,
    GINEConv,
    GPSConv,
    GraphSAGE,
    ResGatedGraphConv,
    SAGEConv,
)

from gnnlab.errors import GnnlabError
from gnnlab.profile.roofline import count
from gnnswap import compile_ops, swap

N, E, FEATURES = 6, 20, 8


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, FEATURES, generator=generator), torch.randint(N, (2, E), generator=generator)


def row(fn, operator, *inputs):
    """(calls, flops, bytes read, bytes written, working set) of one operator in a call of `fn`."""
    found = count(fn, inputs).operators.set_index("operator").loc[operator]
    assert found.covered
    return found.calls, found.flops, found.bytes_read, found.bytes_written, found.working_set


def uncovered(counted):
    return list(counted.operators.query("not covered")["operator"])


x = torch.ones(10, 4)  # 160 bytes
index = torch.tensor([0, 1, 1])  # 24 bytes
rows = torch.ones(3, 4)  # 48 bytes
wide = index[:, None].expand(3, 4)
whole, imaginary = torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.complex64)  # 32 bytes each

ones = torch.ones
# fmt: off
BY_HAND = {  # name: (what is called, operator, FLOPs, bytes read, bytes written, working set)
    "product": (lambda: x @ ones(4, 5), "aten::mm", 2 * 10 * 4 * 5, 160 + 80, 200, 440),
    "linear layer": (lambda: F.linear(x, ones(5, 4), ones(5)), "aten::addmm", 400 + 50, 160 + 80 + 20, 200, 460),
    "product of whole numbers": (lambda: whole @ whole, "aten::mm", 0, 32, 32, 64),
    "complex product": (lambda: imaginary @ imaginary, "aten::mm", 8 * 2 * 2 * 2, 32, 32, 64),
    "complex, entry by entry": (lambda: imaginary * imaginary, "aten::mul", 6 * 4, 32, 32, 64),
    "sum of two": (lambda: x + x.clone(), "aten::add", 40, 320, 160, 480),
    "square reads its input once": (lambda: x * x, "aten::mul", 40, 160, 160, 320),
    "in place touches its target once": (lambda: x.clone().add_(1), "aten::add_", 40, 160, 160, 160),
    "an expanded input is small": (lambda: x * ones(1, 4).expand(10, 4), "aten::mul", 40, 176, 160, 336),
    "a row of a larger tensor is small": (lambda: x * x[:1].expand(10, 4), "aten::mul", 40, 176, 160, 336),
    "integers are no floating point": (lambda: index + 1, "aten::add", 0, 24, 24, 48),
    "comparison": (lambda: x > 0, "aten::gt", 40, 160, 40, 200),
    "gelu": (lambda: F.gelu(x), "aten::gelu", 4 * 40, 160, 160, 320),
    "softmax": (lambda: x.softmax(1), "aten::_softmax", 5 * 40, 160, 160, 320),
    "layer norm": (
        lambda: F.layer_norm(x, (4,), ones(4), ones(4)), "aten::native_layer_norm", 5 * 40, 160 + 32, 160 + 80, 432
    ),
    "sum": (lambda: x.sum(), "aten::sum", 40, 160, 4, 164),
    "gather of few rows": (lambda: x[index], "aten::index", 0, 48 + 24, 48, 120),
    "gather of many rows": (
        lambda: x.index_select(0, torch.zeros(50, dtype=torch.long)), "aten::index_select", 0, 160 + 400, 800, 1360
    ),
    "embedding": (lambda: F.embedding(index, x), "aten::embedding", 0, 48 + 24, 48, 120),
    "scatter add in place": (
        lambda: x.clone().scatter_add_(0, wide, rows), "aten::scatter_add_", 12, 48 + 24 + 48, 48, 48 + 24 + 48
    ),
    "index add": (lambda: x.index_add(0, index, rows), "aten::index_add", 12, 160 + 24 + 48, 160, 392),
    "index put that sums": (
        lambda: x.clone().index_put_((index,), rows, accumulate=True), "aten::index_put_", 12, 48 + 24 + 48, 48, 120
    ),
    "index put that does not": (
        lambda: x.clone().index_put_((index,), rows), "aten::index_put_", 0, 48 + 24 + 48, 48, 120
    ),
    "copy": (lambda: torch.empty(10, 4).copy_(x), "aten::copy_", 0, 160, 160, 320),
    "copy of several": (
        lambda: torch._foreach_copy_([torch.empty(10, 4)], [x]), "aten::_foreach_copy_", 0, 160, 160, 320
    ),
    "conversion": (lambda: x.half(), "aten::_to_copy", 0, 160, 80, 240),
    "random numbers": (lambda: torch.rand(10, 4), "aten::rand", 0, 0, 160, 160),
    "random numbers in place": (lambda: torch.empty(10, 4).uniform_(), "aten::uniform_", 0, 0, 160, 160),
    "fill": (lambda: torch.zeros_like(x), "aten::zeros_like", 0, 0, 160, 160),
    "cat": (lambda: torch.cat([x, rows]), "aten::cat", 0, 208, 208, 416),
    "weighted bag": (  # written: the bag, and two tables of bookkeeping
        lambda: F.embedding_bag(index, x, torch.tensor([0]), mode="sum", per_sample_weights=ones(3)),
        "aten::_embedding_bag_forward_only", 2 * 12, 48 + 24 + 8 + 12, 16 + 8 + 8, 124,
    ),
    "out": (lambda: torch.add(x, x, out=torch.empty(10, 4)), "aten::add", 40, 160, 160, 320),
}
# fmt: on


@pytest.mark.parametrize("case", BY_HAND)
def test_an_operator_costs_what_is_worked_out_by_hand(case):
    fn, operator, *expected = BY_HAND[case]
    assert row(fn, operator) == (1, *expected)


def test_views_and_allocations_cost_nothing_and_are_covered():
    counted = count(
        lambda: (x.view(4, 10).t()[1:].unsqueeze(0).expand(3, 9, 4), torch.empty(3), x.split(2), x.detach())
    )
    assert (counted.flops, counted.bytes, counted.coverage_bytes, uncovered(counted)) == (0, 0, 1.0, [])
    assert counted.operators.calls.sum() >= 7


def models():
    mlp = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    return {
        "gat": GATConv(FEATURES, 4, heads=2),
        "sage": SAGEConv(FEATURES, FEATURES),
        "gps": GPSConv(FEATURES, GINConv(mlp), heads=2),
    }


@pytest.mark.parametrize("name", ["gat", "sage", "gps"])
@pytest.mark.parametrize("training", [False, True])
def test_the_forward_passes_of_graph_layers_are_covered_whole(graph, name, training):
    counted = count(models()[name].train(training), graph)
    assert uncovered(counted) == [] and counted.coverage_bytes == 1.0
    assert counted.flops > counted.matrix_flops > 0


def test_matrix_products_agree_with_torch_s_own_counter_and_the_table_adds_up(graph):
    model = nn.ModuleList(models().values())
    model.forward = lambda x, edges: [layer(x, edges) for layer in model]
    with FlopCounterMode(display=False) as torch_s, torch.no_grad():
        model.train()(*graph)
    attention = 4 * N * N * FEATURES  # torch's counter does not know the CPU kernel of attention
    counted = count(model, graph)
    assert counted.matrix_flops == torch_s.get_total_flops() + attention
    table = counted.operators
    assert table.flops.sum() == counted.flops and table.bytes.is_monotonic_decreasing
    assert table.bytes.sum() == counted.bytes == (table.bytes_read + table.bytes_written).sum()


def test_attention_in_eval_mode_is_taken_apart():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    tokens = torch.ones(1, 5, 8)
    counted = count(layer, (tokens,))
    products = 4 * 2 * 5 * 8 * 8 + 2 * 2 * 5 * 5 * 8 + 2 * 2 * 5 * 8 * 16
    assert counted.matrix_flops == products
    assert counted.coverage_bytes == 1.0


def test_inference_mode_counts_as_no_grad_does_and_a_compiled_model_is_counted_eagerly(graph):
    model = GPSConv(FEATURES, SAGEConv(FEATURES, FEATURES), heads=2).eval()
    for other in (torch.inference_mode()(lambda *inputs: model(*inputs)), torch.compile(model)):
        pd.testing.assert_frame_equal(count(other, graph).operators, count(model, graph).operators)


def test_sparse_products_count_the_values_that_are_stored():
    torch.manual_seed(0)
    dense = (torch.rand(20, 28) < 0.2).float() * torch.randn(20, 28)
    stored, wide = int((dense != 0).sum()), torch.randn(28, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sparse tensors are called a beta
        csr, coo, blocks = dense.to_sparse_csr(), dense.to_sparse(), dense.to_sparse_bsr((4, 4))
        both = torch.stack([dense, dense]).to_sparse()
    in_blocks = blocks.values().numel()
    products = {
        "addmv": (lambda: torch.addmv(torch.zeros(20), csr, wide[:, 0]), stored, 2 * stored + 20),
        "csr": (lambda: csr @ wide, 7 * stored, 2 * 7 * stored),
        "coo": (lambda: coo @ wide, 7 * stored, 2 * 7 * stored),
        "from the left": (lambda: torch.randn(5, 20) @ csr, 5 * stored, 2 * 5 * stored),
        "blocks": (lambda: blocks @ wide, 7 * in_blocks, 2 * 7 * in_blocks),
        "a batch": (lambda: torch.bmm(both, torch.randn(2, 28, 7)), 2 * 7 * stored, 2 * 2 * 7 * stored),
        "sampled": (lambda: torch.sparse.sampled_addmm(csr, wide[:20], wide.t()), 7 * stored, 2 * 7 * stored),
    }
    for name, (run, multiplied, flops) in products.items():
        counted = count(run)
        assert (counted.matrix_flops, counted.flops) == (2 * multiplied, flops), name


@torch.library.custom_op("gnnlab_tests::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls its own quantization old
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


def convolved_backward():
    F.conv1d(ones(1, 4, 10).requires_grad_(), ones(2, 4, 3)).sum().backward()


UNKNOWN = {
    "aten::_linalg_eigh": lambda: torch.linalg.eigh(torch.eye(4))[0] + 1,
    "aten::gelu_backward": lambda: F.gelu(x.clone().requires_grad_()).sum().backward(),
    "aten::convolution_backward": convolved_backward,
    "aten::avg_pool2d": lambda: F.avg_pool1d(x[None], 2),
    "aten::mm": lambda: torch.eye(4).to_sparse() @ torch.eye(4).to_sparse(),
    "quantized::linear_dynamic": lambda: quantized(x),
    "gnnlab_tests::squared": lambda: squared(x),
}


@pytest.mark.parametrize("operator", UNKNOWN)
def test_an_operator_that_no_rule_knows_is_named_and_lowers_the_coverage(operator):
    counted = count(UNKNOWN[operator])
    assert counted.uncounted == (operator,) == (*uncovered(counted),)
    assert 0 <= counted.coverage_bytes < 1


def test_nothing_is_covered_whole():
    assert (count(lambda: None).coverage_bytes, count(lambda: None).uncounted) == (1.0, ())


@pytest.mark.parametrize("layers", [{}, {"num_layers": 2, "bidirectional": True}])
def test_an_lstm_costs_the_same_in_one_operator_as_step_by_step(layers):
    lstm, steps = nn.LSTM(16, 24, batch_first=True, **layers), torch.ones(3, 7, 16)
    at_once = count(lstm, (steps,))
    step_by_step = count(lstm.double(), (steps.double(),))
    assert "aten::mkldnn_rnn_layer" in set(at_once.operators.operator) - set(step_by_step.operators.operator)
    assert (at_once.flops, at_once.matrix_flops) == (step_by_step.flops, step_by_step.matrix_flops)
    assert at_once.uncounted == ()
    if not layers:  # four gates with two biases each, and 13 for each number that is hidden
        assert at_once.matrix_flops == 3 * 7 * 2 * 4 * 24 * (16 + 24)
        assert at_once.flops == at_once.matrix_flops + 3 * 7 * (2 * 4 + 13) * 24


def test_scripts_and_what_they_fork_are_counted():
    @torch.jit.script
    def forked(x):
        return torch.jit.wait(torch.jit.fork(torch.mm, x, x))

    counted = count(forked, (torch.ones(16, 16),))
    assert (counted.flops, counted.uncounted) == (2 * 16**3, ())


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() @ np.ones((4, 4), np.float32))


def on_a_thread():
    with ThreadPoolExecutor(1) as pool:
        return x + pool.submit(torch.mul, x, x).result()


UNSEEN = {
    "a thread": (on_a_thread, "operators on other threads"),
    "numpy": (lambda: torch.from_numpy(np.maximum(x.numpy(), 0)) + 1, "numpy"),
    "numpy's own functions": (lambda: np.asarray(x) + 1, "numpy"),
    "numpy alone": (lambda: torch.from_numpy(np.ones(3, np.float32)) + 1, "numpy"),
    "numpy in autograd": (lambda: ByNumpy.apply(x) + 1, "numpy"),
    "other arrays": (lambda: np.from_dlpack(x), "arrays of other libraries"),
    "other kernels": (lambda: x.data_ptr(), "kernels of other libraries"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_runs_where_no_operator_is_counted_is_named_and_leaves_no_share(case):
    work, name = UNSEEN[case]
    before = torch.Tensor.__dict__.get("numpy"), torch.Tensor.__array__, torch.from_numpy
    counted = count(work)
    assert counted.uncounted == (name,) and np.isnan(counted.coverage_bytes)
    assert before == (torch.Tensor.__dict__.get("numpy"), torch.Tensor.__array__, torch.from_numpy)


def test_nothing_is_counted_while_torch_s_profiler_runs():
    with torch.profiler.profile(), pytest.raises(GnnlabError, match="profiler is running"):
        count(x.clone)


def by_passes():
    """name: (layer, has it features of edges, FLOPs of each pass); E F numbers of messages, N F of nodes."""
    messages, nodes = E * FEATURES, N * FEATURES
    mlp = nn.Sequential(nn.Linear(2 * FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    return {
        "GINE: + edge, ReLU, sum": (GINEConv(nn.Linear(FEATURES, 8)), True, {"multi_aggregate": 3 * messages}),
        "SAGE: max": (SAGEConv(FEATURES, 8, aggr="max"), False, {"multi_aggregate": messages}),
        "FiLM: * gamma, + beta, ReLU, sum": (FiLMConv(FEATURES, 8), False, {"film_sum": 4 * messages}),
        "ResGated: +, sigmoid, *, sum": (ResGatedGraphConv(FEATURES, 8), False, {"gated_sum": 4 * messages}),
        "CG: + of both, sigmoid, softplus, *, sum": (CGConv(FEATURES), False, {"gated_sum": 9 * messages}),
        "GEN: t *, max, -, exp, sum, *, sum": (
            GENConv(FEATURES, 8), False, {"softmax_aggregate": 7 * messages + 3 * nodes}
        ),
        "EdgeConv: +, ReLU; max": (EdgeConv(mlp), False, {"edge_rows": 2 * messages, "multi_aggregate": messages}),
    }  # fmt: skip


@pytest.mark.parametrize("name", by_passes())
def test_the_compiled_passes_of_a_fast_layer_are_counted_by_their_formulas(graph, name):
    layer, features, expected = by_passes()[name]
    batch = (*graph, torch.ones(E, FEATURES)) if features else graph
    fast = swap(layer.eval(), batch, measure=False).model
    counted, plain = count(fast, batch), count(layer, batch)
    rows = counted.operators.set_index("operator")["flops"].filter(like="gnnswap::")
    assert rows.to_dict() == {f"gnnswap::{one}": flops for one, flops in expected.items()}
    assert (counted.uncounted, counted.coverage_bytes) == ((), 1.0)
    beside = [one.flops - one.matrix_flops for one in (counted, plain)]
    assert beside[0] == pytest.approx(beside[1], rel=0.4)  # linear layers with a bias go from edges to nodes
    if "GINE" in name or "SAGE" in name or "ResGated" in name:  # the same operations one by one
        assert counted.flops == plain.flops


def test_passes_are_counted_backwards_on_other_threads_and_within_gnnswap_s_own_operators(graph):
    x, edge_index = graph
    layer, batch = GINEConv(nn.Linear(FEATURES, 8)), (x.clone().requires_grad_(), edge_index, torch.ones(E, FEATURES))
    fast = swap(layer, batch, measure=False).model
    fast(*batch).sum().backward()  # the first call compares
    assert row(lambda: fast(*batch), "gnnswap::multi_aggregate")[2:] == (192 + 640 + 4 * (N + 1 + 2 * E), 192, 1212)
    assert row(lambda: fast(*batch).sum().backward(), "gnnswap::multi_aggregate_back")[0] == 1
    with ThreadPoolExecutor(1) as pool:
        counted = count(lambda: pool.submit(fast, *batch).result())
    assert "gnnswap::multi_aggregate" in set(counted.operators.operator)
    assert counted.uncounted == ("operators on other threads",)
    summed = count(lambda: compile_ops.aggregate([x], edge_index, None, compile_ops.NEIGHBOUR_SUM, [N, FEATURES]))
    assert (summed.flops, summed.uncounted) == (E * FEATURES, ())


def test_a_recurrent_model_is_counted_whole():
    x, edge_index = torch.randn(50, 16), torch.randint(50, (2, 200))
    plain, recurrent = (count(GraphSAGE(16, 16, 2, 7, jk=jk).eval(), (x, edge_index)) for jk in (None, "lstm"))
    assert (plain.uncounted, recurrent.uncounted) == ((), ())
    assert recurrent.matrix_flops - plain.matrix_flops > 2 * 50 * 2 * 2 * 4 * 16 * (16 + 16)
