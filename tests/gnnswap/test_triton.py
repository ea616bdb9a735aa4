"""The Triton kernels give what gather and scatter give: on a CUDA device, else by Triton's interpreter on a CPU.

The interpreter takes a millisecond for each program: graphs are small, and hubs are of few edges, in pieces of fewer.
"""

import itertools
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="triton is not installed")

import triton
from kernels import CASES, GRAPHS, ONE_PASS, case, close, drawn, ladder, with_gradients

from gnnswap import attention, backends, fused
from gnnswap import triton_passes as passes
from gnnswap.aggregation import weighted_sum
from gnnswap.neighbours import Neighbours

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(
        DEVICE.type == "cpu" and isinstance(triton.language.sum, triton.runtime.JITFunction),
        reason="no CUDA device, and triton was imported without TRITON_INTERPRET=1",
    ),
    # numpy's, of entries that are masked or meant to be NaN: a device says nothing
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]
ON_GPU = [name for name in CASES if "all pairs" not in name and "additive" not in name] + list(ONE_PASS)
ALLOWED = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}  # of the largest entry
GRAPH = drawn(7, 24, seed=2).to(DEVICE)  # of 7 targets and 8 sources; without edges are 4, 5, 6, and source 7


@pytest.fixture(autouse=True)
def by_triton(monkeypatch):
    """Triton serves tensors of the CPU, too, in all its types."""
    monkeypatch.setattr(backends, "on_gpu", lambda x: True)
    monkeypatch.setattr(backends, "ON_CPU", backends.ON_CUDA)


@pytest.fixture
def cut(monkeypatch):
    """Pieces of 3 edges, and few lines of parts at once, so that tiny graphs have hubs of many pieces."""
    monkeypatch.setattr(passes, "MOST_EDGES", 3)
    monkeypatch.setattr(passes, "FOLDED", 2)


def on_gpu(name, **options):
    return case(name, GRAPH, 7, 8, **options)


@pytest.mark.parametrize("name", ON_GPU)
def test_outputs_and_gradients_are_those_of_gathered_rows(name, cut):
    kernel, plain, inputs = on_gpu(name, width=5, heads=3, strided=True)
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs), 1e-11, 1e-11)
    for wanted in range(len(inputs)):
        fixed = [one if at == wanted else one.detach() for at, one in enumerate(inputs)]
        both = (with_gradients(lambda *_, way=way: way(*fixed), [inputs[wanted]]) for way in (kernel, plain))  # noqa: B023
        close(*both, 1e-11, 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in ON_GPU if name != "softmax of large scores"])  # they are rounded
def test_in_other_types_they_are_equal_within_rounding(name, dtype):
    kernel, plain, inputs = on_gpu(name, width=5, heads=3)
    inputs = [one.detach().to(dtype).requires_grad_() for one in inputs]
    exact = [one.detach().double().requires_grad_() for one in inputs]
    got, expected = with_gradients(kernel, inputs), with_gradients(plain, exact)
    rounded = "moments" in name and dtype is not torch.float32  # sums of two rows: others may be the largest
    for ours, theirs in list(zip(got, expected, strict=True))[: 1 if rounded else None]:
        assert ours.dtype is dtype
        assert (ours - theirs).abs().max() <= ALLOWED[dtype] * theirs.abs().max().clamp(min=1)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("name", ON_GPU)
def test_nan_and_infinity_come_out_where_they_do_of_gathered_rows(name, value):
    kernel, plain, inputs = on_gpu(name)
    for one in inputs[:2]:
        with torch.no_grad():
            one.view(-1)[0] = value
    with torch.no_grad():
        close([kernel(*inputs)], [plain(*inputs)])


@pytest.mark.parametrize("name", [name for name in ON_GPU if "moments" in name or name in ("largest", "sum of relu")])
def test_ties_share_their_gradient(name, cut):
    kernel, plain, inputs = on_gpu(name, width=10, change=lambda one: one.round().clamp(-1, 1))
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))


@pytest.mark.parametrize("name", ["gate", "gate of softplus", "softmax", "softmax aggregation", "GAT"])
def test_exponentials_take_large_numbers(name):
    kernel, plain, inputs = on_gpu(name, change=lambda one: 200 * one)
    for dtype in (torch.float64, torch.float32):
        with torch.no_grad():
            got = kernel(*(one.to(dtype) for one in inputs)).double()
            close([got], [plain(*(one.to(dtype).double() for one in inputs))], 1e-4, 1e-4)


@pytest.mark.parametrize("name", ["GAT", "GATv2", "Transformer"])
@pytest.mark.parametrize(("heads", "width"), [(8, 8), (4, 128), (1, 256), (1, 1)])
def test_attention_of_heads_of_any_width(name, heads, width):
    kernel, plain, inputs = on_gpu(name, heads=heads, width=width, change=lambda one: one / width**0.5)
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))


@pytest.mark.parametrize("width", [1, 7, 100, 128, 500])
def test_sums_of_rows_of_any_width(width):
    kernel, plain, inputs = on_gpu("weighted sum", width=width)
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))


@pytest.mark.parametrize("name", ONE_PASS)  # the others have the plain kernels that test_kernels differentiates
def test_second_derivatives_go_through_the_plain_kernel(name):
    kernel, plain, inputs = case(name, GRAPHS["edges that repeat"].to(DEVICE))
    close(ladder(kernel, inputs, 2), ladder(plain, inputs, 2))


@pytest.mark.parametrize("name", ON_GPU)
def test_a_graph_without_edges_gives_zeros(name):
    kernel, plain, inputs = case(name, GRAPHS["no edges"].to(DEVICE))
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))


def test_which_heads_fit():
    assert passes.takes_heads(8, 512, False) and not passes.takes_heads(1, 513, False)
    assert passes.takes_heads(8, 512, True) and not passes.takes_heads(16, 300, True)
    query, values = torch.randn(7, 1, 513, device=DEVICE), torch.randn(8, 1, 513, device=DEVICE)
    graph = Neighbours.prepare(GRAPH, 7, num_sources=8)
    assert attention.fused_attention("transformer", query, values, values, graph) is None


# ---- pieces ----------------------------------------------------------------------------------------------------------


def wide_index(graph):
    """The same graph with int64, as one of more than 2^31 edges."""
    rowptr, col, permutation = (one.long() for one in (graph.rowptr, graph.col, graph.permutation))
    return Neighbours(rowptr, col, permutation, graph.num_sources)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_pieces_cover_every_edge_once_and_hubs_come_first(index, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", 4)
    graph = Neighbours.prepare(GRAPH, 7, num_sources=8)
    graph = graph if index is torch.int32 else wide_index(graph)
    cut, rowptr = passes.pieces(graph), graph.rowptr.tolist()
    covered, slots = [], {}
    for row, first, end, slot in cut.pieces.tolist():
        assert rowptr[row] <= first <= end <= rowptr[row + 1] and end - first <= 4
        covered += range(first, end)
        slots.setdefault(row, []).append(slot)
    assert sorted(covered) == list(range(graph.num_edges))
    assert sorted(slots) == list(range(7))  # also rows without edges are written
    hubs = dict(zip(cut.hub_row.tolist(), itertools.pairwise(cut.hub_ptr.tolist()), strict=True))
    assert hubs and all(own == (list(range(*hubs[row])) if row in hubs else [-1]) for row, own in slots.items())
    by_hub = [slot >= 0 for *_, slot in cut.pieces.tolist()]
    assert by_hub == sorted(by_hub, reverse=True) and cut.slots == sum(by_hub)
    assert passes.pieces(graph) is cut


def test_a_graph_of_long_indices_and_inputs_off_16_bytes():
    """What was compiled for aligned addresses must not serve others."""
    graph = Neighbours.prepare(GRAPH, 7, num_sources=8)
    for one in (graph, wide_index(graph)):
        for start in (0, 1):
            rows = torch.randn(8 * 8 + 1, device=DEVICE)[start : start + 64].view(8, 8)
            expected = torch.zeros(7, 8, device=DEVICE).index_add(0, graph.row.long(), rows[graph.col.long()])
            close([weighted_sum(rows, one)], [expected], 1e-5, 1e-5)


def test_hubs_of_5000_edges():
    draw = torch.Generator().manual_seed(0)
    ends = torch.stack([torch.randint(3, (5000,), generator=draw), torch.zeros(5000, dtype=torch.int64)]).to(DEVICE)
    assert passes.pieces(Neighbours.prepare(ends, 2, num_sources=3)).slots == 20
    for name in ("weighted sum", "softmax", "GAT, values shared"):
        kernel, plain, inputs = case(name, ends, 2, 3)
        with torch.no_grad():
            close([kernel(*inputs)], [plain(*inputs)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_extremes_of_half_precision_are_found_again(dtype):
    """Messages are rounded as torch rounds them, so that the one that is stored equals an extreme."""
    graph = Neighbours.prepare(GRAPH, 7, num_sources=8)
    y, e = (torch.randn(count, 40, device=DEVICE).to(dtype).requires_grad_() for count in (8, 24))
    (largest,) = fused.multi_aggregate(y, graph, ("max",), e, relu=True, as_given=True)
    largest.backward(torch.ones_like(largest))
    v = (y[GRAPH[0]] + e).relu().detach()
    at = GRAPH[1][:, None].expand_as(v)
    expected = largest.detach().new_zeros(7, 40).scatter_reduce(0, at, v, "amax", include_self=False)
    close([largest.detach()], [expected], ALLOWED[dtype], ALLOWED[dtype])
    if dtype is torch.float16 or DEVICE.type == "cuda":  # the interpreter cuts bfloat16 off
        assert torch.equal(largest, expected)
        where = (v == expected[GRAPH[1]]) & (v > 0)
        assert torch.equal(e.grad != 0, where)


@pytest.mark.parametrize("name", ["GAT", "GATv2 with edges", "Transformer"])
def test_two_runs_are_equal_bit_by_bit(name, cut):
    """Also with hubs, and where the second run finds its kernels compiled."""
    kernel, _, inputs = on_gpu(name)
    inputs = [one.detach().float().requires_grad_() for one in inputs]
    assert all(map(torch.equal, with_gradients(kernel, inputs), with_gradients(kernel, inputs)))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
def test_a_cuda_graph_captures_forward_and_backward():
    kernel, _, inputs = on_gpu("GAT")
    with_gradients(kernel, inputs)
    expected = with_gradients(kernel, inputs)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = with_gradients(kernel, inputs)
    for one in results:
        one.zero_()
    captured.replay()
    assert all(map(torch.equal, results, expected))
