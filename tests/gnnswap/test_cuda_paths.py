"""What layers do on a CUDA device, without one: the same functions run on a CPU, by Triton's interpreter.

Equal to PyG in float64; no value is asked of the device in a steady call, so that nobody waits and a CUDA graph can be
captured; no tensor is made on another device. On a machine with a GPU the same tests run there.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from layer_cases import CASES, IN, OUT, arguments, assert_same, build, edges_of, results
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch_geometric import nn as pyg

from gnnswap import backends, direct, equivalence
from gnnswap.direct import KERNELS, why_not
from gnnswap.errors import SwapError
from gnnswap.layer import Caches, make_fast
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourSum

GPU = torch.cuda.is_available()
pytest.importorskip("triton", reason="needs triton, in the extra `cuda`")
DEVICE = torch.device("cuda" if GPU else "cpu")
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.* encountered in:RuntimeWarning"
    ),  # of the interpreter, in what a mask leaves out
    *([pytest.mark.cuda] if GPU else []),
]
# their messages are sums, or a function of one layer of PyG; the others have a kernel of their own
GENERIC = ("AGNN", "APPNP", "FA", "GatedGraph", "LG", "PDN", "TAG", "Simple", "GAT bipartite", "SAGE bipartite max")
LEARNED = ("PDN",)  # the norm of weights that are learned is made by PyG's own code, which asks the device
OWN = [name for name, (make, _) in CASES.items() if "bipartite" not in name and not why_not(make())]
OF_KIND = {kind: [name for name in OWN if type(CASES[name][0]()) is kind] for kind in KERNELS}
OWN = [name for names in OF_KIND.values() for name in names[:3]]  # options change little of what runs


@pytest.fixture(autouse=True)
def by_triton(monkeypatch):
    """Triton serves tensors of the CPU, too, and no kernel is compared but by these tests."""
    from gnnswap import triton_passes

    monkeypatch.setattr(backends, "on_gpu", lambda x: True)
    monkeypatch.setattr(equivalence, "difference", lambda *_: (0.0, ""))
    monkeypatch.setattr(direct, "is_dense", lambda graph: False)  # over all pairs of nodes, which is for CPUs
    real = triton_passes.launch

    def launch(*given, **named):
        with _disable_current_modes():  # the interpreter works on values
            return real(*given, **named)

    monkeypatch.setattr(triton_passes, "launch", launch)


class Waits(TorchDispatchMode):
    """Fails where a CUDA device would be asked for a value."""

    ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount", "item")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert not any(name.strip("_").startswith(one.strip("_")) for one in self.ASKS), name
        if name == "repeat_interleave":
            assert (kwargs or {}).get("output_size") is not None, "repeat_interleave asks how many there will be"
        if name in ("index", "index_put", "index_put_"):
            assert all(one is None or one.dtype is not torch.bool for one in args[1]), "a mask asks how many it picks"
        return function(*args, **(kwargs or {}))


def on_device(name, fixed=False):
    """(the reference, a fast twin, what wants gradients, what they are called with); weights of edges may be `fixed`:
    where they are learned, PyG's own code makes their norm anew in each call."""
    inputs, called = arguments(name, edges_of("many edges"), 13)
    if fixed and CASES[name][1] == "weight":
        inputs[1].requires_grad_(False)
    moved = {id(one): one.detach().to(DEVICE).requires_grad_(one.requires_grad) for one in inputs}

    def move(one):
        if isinstance(one, tuple):
            return tuple(map(move, one))
        return moved[id(one)] if id(one) in moved else one.to(DEVICE)

    reference, fast = build(name).to(DEVICE), build(name).to(DEVICE)
    for layer in [one for one in fast.modules() if hasattr(one, "propagate")]:
        make_fast(layer, Caches())
    return reference, fast, [moved[id(one)] for one in inputs if one.requires_grad], move(called)


def fast_ones(model):
    return [one for one in model.modules() if "_fast" in vars(one)]


@pytest.mark.parametrize("name", [*OWN, *GENERIC])
def test_layers_are_those_of_pyg_and_ask_a_device_for_nothing_in_a_steady_call(name):
    reference, fast, inputs, called = on_device(name, fixed=True)
    expected = results(reference, inputs, called)
    assert_same(results(fast, inputs, called), expected)
    how = [one._fast.mechanism(DEVICE.type) for one in fast_ones(fast)]
    why = [one._fast.why for one in fast_ones(fast)]
    assert any(one is not None and one != "as PyG computes it" for one in how), why
    waits = nullcontext() if name in LEARNED else Waits()
    with torch.device("meta"), waits:  # tensors that nobody gives a device would be made there
        again = results(fast, inputs, called)
    assert_same(again, expected)


def test_pyg_asks_the_device():
    reference, _, _, called = on_device("GCN plain")
    with pytest.raises(AssertionError), Waits():
        reference(*called)


def test_each_class_with_a_kernel_is_tried():
    assert all(OF_KIND.values())


@pytest.mark.parametrize("kernel", [backends.TRITON, backends.CUSPARSE, backends.BAG])
@pytest.mark.parametrize("name", ["GCN", "GCN plain", "SAGE mean", "SAGE max", "GIN", "Graph", "LE"])
def test_every_kernel_of_a_sum_gives_the_same(name, kernel):
    reference, fast, inputs, called = on_device(name, fixed=True)
    for one in fast_ones(fast):
        one._fast.sum_kernel = kernel
    assert_same(results(fast, inputs, called), results(reference, inputs, called))
    assert any(one._fast.by_kernel for one in fast_ones(fast)) or "max" in name
    with Waits():
        fast(*called)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GATConv(IN, 4, heads=2, bias=False),
        lambda: pyg.GATv2Conv(IN, 4, heads=2, bias=False),
        lambda: pyg.TransformerConv(IN, 4, heads=2, root_weight=False),
    ],
)
def test_what_attention_gives_may_be_written_to(make):
    x = torch.randn(13, IN, dtype=torch.double, device=DEVICE, requires_grad=True)
    reference = make().double().to(DEVICE)
    fast = copy.deepcopy(reference)
    make_fast(fast, Caches())
    edges = edges_of("many edges").to(DEVICE)
    expected, got = (torch.autograd.grad(one(x, edges).relu_().sum(), x)[0] for one in (reference, fast))
    torch.testing.assert_close(got, expected)
    assert fast._fast.mechanism(DEVICE.type) == "own kernel"


def test_each_of_equal_layers_has_a_choice_of_kernels():
    model = torch.nn.ModuleList([pyg.GCNConv(IN, IN), pyg.GCNConv(IN, IN), pyg.LGConv(), pyg.LGConv()])
    caches, x = Caches(), torch.randn(13, IN, device=DEVICE)
    model.to(DEVICE)
    for layer in model:
        make_fast(layer, caches)
        for _ in range(2):
            layer(x, edges_of("many edges").to(DEVICE))
    assert all(layer._fast.by_kernel for layer in model)
    assert model[2]._fast.last_device == DEVICE.type


def test_a_sum_by_another_kernel_is_made_once():
    total = NeighbourSum(Neighbours.prepare(edges_of("many edges").to(DEVICE), 13), None)
    assert total.by(backends.BAG) is total.by(backends.BAG) is not total and total.by("") is total


def test_while_a_graph_is_captured_nothing_is_prepared_and_pygs_code_runs(monkeypatch):
    layer = pyg.SAGEConv(IN, OUT).to(DEVICE)
    reference = copy.deepcopy(layer)
    make_fast(layer, Caches())
    x, edges = torch.randn(13, IN, device=DEVICE), edges_of("many edges").to(DEVICE)
    layer(x, edges)  # prepared, but for the backward pass
    monkeypatch.setattr(backends, "capturing", lambda: True)
    assert_close = torch.testing.assert_close
    assert_close(layer(x, edges), reference(x, edges))
    assert len(layer._fast.caches.graphs) == 1
    assert_close(layer(x, edges.flip(0)), reference(x, edges.flip(0)))  # a graph that was not seen before
    assert len(layer._fast.caches.graphs) == 1
    with pytest.raises(SwapError, match="call the layer once before, backward too"):
        layer(x.requires_grad_(), edges).sum().backward()
