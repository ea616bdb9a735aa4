"""What a record of a layer sees: every change that its kernel does not read anew, and none of what is of no account."""

import copy
import pkgutil

import pytest
import torch
from layer_cases import CLOSE, IN, build, edges_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch_geometric import nn as pyg

from gnnswap import backends, guards, swap
from gnnswap.direct import KERNELS
from gnnswap.guards import Record, is_stock, plain_call
from gnnswap.layer import MAX_RETESTS, Caches, _usual, make_fast

MAKE = {
    "GCN": lambda: pyg.GCNConv(6, 4),
    "GAT": lambda: pyg.GATConv(6, 4, edge_dim=3),
    "SAGE": lambda: pyg.SAGEConv(6, 4),
    "GIN": lambda: pyg.GINConv(pyg.MLP([6, 5, 4], norm=None)),
    "Edge": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4))),
    "PNA": lambda: pyg.PNAConv(6, 4, ["mean", "max"], ["identity", "amplification"], torch.tensor([1, 2, 3])),
    "GEN": lambda: pyg.GENConv(6, 4, norm="layer"),
}

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def opened(layer):
    return KERNELS[type(layer)].opened(layer)


def recorded(kind):
    layer = MAKE[kind]()
    record = Record(layer, opened(layer), type(layer), type(layer))
    assert not record.reason and record.holds(torch.float32, CPU)
    return layer, record


def same_facts(record, layer):
    now = record.again(opened(layer))
    return not now.reason and record.same_facts(now)


ONE = nn.Parameter(torch.ones(1))


def hook(module):
    module.register_forward_hook(lambda *_: None)


SEEN = {
    "a number": ("GAT", lambda m: setattr(m, "negative_slope", 0.9)),
    "a number of another type": ("GAT", lambda m: setattr(m, "concat", 2)),
    "a text": ("GAT", lambda m: setattr(m, "fill_value", "max")),
    "a tensor in place of a text": ("GAT", lambda m: setattr(m, "fill_value", torch.zeros(3))),
    "a number inside": ("GEN", lambda m: setattr(m.aggr_module, "t", 3.0)),
    "a list that is written to": ("PNA", lambda m: m.aggr_module.scaler.__setitem__(1, "attenuation")),
    "a module": ("SAGE", lambda m: setattr(m, "aggr_module", pyg.MaxAggregation())),
    "a module in a list": ("Edge", lambda m: m.nn.__setitem__(1, nn.Tanh())),
    "one more module": ("Edge", lambda m: m.nn.append(nn.ReLU())),
    "a module less": ("GIN", lambda m: m.nn.lins.pop(1)),
    "a class": ("GCN", lambda m: setattr(m.lin, "__class__", type("Other", (pyg.Linear,), {}))),
    "a method of the instance": ("GCN", lambda m: setattr(m, "message", lambda x_j: x_j)),
    "a forward inside": ("SAGE", lambda m: setattr(m.aggr_module, "forward", lambda *_: None)),
    "a hook inside": ("Edge", lambda m: hook(m.nn[0])),
    "a hook of messages": ("GCN", lambda m: m.register_message_forward_hook(lambda *_: None)),
    "a parametrization": ("Edge", lambda m: nn.utils.parametrizations.weight_norm(m.nn[0])),
    "explanations": ("GCN", lambda m: setattr(m, "explain", True)),
    "a parameter less": ("GCN", lambda m: setattr(m, "bias", None)),
    "a parameter more": ("GCN", lambda m: setattr(m.lin, "bias", nn.Parameter(torch.zeros(4)))),
    "a parameter of another shape": ("GAT", lambda m: setattr(m, "att_src", nn.Parameter(torch.ones(1, 1, 1)))),
    "a buffer of another shape": ("GIN", lambda m: m.register_buffer("eps", torch.ones(6))),
    "a parameter in a buffer's place": ("GIN", lambda m: (delattr(m, "eps"), m.register_parameter("eps", ONE))),
}
HARMLESS = {
    "other weights": ("GCN", lambda m: m.lin.weight.data.mul_(2)),
    "other parameters": ("GCN", lambda m: setattr(m, "bias", nn.Parameter(torch.ones(4)))),
    "a mode": ("GAT", lambda m: m.train(not m.training)),
    "modes of modules inside": ("Edge", lambda m: m.nn.eval()),
    "gradients": ("SAGE", lambda m: m.requires_grad_(False)),
    "buffers": ("PNA", lambda m: m.aggr_module.avg_deg_log.fill_(9.0)),
}
OF_NO_ACCOUNT = {
    "a counter": ("GCN", lambda m: setattr(m, "calls", 1)),
    "a list of the user's": ("SAGE", lambda m: setattr(m, "log", [3])),
    "a tensor of the user's": ("GIN", lambda m: setattr(m, "seen", torch.ones(3))),
    "a counter inside": ("Edge", lambda m: setattr(m.nn[0], "calls", 1)),
}


@pytest.mark.parametrize("what", SEEN)
def test_what_changes_the_result_is_seen(what):
    kind, change = SEEN[what]
    layer, record = recorded(kind)
    change(layer)
    assert not record.holds(torch.float32, CPU) and not same_facts(record, layer)


@pytest.mark.parametrize("what", HARMLESS)
def test_what_a_kernel_reads_in_each_call_is_none_of_its_business(what):
    kind, change = HARMLESS[what]
    layer, record = recorded(kind)
    change(layer)
    assert record.holds(torch.float32, CPU)


@pytest.mark.parametrize("what", OF_NO_ACCOUNT)
def test_attributes_that_no_code_of_pyg_names_are_the_same_facts(what):
    kind, change = OF_NO_ACCOUNT[what]
    layer, record = recorded(kind)
    change(layer)
    assert not record.holds(torch.float32, CPU) and same_facts(record, layer)
    assert record.again(opened(layer)).holds(torch.float32, CPU)


def test_a_record_holds_for_a_copy_that_looks_the_same_and_for_its_type_of_numbers_alone(monkeypatch):
    layer, record = recorded("GIN")
    assert not record.holds(torch.float64, CPU)
    layer.double()
    assert record.holds(torch.float64, CPU) and not record.holds(torch.float32, CPU)
    other = copy.deepcopy(layer)
    of_copy = record.of_copy(other).again(opened(other))
    assert record.same_facts(of_copy) and of_copy.holds(torch.float64, CPU) and record.layer is layer
    other.nn.lins[0] = nn.Identity()
    assert not of_copy.holds(torch.float64, CPU) and record.holds(torch.float64, CPU)
    monkeypatch.setattr(pyg.GINConv, "message", lambda self, x_j: 2 * x_j)
    assert not record.holds(torch.float64, CPU)


def test_a_layer_that_has_hooks_tensors_or_methods_of_its_own_from_the_start_is_not_recorded():
    for change, why in (
        (lambda m: m.register_propagate_forward_hook(lambda *_: None), "hooks of GATConv"),
        (lambda m: setattr(m, "fill_value", torch.zeros(3)), "its attribute fill_value is a tensor"),
        (lambda m: setattr(m, "message", lambda x_j: x_j), "its method message is replaced"),
    ):
        layer = MAKE["GAT"]()
        change(layer)
        assert Record(layer, opened(layer), pyg.GATConv, pyg.GATConv).reason == why


def test_a_subclass_is_stock_as_long_as_it_overrides_nothing(monkeypatch):
    base = pyg.GCNConv
    own = {"__init__": lambda self: None, "helper": lambda self: 3, "__doc__": "mine"}
    assert is_stock(base, base) and is_stock(type("Named", (base,), own), base)
    for name in ("forward", "message", "update", "propagate", "__getattr__", "__call__"):
        assert not is_stock(type("Other", (base,), {name: lambda self, *_: None}), base), name
    assert not is_stock(type("Other", (base,), {"lin": property(lambda self: None)}), base)
    monkeypatch.setattr(base, "message", lambda self, x_j: x_j)
    assert not is_stock(base, base)


def test_a_layer_that_changes_is_compared_again_and_given_up_when_it_keeps_changing():
    layer, x, edge_index = pyg.GATConv(6, 4).double(), torch.randn(13, 6).double(), edges_of("many edges")
    fast, trials = swap(layer, measure=False).model, []
    for step in range(MAX_RETESTS + 2):
        layer.negative_slope = fast.negative_slope = 0.2 + 0.1 * step
        torch.testing.assert_close(fast(x, edge_index), layer(x, edge_index), **CLOSE)
        trials.append((fast._fast.retests, bool(fast._fast.direct)))
    assert trials == [(step, step <= MAX_RETESTS) for step in range(MAX_RETESTS + 2)]


def test_calls_within_modes_of_torch_are_no_plain_calls():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    found, x = [], torch.ones(3)

    def note(x):
        found.append(plain_call())
        return 2 * x

    for transform in (torch.func.vmap(note), torch.func.grad(lambda x: note(x).sum()), make_fx(note)):
        transform(x)
    torch.jit.trace(note, (x,), check_trace=False)
    nothing = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    for mode in (torch.autocast("cpu"), forward_ad.dual_level(), nothing, Functions()):
        with mode:
            note(x)
    remove = nn.modules.module.register_module_forward_hook(lambda *_: None)
    note(x)
    remove.remove()
    assert found == [False] * 9
    with torch.no_grad(), nothing, torch.device("cpu"), torch.profiler.profile():  # no gradient: nothing is saved
        assert plain_call()


def test_kernels_compute_in_plain_tensors_of_a_graph_alone():
    assert guards.computable(torch.ones(3)) and guards.is_edge_index(torch.zeros(2, 5, dtype=torch.int32))
    for x in (torch.ones(3).half(), torch.ones(3).long(), torch.ones(3, 3).to_sparse(), torch.ones(3, device="meta")):
        assert not guards.computable(x)
    for edges in (torch.zeros(2, 5), torch.zeros(3, 5).long(), torch.zeros(5).long(), None, torch.eye(3).to_sparse()):
        assert not guards.is_edge_index(edges)


# ---- what is outside of the layer ------------------------------------------------------------------------------------


def doubled(function):
    return lambda *given, **named: torch.utils._pytree.tree_map(lambda t: 2 * t, function(*given, **named))


PATCHES = {
    "softmax": (lambda: pyg.GATConv(6, 4), "torch_geometric.nn.conv.gat_conv.softmax"),
    "scatter": (lambda: pyg.SAGEConv(6, 4), "torch_geometric.nn.aggr.base.scatter"),
    "a linear layer's call": (lambda: pyg.SAGEConv(6, 4), "torch_geometric.nn.dense.linear.Linear.__call__"),
    "an aggregation": (lambda: pyg.TAGConv(6, 4), "torch_geometric.nn.aggr.SumAggregation.forward"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_functions_of_pyg_that_are_replaced_after_swap_run(name, monkeypatch):
    make, place = PATCHES[name]
    layer, (x, edge_index) = make().double(), (torch.randn(9, 6, dtype=torch.float64), torch.randint(9, (2, 30)))
    report = swap(layer, (x, edge_index), measure=False)
    assert report.replaced
    module, _, function = place.rpartition(".")
    owner = pkgutil.resolve_name(module.replace(".Linear", ":Linear").replace(".Sum", ":Sum"))
    before = layer(x, edge_index)
    monkeypatch.setattr(owner, function, doubled(getattr(owner, function)))
    assert not torch.allclose(layer(x, edge_index), before)
    torch.testing.assert_close(report.model(x, edge_index), layer(x, edge_index))
    monkeypatch.undo()
    torch.testing.assert_close(report.model(x, edge_index), before)


class Around(pyg.MessagePassing):
    """Its `propagate` is its own."""

    scale = 1.0

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def propagate(self, edge_index, size=None, **named):
        return super().propagate(edge_index, size=size, **named) * self.scale

    def message(self, x_j):
        return x_j


class Reversed(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * Reversed.factor


class Through(pyg.MessagePassing):
    """Its message goes through an autograd function, or turns gradients off."""

    recorded = True

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        with torch.set_grad_enabled(Through.recorded):
            return self.function(x_j)


def test_a_propagate_of_ones_own_runs():
    layer, (x, edge_index) = Around(), (torch.randn(9, 6), torch.randint(9, (2, 30)))
    fast = swap(layer, (x, edge_index), measure=False).model
    layer.scale = fast.scale = 3.0
    torch.testing.assert_close(fast(x, edge_index), layer(x, edge_index))


@pytest.mark.parametrize("function", [Reversed.apply, lambda x: 2 * x], ids=["an autograd function", "a product"])
def test_gradients_that_a_message_changes_or_turns_off_later_are_those_of_the_message(function, monkeypatch):
    layer, (x, edge_index) = Through(function), (torch.randn(9, 6), torch.randint(9, (2, 30)))
    fast = swap(layer, (x, edge_index), measure=False).model
    for change in ((Reversed, "factor", 0.1), (Through, "recorded", False)):
        monkeypatch.setattr(*change)
        found = []
        for model in (layer, fast):
            leaf = x.clone().requires_grad_()
            out = model(leaf, edge_index)
            found.append(torch.autograd.grad(out.sum(), leaf)[0] if out.requires_grad else None)
        torch.testing.assert_close(*found)


# ---- guards and devices: torch's fake tensors know their device, type and shape, and no values ----------------------


@pytest.fixture
def fakes_are_plain(monkeypatch):
    monkeypatch.setattr(guards, "PLAIN", (*guards.PLAIN, FakeTensor))


@pytest.mark.parametrize(
    ("x", "edge_index", "usual"),
    [
        ("cuda", "cuda", True),
        ("cpu", "cpu", True),
        ("cuda", "cpu", False),
        ("cpu", "cuda", False),
        ("cuda:0", "cuda:1", False),
        ("meta", "meta", False),
    ],
)
def test_a_kernel_is_asked_on_one_device_with_kernels(x, edge_index, usual, fakes_are_plain):
    with FakeTensorMode():
        given = torch.empty(13, IN, device=x), torch.empty(2, 60, dtype=torch.int64, device=edge_index)
        assert _usual(*given, None) == usual


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_low_precision_is_served_on_the_device_alone(kind, fakes_are_plain):
    with FakeTensorMode():
        on_cpu, on_cuda, on_meta = (
            guards.computable(torch.empty(3, 3, dtype=kind, device=one)) for one in ("cpu", "cuda", "meta")
        )
    assert on_cpu == (kind in (torch.float32, torch.float64)) and on_cuda == kind.is_floating_point and not on_meta


def test_parameters_on_another_device_do_not_hold():
    layer = build("GCN plain").float()
    make_fast(layer, Caches())
    record = layer._fast.record.again(KERNELS[pyg.GCNConv].opened(layer))
    assert record.holds(torch.float32, CPU) and not record.holds(torch.float32, CUDA)


def test_what_was_compared_on_one_device_says_nothing_of_another():
    layer = build("GCN plain")
    make_fast(layer, Caches())
    layer._fast.direct = {(None, "cpu", ""): True}
    layer._fast.sums = {("cpu", ""): ""}
    assert layer._fast.mechanism("cpu") == "own kernel" and layer._fast.mechanism("cuda") is None


def test_kernels_of_a_sum_by_device():
    assert backends.sum_kernels(CPU) == (backends.BAG,)
    assert backends.sum_kernels(CUDA)[-2:] == (backends.BAG, backends.CUSPARSE)
    assert backends.CUSPARSE not in backends.sum_kernels(CUDA, torch.bfloat16)
    assert backends.triton_for(torch.ones(1)) is None
