"""swap on a CUDA device: equal to PyG, no wait in a steady call, captured, moved, in low precision, compiled."""

import pytest
import torch
from layer_cases import CASES, GRAPHS, arguments, build, edges_of, results
from torch import nn
from torch_geometric import nn as pyg

from gnnswap import backends, cost, equivalence, neighbour_sum, parity, swap
from gnnswap.cost import compare_times, peak_memory
from gnnswap.direct import why_not

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")
KERNELS = [name for name, (make, _) in CASES.items() if "bipartite" not in name and not why_not(make())]
MODELS = {
    "GCN": lambda: pyg.GCN(16, 32, 2, 7),
    "SAGE": lambda: pyg.GraphSAGE(16, 32, 2, 7),
    "GIN": lambda: pyg.GIN(16, 32, 2, 7),
    "GAT": lambda: pyg.GAT(16, 32, 2, 7, heads=4, dropout=0.3),
    "GATv2": lambda: pyg.GAT(16, 32, 2, 7, heads=4, v2=True),
    "PNA": lambda: pyg.PNA(16, 32, 2, 7, aggregators=["mean", "max"], scalers=["identity"], deg=torch.arange(9)),
}


def graph(nodes=500, edges=4000):
    torch.manual_seed(1)
    x, edge_index = torch.randn(nodes, 16), torch.randint(nodes, (2, edges))
    edge_index[1, :1500] = 3  # a hub, cut into pieces
    return x.cuda(), edge_index.cuda()


def case(name, graph="many edges"):
    inputs, called = arguments(name, edges_of(graph), GRAPHS[graph][0])
    twins = {id(one): one.detach().cuda().requires_grad_() for one in inputs}

    def move(one):
        return tuple(map(move, one)) if isinstance(one, tuple) else twins[id(one)] if id(one) in twins else one.cuda()

    return build(name).cuda(), [twins[id(one)] for one in inputs], move(called)


@pytest.mark.parametrize("name", CASES)
def test_layers_compared_on_the_device_are_those_of_pyg(name):
    reference, inputs, called = case(name)
    layer = swap(reference).model
    expected = results(reference, inputs, called)
    for got in (results(layer, inputs, called), results(layer, inputs, called)):
        assert [one is None for one in got] == [one is None for one in expected]
        pairs = [(a, b) for a, b in zip(got, expected, strict=True) if b is not None]
        floor = parity.GRADIENT_FLOOR * parity.largest([b for _, b in pairs])
        assert all(parity.error(a, b, floor=floor) <= 1e-8 for a, b in pairs)
    if name in KERNELS and name != "LE":  # whose kernel takes no weights that are learned
        fast = [one for one in layer.modules() if "_fast" in vars(one)]
        assert any(one._fast.mechanism("cuda") not in (None, "as PyG computes it") for one in fast), [
            one._fast.why for one in fast
        ]


@pytest.mark.parametrize("name", KERNELS)
def test_a_steady_training_step_does_not_wait_for_the_device(name):
    reference, inputs, called = case(name)
    layer = swap(reference).model.train()
    for _ in range(3):
        results(layer, inputs, called)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = layer(*called)
        torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_replaced_and_timed_on_the_device(name):
    batch = graph()
    model = MODELS[name]().cuda().eval()
    report = swap(model, batch)
    text = str(report)
    assert torch.cuda.get_device_name() in text and report.parity_error is not None, text
    assert report.time is not None and report.memory.before > 0
    with torch.no_grad():
        assert parity.error(report.model(*batch), model(*batch)) <= 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_training_with_dropout_draws_the_same_numbers(name):
    batch = graph()
    model = MODELS[name]().cuda().train()
    fast = swap(model, batch, measure=False).model
    got = []
    for one in (model, fast, fast):
        torch.manual_seed(5)
        out = one(*batch)
        wanted = list(model.parameters())
        got.append([out.detach(), *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)])
    floor = parity.GRADIENT_FLOOR * parity.largest(got[0])
    for other in got[1:]:
        assert all(parity.error(a, b, floor=floor) <= 2e-3 for a, b in zip(other, got[0], strict=True) if b is not None)
    assert all(torch.equal(a, b) for a, b in zip(*got[1:], strict=True) if b is not None)  # equal bits in two runs


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_low_precision_is_as_exact_as_that_of_pyg(name, kind):
    x, edge_index = graph()
    model = MODELS[name]().cuda().eval().to(kind)
    exact = model.double()(x.to(kind).double(), edge_index).detach()  # of the rounded weights
    model = model.to(kind)
    report = swap(model, (x.to(kind), edge_index), measure=False)
    assert report.replaced, str(report)
    with torch.no_grad():
        own, fast = model(x.to(kind), edge_index), report.model(x.to(kind), edge_index)
    assert fast.dtype is kind
    assert parity.error(fast, exact) <= 3 * parity.error(own, exact) + 1e-3


def test_a_model_that_was_swapped_on_a_cpu_is_compared_again_on_the_device():
    x, edge_index = graph()
    model = pyg.GCN(16, 32, 2, 7).eval()
    report = swap(model, (x.cpu(), edge_index.cpu()), measure=False)
    assert all("own kernel" in how for *_, how in report.replaced)
    report.model.cuda()
    assert all(how == "compared at its first call" for *_, how in report.replaced)
    with torch.no_grad():
        assert parity.error(report.model(x, edge_index), model(x, edge_index)) <= 1e-5
    assert all("own kernel" in how for *_, how in report.replaced)
    assert "nothing was measured there" in str(report)
    report.model.cpu()
    with torch.no_grad():
        assert parity.error(report.model(x.cpu(), edge_index.cpu()), model(x.cpu(), edge_index.cpu())) <= 1e-5


def test_edges_on_another_device_are_refused_as_pyg_does():
    x, edge_index = graph()
    fast = swap(pyg.GCNConv(16, 8).cuda(), (x, edge_index), measure=False).model
    for layer in (pyg.GCNConv(16, 8).cuda(), fast):
        with pytest.raises((RuntimeError, ValueError)):
            layer(x, edge_index.cpu())


def test_under_autocast_the_layers_own_code_runs():
    x, edge_index = graph()
    model = pyg.GCNConv(16, 8).cuda()
    fast = swap(model, (x, edge_index), measure=False).model
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (
            torch.equal(fast(x, edge_index), model(x, edge_index))
            or parity.error(fast(x, edge_index), model(x, edge_index)) <= 1e-2
        )
        assert fast(x, edge_index).dtype is model(x, edge_index).dtype


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN", "GAT", "GATv2"])
def test_a_swapped_model_is_captured_in_a_cuda_graph(name, training):
    x, edge_index = graph()
    model = MODELS[name]().cuda().train(training)
    for one in model.modules():
        if hasattr(one, "dropout"):
            one.dropout = 0.0
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    fast = swap(model, (x, edge_index), measure=False).model.train(training)
    wanted = list(fast.parameters())

    def step():
        if not training:
            with torch.no_grad():
                return [fast(x, edge_index)]
        out = fast(x, edge_index)
        return [out, *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        made = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))  # another x in the same memory
    recorded.replay()
    torch.cuda.synchronize()
    for got, expected in zip(made, step(), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert parity.error(got, expected.detach()) <= 1e-5


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_torch_compile_keeps_a_swapped_model_whole(name):
    batch = graph()
    model = MODELS[name]().cuda().eval()
    fast = swap(model, batch, measure=False).model
    torch._dynamo.reset()
    whole = torch.compile(fast, fullgraph=True)
    with torch.no_grad():
        assert parity.error(whole(*batch), model(*batch)) <= 1e-4
    out = whole(*batch)
    got = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(model(*batch).square().sum(), list(model.parameters()))
    floor = parity.GRADIENT_FLOOR * parity.largest(list(expected))
    assert all(parity.error(a, b, floor=floor) <= 1e-3 for a, b in zip(got, expected, strict=True))


def test_a_sum_by_hand_and_its_gradients():
    x, edge_index = graph()
    weight = torch.rand(edge_index.shape[1], device=CUDA, requires_grad=True)
    x.requires_grad_()
    by_hand = torch.zeros(500, 16, device=CUDA).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])
    ours = neighbour_sum(x, edge_index, weight)
    assert parity.error(ours, by_hand) <= 1e-5
    wave = torch.linspace(-1, 1, ours.numel(), device=CUDA).view_as(ours)
    for a, b in zip(*(torch.autograd.grad(one, (x, weight), wave) for one in (ours, by_hand)), strict=True):
        assert parity.error(a, b) <= 1e-5


def test_the_clock_waits_for_the_device():
    a = torch.randn(4096, 4096, device=CUDA)

    def long():
        for _ in range(20):
            a @ a

    ratio = compare_times(long, lambda: a @ a, 1.0, device=CUDA)
    assert 8 < ratio.value < 50 and ratio.after_s > 1e-4  # 137 GFLOP take a millisecond or more, a launch 10 us


def test_memory_is_that_of_the_device():
    peak = peak_memory(lambda: torch.ones(1 << 20, device=CUDA), CUDA)
    assert 1 << 22 <= peak.peak < 1 << 23


def test_draws_on_the_device_are_taken_back():
    before = torch.rand(3, device=CUDA)
    torch.manual_seed(1)
    back = backends.random_state(CUDA)
    first = torch.rand(3, device=CUDA)
    assert back() and torch.equal(torch.rand(3, device=CUDA), first) and before.shape == (3,)


def test_what_is_drawn_by_a_layer_of_ones_own_is_drawn_once():
    class Noisy(pyg.MessagePassing):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return nn.functional.dropout(x_j, 0.5, training=True)

    x, edge_index = graph()
    model = Noisy().cuda()
    fast = swap(model).model
    for _ in range(3):
        got = []
        for one in (model, fast):
            torch.manual_seed(3)
            got.append(torch.cat([one(x, edge_index).flatten(), torch.rand(2, device=CUDA)]))
        assert parity.error(*got) <= 1e-5


def test_a_comparison_on_another_stream_and_while_a_graph_is_captured():
    x, edge_index = graph()
    model = pyg.SAGEConv(16, 8).cuda()
    side = torch.cuda.Stream()
    fast = swap(model).model
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded), torch.no_grad():
        made = fast(x, edge_index)  # not compared so far: PyG's code is captured
    recorded.replay()
    with torch.cuda.stream(side), torch.no_grad():
        side.wait_stream(torch.cuda.default_stream())
        other = fast(x, edge_index)
    torch.cuda.synchronize()
    expected = model(x, edge_index)
    assert parity.error(made, expected) <= 1e-5 and parity.error(other, expected) <= 1e-5
    assert fast._fast.mechanism("cuda") == "own kernel"


def test_tf32_is_said_and_layers_are_still_replaced(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    report = swap(pyg.GCN(16, 64, 2, 7).cuda().eval(), graph(), measure=False)
    assert report.replaced and "TF32" in str(report)


def test_a_comparison_asks_for_float64_on_the_device(monkeypatch):
    seen = set()
    real = equivalence._values

    def values(layer, run, given, second):
        seen.update((one.device.type, one.dtype) for one in layer.parameters())
        return real(layer, run, given, second)

    monkeypatch.setattr(equivalence, "_values", values)
    swap(pyg.GCNConv(16, 8).cuda(), graph(), measure=False)
    assert seen == {("cuda", torch.float64)}
    assert cost.SAMPLE_SECONDS > 0


def test_what_a_captured_graph_reads_lives_as_long_as_the_model():
    x, edge_index = graph()
    report = swap(pyg.GCN(16, 32, 2, 7).cuda().eval(), (x, edge_index), measure=False)
    with torch.no_grad():
        for _ in range(3):
            expected = report.model(x, edge_index)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            out = report.model(x, edge_index)
    report.forget()
    del edge_index
    torch.cuda.empty_cache()
    spoiled = [torch.full((1 << 18,), -1, dtype=torch.int32, device=CUDA) for _ in range(64)]
    recorded.replay()
    torch.cuda.synchronize()
    assert parity.error(out, expected) <= 1e-6 and spoiled
