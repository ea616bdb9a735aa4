"""Counts of operators, FLOPs and bytes against numbers worked out by hand, and against torch's own counter."""

import warnings

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.nn import GATConv, GINConv, GINEConv, GPSConv, GraphSAGE, SAGEConv

from gnnlab.profile import roofline
from gnnlab.profile.roofline import count
from gnnswap import swap

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

ones = torch.ones
# fmt: off
BY_HAND = {  # name: (what is called, operator, FLOPs, bytes read, bytes written, working set)
    "product": (lambda: x @ ones(4, 5), "aten::mm", 2 * 10 * 4 * 5, 160 + 80, 200, 440),
    "linear layer": (lambda: F.linear(x, ones(5, 4), ones(5)), "aten::addmm", 400 + 50, 160 + 80 + 20, 200, 460),
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


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_products_count_stored_values_only():
    matrix = torch.zeros(50, 50)
    matrix[0, :7] = 1
    dense = torch.ones(50, 3)
    for sparse in (matrix.to_sparse_csr(), matrix.to_sparse_coo()):
        assert count(lambda s=sparse: s @ dense).matrix_flops == 2 * 7 * 3


def test_unknown_operators_are_listed_and_lower_the_coverage():
    symmetric = torch.eye(4)
    counted = count(lambda: torch.linalg.eigh(symmetric)[0] + 1)
    assert uncovered(counted) == ["aten::_linalg_eigh"]
    assert 0 < counted.coverage_bytes < 1
    assert count(lambda: None).coverage_bytes == 1.0
    assert 0 < count(lambda: F.gelu(x.clone().requires_grad_()).sum().backward()).coverage_bytes < 1


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


def test_inference_mode_counts_as_no_grad_does_and_a_compiled_model_in_its_eager_form(graph):
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
    }
    for name, (run, multiplied, flops) in products.items():
        counted = roofline.count(run)
        assert (counted.matrix_flops, counted.flops) == (2 * multiplied, flops), name


def test_products_of_whole_numbers_are_no_floating_point_operations():
    ones = torch.ones(5, 5, dtype=torch.int64)
    assert roofline.count(lambda: ones @ ones).flops == 0


def test_what_surely_computes_and_is_not_counted_is_named():
    x, edge_index = torch.randn(50, 16), torch.randint(50, (2, 200))
    plain, recurrent = (GraphSAGE(16, 16, 2, 7, jk=jk).eval() for jk in (None, "lstm"))
    assert roofline.count(plain, (x, edge_index)).uncounted == ()
    assert any("rnn" in name for name in roofline.count(recurrent, (x, edge_index)).uncounted)
    gine = GINEConv(torch.nn.Linear(16, 16), edge_dim=4)
    batch = x, edge_index, torch.randn(200, 4)
    assert roofline.count(gine, batch).uncounted == ()
    fast = swap(gine, batch, measure=False).model
    assert roofline.count(fast, batch).uncounted == ("compiled passes of gnnswap",)
