"""What people do with a model: in every use the fast model gives what the original gives.

The right value always comes from the original, a copy with weights of its own that is used in the same way.
"""

import contextlib
import copy
import enum
import gc
import itertools
import math
import subprocess
import sys
import threading
import types
import warnings
import weakref
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import uses
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.dense.linear import Linear as PyGLinear
from torch_geometric.utils import add_self_loops
from uses import (
    ALL,
    IN,
    KINDS,
    LAYERS,
    MORE,
    OUT,
    Attention,
    E,
    N,
    Two,
    assert_same,
    assert_same_call,
    assert_same_use,
    copies,
    edge_values,
    every,
    everything,
    graph,
    kinds,
    pair,
    tensors,
    trained,
)

from gnnswap import neighbour_sum, swap

HERE = sys.modules[__name__]
pytestmark = pytest.mark.usefixtures("one_thread")


@every
def test_the_layers_of_these_tests_take_fast_forms(name):
    """Else nothing here would prove anything."""
    x, edge_index = graph()
    report = swap(ALL[name]().double(), (x, edge_index), measure=False)
    report.model(x, edge_index)
    assert report.replaced, report.kept


# 1. what a message is given and reads beside tensors

GAIN, SETTINGS = 0.5, {"gain": 0.5}


class Kind(enum.Enum):
    PLAIN, DOUBLE = 1, 2


@dataclass
class Options:
    gain: float = 1.0


def given(how):
    """A layer whose message takes one value that is no tensor of edges, and reads nothing but its arguments."""

    class Given(MessagePassing):
        def __init__(self):
            super().__init__(aggr="add")
            self.lin = nn.Linear(IN, OUT)

        def forward(self, x, edge_index, value=None):
            return self.propagate(edge_index, x=self.lin(x), value=value)

        def message(self, x_j, value):
            return how(x_j, value)

    return Given()


VALUES = {
    "float": (lambda x_j, tau: x_j / tau, [1.0, 0.5, 0.1]),
    "int": (lambda x_j, k: x_j * 0.5**k, [0, 1, 5]),
    "bool": (lambda x_j, on: 2 * x_j if on else x_j, [True, False, True]),
    "text": (lambda x_j, mode: x_j if mode == "plain" else -3 * x_j, ["plain", "other", "plain"]),
    "None": (lambda x_j, value: x_j if value is None else x_j * value, [None, 2.0, None]),
    "numpy": (lambda x_j, tau: x_j * float(tau), [np.float64(1.0), np.float64(0.1), np.float32(3.0)]),
    "enum": (lambda x_j, kind: x_j * kind.value, [Kind.PLAIN, Kind.DOUBLE, Kind.PLAIN]),
    "dataclass": (lambda x_j, options: x_j * options.gain, [Options(1.0), Options(5.0), Options(0.1)]),
    "tuple": (lambda x_j, both: x_j * both[0] + x_j * both[1], [(1.0, 2.0), (1.0, 5.0), (0.0, 1.0)]),
    "dictionary": (lambda x_j, named: x_j * named["gain"], [{"gain": 1.0}, {"gain": 4.0}, {"gain": 0.5}]),
    "tensor": (lambda x_j, tau: x_j / tau, [torch.tensor(1.0), torch.tensor(0.1), torch.tensor(3.0)]),
    "function": (lambda x_j, f: f(x_j), [lambda v: v, lambda v: 2 * v, torch.relu]),
    "float, then tensor": (lambda x_j, tau: x_j * tau, [1.0, torch.tensor(4.0), 0.5]),
}


@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_given_to_the_message_is_seen_in_each_call(kind, example):
    (x, edge_index), (how, values) = graph(), VALUES[kind]
    original, fast = pair(given(how), (x, edge_index, values[0]) if example else None)
    for value in [*values, values[0]]:
        assert_same_call(original, fast, x, edge_index, value)


def test_a_temperature_given_as_a_float_is_seen_in_each_call():
    class Scaled(MessagePassing):
        def forward(self, x, edge_index, tau=1.0):
            return self.propagate(edge_index, x=x, tau=tau)

        def message(self, x_j, tau):
            return x_j / tau

    x, edge_index = graph()
    original, fast = pair(Scaled(), (x, edge_index))
    for tau in (1.0, 0.5, 0.1):
        assert_same_call(original, fast, x, edge_index, tau)


def test_a_hop_number_given_to_the_message_is_seen_within_one_call():
    class Hops(MessagePassing):
        def forward(self, x, edge_index):
            out = x
            for k in range(3):
                x = self.propagate(edge_index, x=x, k=k)
                out = out + x
            return out

        def message(self, x_j, k):
            return x_j * 0.5**k

    x, edge_index = graph()
    original, fast = pair(Hops())
    assert_same_call(original, fast, x, edge_index)
    assert_same_call(original, fast, x, edge_index)


def test_edges_that_fade_with_the_time_of_the_call_do():
    class Decay(MessagePassing):
        def __init__(self):
            super().__init__(aggr="mean")

        def forward(self, x, edge_index, stamp, t):
            return self.propagate(edge_index, x=x, stamp=stamp, t=t)

        def message(self, x_j, stamp, t):
            return x_j * torch.exp(-(t - stamp).clamp(min=0)).view(-1, 1)

    (x, edge_index), stamp = graph(), torch.rand(E, dtype=torch.float64)
    original, fast = pair(Decay(), (x, edge_index, stamp, 1.0))
    for t in (1.0, 5.0, torch.tensor(7.0, dtype=torch.float64)):
        assert_same_call(original, fast, x, edge_index, stamp, t)


def test_one_tensor_given_first_by_one_name_then_by_another_means_another_thing():
    class Either(MessagePassing):
        def forward(self, x, edge_index, a=None, b=None):
            return self.propagate(edge_index, x=x, a=a, b=b)

        def message(self, x_j, a, b):
            x_j = x_j if a is None else x_j * a.view(-1, 1)
            return x_j if b is None else x_j / b.view(-1, 1)

    (x, edge_index), weight = graph(), torch.rand(E, dtype=torch.float64) + 0.5
    original, fast = pair(Either(), {"x": x, "edge_index": edge_index, "a": weight})
    for given in ({"a": weight}, {"b": weight}, {"a": weight, "b": weight}, {}):
        assert_same_call(original, fast, x, edge_index, **given)


READ = {
    "global": lambda rows, layer: GAIN * rows,
    "dictionary": lambda rows, layer: SETTINGS["gain"] * rows,
    "helper": lambda rows, layer: helper(rows),
    "closure": lambda rows, layer: layer.closure(rows),
    "partial": lambda rows, layer: layer.partial(rows),
    "attribute": lambda rows, layer: layer.gain * rows,
    "list": lambda rows, layer: layer.gains[0] * rows,
    "dataclass": lambda rows, layer: layer.options.gain * rows,
    "class attribute": lambda rows, layer: layer.everyones * rows,
    "property": lambda rows, layer: layer.half * rows,
    "module": lambda rows, layer: layer.act(rows),
    "buffer": lambda rows, layer: layer.factor * rows,
    "training": lambda rows, layer: 2 * rows if layer.training else rows,
    "numpy array": lambda rows, layer: rows * float(layer.array[0]),
}


def helper(rows):
    return rows


def _adds(number, rows):
    return rows * number


class Reads(MessagePassing):
    everyones = 1.0

    def __init__(self, what):
        super().__init__(aggr="add")
        self.what, self.gain, self.gains, self.options, self.act = what, 1.0, [1.0], Options(), nn.Identity()
        self.array, self.partial, self.cell = np.ones(1), partial(_adds, 1.0), types.SimpleNamespace(gain=1.0)
        self.closure = lambda rows: self.cell.gain * rows
        self.register_buffer("factor", torch.ones(()))

    @property
    def half(self):
        return 0.5 * self.gain

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return READ[self.what](x_j, self)


@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
@pytest.mark.parametrize("what", READ)
def test_what_a_message_reads_is_read_in_each_call(what, example, monkeypatch):
    x, edge_index = graph()
    original, fast = pair(Reads(what), (x, edge_index) if example else None)
    assert_same_call(original, fast, x, edge_index)
    monkeypatch.setattr(HERE, "GAIN", 3.0)
    monkeypatch.setitem(SETTINGS, "gain", 3.0)
    monkeypatch.setattr(HERE, "helper", lambda rows: 3 * rows)
    monkeypatch.setattr(Reads, "everyones", 3.0)
    for model in (original, fast):
        model.gain, model.gains[0], model.options.gain, model.cell.gain = 3.0, 3.0, 3.0, 3.0
        model.partial, model.act, model.array[0] = partial(_adds, 3.0), nn.ReLU(), 3.0
        model.closure = lambda rows: 3 * rows
        model.factor.fill_(3.0)
        model.eval()
    assert_same_call(original, fast, x, edge_index)


# 2. gradients of gradients


@everything
def test_forces_train_the_weights(name):
    """The loss is one of gradients: by `autograd.grad`, by `backward` and by `backward(inputs=)`."""
    x0, edge_index = graph()
    original, fast = copies(name)

    def use(model, how):
        model.zero_grad()
        x = x0.clone().requires_grad_()
        (force,) = torch.autograd.grad(model(x, edge_index).square().sum(), x, create_graph=True)
        penalty, wanted = (force.norm(dim=1) - 1).square().mean(), [*model.parameters(), x]
        if how == "grad":
            return force, torch.autograd.grad(penalty, wanted, allow_unused=True)
        penalty.backward(**({} if how == "backward" else {"inputs": wanted}))
        return force, [t.grad for t in wanted]

    for how in ("grad", "backward", "inputs"):
        assert_same_use(original, fast, partial(use, how=how))


@kinds
def test_forces_of_a_sum_train_the_weights(kind):
    """Where the layer comes last the gradient that reaches it is a constant."""
    x0, edge_index = graph()
    original, fast = copies(f"two {kind}")

    def use(model):
        x = x0.clone().requires_grad_()
        (force,) = torch.autograd.grad(model(x, edge_index).sum(), x, create_graph=True)
        return torch.autograd.grad(force.square().sum(), [*model.parameters(), x], allow_unused=True)

    assert_same_use(original, fast, use)


SECOND = {
    "hvp": lambda model, x, edges: torch.autograd.functional.hvp(
        lambda x: model(x, edges).square().sum(), x, torch.ones_like(x)
    ),
    "vhp": lambda model, x, edges: torch.autograd.functional.vhp(
        lambda x: model(x, edges).square().sum(), x, torch.ones_like(x)
    ),
    "jacobian": lambda model, x, edges: torch.autograd.functional.jacobian(lambda x: model(x, edges)[:2].sum(1), x),
    "jacobian at once": lambda model, x, edges: torch.autograd.functional.jacobian(
        lambda x: model(x, edges)[:2].sum(1), x, vectorize=True
    ),
    "batched": lambda model, x, edges: _batched(model, x.clone().requires_grad_(), edges),
    "third": lambda model, x, edges: _third(model, x.clone().requires_grad_(), edges),
}


def _batched(model, x, edges):
    return torch.autograd.grad(model(x, edges).sum(1), x, torch.eye(N, dtype=x.dtype)[:3], is_grads_batched=True)


def _third(model, x, edges):
    value = torch.tanh(model(x, edges)).square().sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum()
    return gradient


@pytest.mark.parametrize("what", SECOND)
@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GAT", "Edge"])
def test_higher_derivatives_are_the_originals(kind, what):
    x, edge_index = graph()
    original, fast = copies(f"two {kind}", training=False)
    assert_same_use(original, fast, lambda model: SECOND[what](model, x, edge_index))


def test_an_inner_step_of_meta_learning_is_differentiated():
    x, edge_index = graph()
    original, fast = pair(Two(pyg.GATConv), (x, edge_index))

    def use(model):
        weights = dict(model.named_parameters())
        loss = functional_call(model, weights, (x, edge_index)).square().mean()
        steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        after = {name: p - 0.1 * step for (name, p), step in zip(weights.items(), steps, strict=True)}
        return torch.autograd.grad(functional_call(model, after, (x, edge_index)).square().mean(), weights.values())

    assert_same_use(original, fast, use)


def test_neighbour_sum_has_second_derivatives():
    (x0, edge_index), weight0 = graph(), torch.rand(E, dtype=torch.float64)

    def penalty(total):
        x, weight = x0.clone().requires_grad_(), weight0.clone().requires_grad_()
        first = torch.autograd.grad(total(x, weight).pow(3).sum(), [x, weight], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), [x, weight])

    def plain(x, weight):
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]] * weight.view(-1, 1))

    assert_same(penalty(lambda x, weight: neighbour_sum(x, edge_index, weight)), penalty(plain))


# 3. globals of the user's module

CALLS = 0


def test_a_constant_beside_pygs_softmax_is_seen_when_it_changes(monkeypatch):
    x, edge_index = graph()
    original, fast = pair(Attention(), (x, edge_index))
    monkeypatch.setattr(uses, "TEMPERATURE", 0.05)
    assert_same_call(original, fast, x, edge_index)


def test_a_helper_that_is_defined_again_is_the_one_that_runs(monkeypatch):
    class Helped(MessagePassing):
        def forward(self, x, edge_index):
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.shape[0])
            return self.propagate(edge_index, x=helper(x))

        def message(self, x_j):
            return x_j

    x, edge_index = graph()
    original, fast = pair(Helped(), (x, edge_index))
    monkeypatch.setattr(HERE, "helper", lambda rows: 3 * rows)
    assert_same_call(original, fast, x, edge_index)


def test_a_global_counter_counts_each_call(monkeypatch):
    class Counts(MessagePassing):
        def forward(self, x, edge_index):
            global CALLS
            CALLS += 1
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.shape[0])
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return x_j

    (x, edge_index), fast = graph(), swap(Counts(), measure=False).model
    monkeypatch.setattr(HERE, "CALLS", 0)
    for _ in range(3):
        fast(x, edge_index)
    assert CALLS == 3


# 4. exported programs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GAT"])
def test_an_exported_program_holds_no_operator_of_ours_and_outlives_the_model(kind):
    (x, edge_index), (x2, edge_index2) = graph(), graph(9)
    original, fast = copies(f"two {kind}", training=False)
    program = torch.export.export(fast, (x, edge_index))
    expected = torch.export.export(original, (x, edge_index)).module()(x2, edge_index2)
    del fast
    gc.collect()
    assert not [node for node in program.graph.nodes if "gnnswap" in str(node.target)]
    swap(Two(KINDS[kind]).double(), (x, edge_index), measure=False)  # another model must not become this one
    assert_same(program.module()(x2, edge_index2), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_saved_program_runs_in_a_fresh_process_that_knows_torch_alone(tmp_path):
    x, edge_index = graph()
    original, fast = pair(Two().eval(), (x, edge_index))
    fast(x, edge_index)
    torch.export.save(torch.export.export(fast, (x, edge_index)), tmp_path / "program.pt2")
    torch.save((x, edge_index, original(x, edge_index).detach()), tmp_path / "inputs.pt")
    code = (
        "import sys, torch; program = torch.export.load('program.pt2'); x, edges, want = torch.load('inputs.pt')\n"
        "torch.testing.assert_close(program.module()(x, edges), want); assert 'gnnswap' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True], ids=["by tracing", "by torch.export"])
def test_an_onnx_model_is_the_originals(tmp_path, dynamo, one_registry):
    onnxruntime = pytest.importorskip("onnxruntime")
    x, edge_index = graph(dtype=torch.float32)
    x2, edge_index2 = graph(9, dtype=torch.float32)
    original, fast = pair(Two(pyg.SAGEConv).eval(), (x, edge_index), dtype=torch.float32)
    fast(x, edge_index)
    path, more = tmp_path / "model.onnx", {"verbose": False} if dynamo else {"opset_version": 17}
    torch.onnx.export(fast, (x, edge_index), path, dynamo=dynamo, input_names=["x", "edges"], **more)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["x", "edges"]
    (got,) = session.run(None, {"x": x2.numpy(), "edges": edge_index2.numpy()})
    assert_same(torch.from_numpy(got), original(x2, edge_index2), 1e-5)


# 5. hooks, wraps and pruning, of a layer and of what is inside of it

PLACES = {
    "GCN.lin": lambda layer: layer.lin,
    "GAT.lin": lambda layer: layer.lin,
    "SAGE.lin_l": lambda layer: layer.lin_l,
    "GIN.nn[0]": lambda layer: layer.nn[0],
    "GIN.nn": lambda layer: layer.nn,
    "Edge.nn[0]": lambda layer: layer.nn[0],
    "Edge.nn[1]": lambda layer: layer.nn[1],
    "Edge.nn": lambda layer: layer.nn,
    "PNA.pre": lambda layer: layer.pre_nns[0][0],
    "PNA.post": lambda layer: layer.post_nns[0][0],
    "PNA.lin": lambda layer: layer.lin,
    "Transformer.lin_key": lambda layer: layer.lin_key,
    "ResGated.lin_key": lambda layer: layer.lin_key,
    "FiLM.films[0]": lambda layer: layer.films[0],
    "CG.lin_f": lambda layer: layer.lin_f,
    "own.lin": lambda layer: layer.lin,
    "both ends.lin": lambda layer: layer.lin,
}


def _counted(module, *_):
    module.seen = getattr(module, "seen", 0) + 1


def _only_gradients(module, into, out):
    return tuple(None if gradient is None else 3 * gradient for gradient in into)


HOOKED = {
    "forward hook": lambda m: m.register_forward_hook(lambda module, given, out: 2 * out),
    "hook before": lambda m: m.register_forward_pre_hook(lambda module, given: (2 * given[0],)),
    "counting hook": lambda m: m.register_forward_hook(_counted),
    "backward hook": lambda m: m.register_full_backward_hook(_only_gradients),
}
WRAPPED = {
    "pruned": lambda m: prune.l1_unstructured(m, "weight", 0.5),
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "old weight norm": lambda m: _quietly(nn.utils.weight_norm, m),
    "parametrized": lambda m: parametrize.register_parametrization(m, "weight", nn.Tanh()),
    "frozen": lambda m: m.requires_grad_(False),
    "new weight": lambda m: setattr(m, "weight", nn.Parameter(2 * m.weight.detach())),
    "gradient of the weight hooked": lambda m: m.weight.register_hook(lambda gradient: 2 * gradient),
    "patched forward": lambda m: setattr(m, "forward", lambda x: 2 * type(m).forward(m, x)),
}


def _quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


@pytest.mark.parametrize("what", HOOKED | WRAPPED)
def test_what_is_hooked_into_or_wrapped_around_an_inner_module_after_swap_acts(what):
    may_raise = what in ("frozen", "backward hook")  # no weight is left to train; torch refuses it at some places
    for name, inner in PLACES.items():
        original, fast = copies(name.partition(".")[0])
        if what in WRAPPED and not hasattr(inner(original), "weight"):
            continue
        for model in (original, fast):
            torch.manual_seed(3)
            (HOOKED | WRAPPED)[what](inner(model))
        assert_same_use(original, fast, lambda model: trained(model, *graph()), 1e-8, may_raise)
        assert getattr(inner(fast), "seen", 0) == getattr(inner(original), "seen", 0), name


@pytest.mark.parametrize("what", HOOKED)
def test_a_hook_that_is_taken_off_again_no_longer_acts(what):
    for name in ("GCN.lin", "GIN.nn", "Edge.nn[0]", "PNA.pre"):
        inner = PLACES[name]
        original, fast = copies(name.partition(".")[0])
        handles = [HOOKED[what](inner(model)) for model in (original, fast)]
        assert_same_call(original, fast, *graph())
        for handle in handles:
            handle.remove()
        assert_same_call(original, fast, *graph())


@every
def test_hooks_of_the_layer_itself_act(name):
    for what in ("forward", "message", "aggregate", "propagate"):
        original, fast = copies(name)
        for model in (original, fast):
            register = getattr(model, "register_forward_hook" if what == "forward" else f"register_{what}_forward_hook")
            register(lambda module, given, out: 2 * out)
        assert_same_call(original, fast, *graph())


@pytest.mark.parametrize("name", ["GCN", "GIN", "Edge", "PNA", "own"])
def test_hooks_of_all_modules_act(name):
    original, fast = copies(name)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 2 * out if isinstance(module, (nn.Linear, PyGLinear)) else None
    )
    try:
        assert_same_call(original, fast, *graph())
    finally:
        hook.remove()
    assert_same_call(original, fast, *graph())


class Adapter(nn.Module):
    """A linear layer with a correction of low rank, as LoRA has it."""

    def __init__(self, base):
        super().__init__()
        out, given = base.weight.shape
        self.base, self.down = base, nn.Linear(given, 2, bias=False, dtype=torch.float64)
        self.up = nn.Linear(2, out, bias=False, dtype=torch.float64)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


REPLACED = {
    "Edge.nn[0] by an adapter": ("Edge", lambda m: m.nn.__setitem__(0, Adapter(m.nn[0]))),
    "Edge.nn[1] by ReLU": ("Edge", lambda m: m.nn.__setitem__(1, nn.ReLU())),
    "Edge.nn by one that starts with Tanh": (
        "Edge",
        lambda m: setattr(m, "nn", nn.Sequential(nn.Tanh(), nn.Linear(2 * IN, OUT).double())),
    ),
    "Edge.nn by a module": ("Edge", lambda m: setattr(m, "nn", Adapter(nn.Linear(2 * IN, OUT).double()))),
    "Edge.nn longer by one": ("Edge", lambda m: m.nn.append(nn.ReLU())),
    "GIN.nn[0] by an adapter": ("GIN", lambda m: m.nn.__setitem__(0, Adapter(m.nn[0]))),
    "GIN.nn by another": ("GIN", lambda m: setattr(m, "nn", nn.Sequential(nn.Tanh(), nn.Linear(IN, OUT).double()))),
    "GCN.lin by an adapter": ("GCN", lambda m: setattr(m, "lin", Adapter(m.lin))),
    "GCN.bias by None": ("GCN", lambda m: setattr(m, "bias", None)),
    "SAGE.lin_l by an adapter": ("SAGE", lambda m: setattr(m, "lin_l", Adapter(m.lin_l))),
    "PNA.pre_nns[0][0] by an adapter": ("PNA", lambda m: m.pre_nns[0].__setitem__(0, Adapter(m.pre_nns[0][0]))),
    "PNA.post_nns[0][0] by an adapter": ("PNA", lambda m: m.post_nns[0].__setitem__(0, Adapter(m.post_nns[0][0]))),
    "own.lin by an adapter": ("own", lambda m: setattr(m, "lin", Adapter(m.lin))),
}


@pytest.mark.parametrize("what", REPLACED)
def test_a_module_that_is_replaced_after_swap_is_the_one_that_runs(what):
    name, replace = REPLACED[what]
    original, fast = copies(name)
    for model in (original, fast):
        torch.manual_seed(3)
        replace(model)
    assert_same_use(original, fast, lambda model: trained(model, *graph()), 1e-8)


@pytest.mark.filterwarnings("ignore")
def test_an_inner_network_that_is_quantized_after_swap_runs_quantized():
    x, edge_index = graph(dtype=torch.float32)
    original, fast = pair(LAYERS["Edge"]().eval(), (x, edge_index), dtype=torch.float32)
    fast(x, edge_index)
    for model in (original, fast):
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)
    assert_same_use(original, fast, lambda model: model(x, edge_index), 1e-5)


# 6. attributes and methods that change

CHANGED = {
    "SAGE.aggr_module": ("SAGE", lambda m: setattr(m, "aggr_module", pyg.MaxAggregation())),
    "GIN.aggr_module": ("GIN", lambda m: setattr(m, "aggr_module", pyg.MaxAggregation())),
    "GCN.aggr_module": ("GCN", lambda m: setattr(m, "aggr_module", pyg.MeanAggregation())),
    "Graph.aggr_module": ("Graph", lambda m: setattr(m, "aggr_module", pyg.MeanAggregation())),
    "own.aggr_module": ("own", lambda m: setattr(m, "aggr_module", pyg.MaxAggregation())),
    "SAGE max.aggr_module": ("SAGE max", lambda m: setattr(m, "aggr_module", pyg.SumAggregation())),
    "PNA scaler": ("PNA", lambda m: m.aggr_module.scaler.__setitem__(1, "attenuation")),
    "PNA degrees": ("PNA", lambda m: m.aggr_module.avg_deg_log.fill_(9.0)),
    "GEN.t": ("GEN", lambda m: setattr(m.aggr_module, "t", 3.0)),
    "GEN.eps": ("GEN", lambda m: setattr(m, "eps", 0.5)),
    "ResGated.act": ("ResGated", lambda m: setattr(m, "act", nn.Tanh())),
    "FiLM.act": ("FiLM", lambda m: setattr(m, "act", nn.Tanh())),
    "GAT.negative_slope": ("GAT", lambda m: setattr(m, "negative_slope", 0.9)),
    "GAT.heads": ("GAT", lambda m: setattr(m, "concat", False)),
    "GAT loops": ("GAT", lambda m: setattr(m, "add_self_loops", False)),
    "GATv2.negative_slope": ("GATv2", lambda m: setattr(m, "negative_slope", 0.9)),
    "GCN.improved": ("GCN", lambda m: setattr(m, "improved", True)),
    "GCN.normalize": ("GCN", lambda m: setattr(m, "normalize", False)),
    "GCN.flow": ("GCN", lambda m: setattr(m, "flow", "target_to_source")),
    "own.flow": ("own", lambda m: setattr(m, "flow", "target_to_source")),
    "SAGE.normalize": ("SAGE", lambda m: setattr(m, "normalize", True)),
    "SAGE.project": ("SAGE", lambda m: (setattr(m, "project", True), setattr(m, "lin", nn.Linear(IN, IN).double()))),
    "GIN.eps": ("GIN", lambda m: m.eps.fill_(2.0)),
    "GIN.eps replaced": ("GIN", lambda m: setattr(m, "eps", torch.tensor(2.0, dtype=torch.float64))),
    "APPNP.alpha": ("APPNP", lambda m: setattr(m, "alpha", 0.7)),
    "APPNP.K": ("APPNP", lambda m: setattr(m, "K", 5)),
    "TAG.normalize": ("TAG", lambda m: setattr(m, "normalize", False)),
    "message of the instance": ("SAGE", lambda m: setattr(m, "message", lambda x_j: x_j.relu())),
    "message of an own instance": ("own", lambda m: setattr(m, "message", lambda x_j: x_j.relu())),
    "update of the instance": ("GCN", lambda m: setattr(m, "update", lambda inputs: inputs.relu())),
    "aggregate of the instance": ("own", lambda m: setattr(m, "aggregate", _largest_of_three)),
    "forward of the instance": ("GCN", lambda m: setattr(m, "forward", lambda x, edge_index: x.relu())),
    "explain": ("GCN", lambda m: setattr(m, "explain", True)),
    "decomposed_layers": ("GCN", lambda m: setattr(m, "decomposed_layers", 2)),
}


def _largest_of_three(inputs, index, ptr=None, dim_size=None):
    return 3 * inputs.new_zeros(dim_size, inputs.shape[1]).index_add(0, index, inputs)


@pytest.mark.parametrize("what", CHANGED)
def test_what_is_changed_after_the_first_call_is_seen(what):
    name, change = CHANGED[what]
    original, fast = copies(name)
    for model in (original, fast):
        torch.manual_seed(3)
        change(model)
    for _ in range(2):
        assert_same_call(original, fast, *graph(), may_raise=what == "explain")


@pytest.mark.parametrize("value", [torch.tensor(0.0), 0.3, "max"], ids=["tensor", "float", "text"])
def test_a_fill_value_that_is_changed_is_seen(value):
    (x, edge_index), attr = graph(), edge_values()
    original, fast = pair(pyg.GATConv(IN, OUT, edge_dim=3), (x, edge_index, attr))
    assert_same_call(original, fast, x, edge_index, attr)
    original.fill_value = fast.fill_value = value
    assert_same_call(original, fast, x, edge_index, attr)


def test_a_schedule_that_makes_messages_non_linear_is_followed():
    class Warm(MessagePassing):
        def __init__(self):
            super().__init__(aggr="add")
            self.epoch = 0

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return x_j if self.epoch % 2 == 0 else x_j.relu()

    x, edge_index = graph()
    original, fast = pair(Warm(), (x, edge_index))
    for epoch in range(4):
        original.epoch = fast.epoch = epoch
        assert_same_call(original, fast, x, edge_index)


@pytest.mark.parametrize(
    ("kind", "method", "patch"),
    [
        (pyg.SAGEConv, "message", lambda self, x_j: x_j.relu()),
        (pyg.GraphConv, "forward", lambda self, x, edge_index: x[:, :1] + 0 * self.lin_rel.weight.sum()),
        (pyg.GCNConv, "update", lambda self, inputs: 2 * inputs),
        (PyGLinear, "forward", lambda self, x: 2 * F.linear(x, self.weight, self.bias)),
        (nn.Linear, "forward", lambda self, x: 2 * F.linear(x, self.weight, self.bias)),
    ],
    ids=["SAGE.message", "Graph.forward", "GCN.update", "PyG's Linear", "torch's Linear"],
)
def test_a_method_that_is_patched_in_its_class_runs(kind, method, patch, monkeypatch):
    makes = [LAYERS[name] for name in ("SAGE", "Graph", "GCN", "GIN", "Edge")] + [MORE["PNA"]]
    pairs = [pair(make(), graph()) for make in makes]
    for original, fast in pairs:
        assert_same_call(original, fast, *graph())
    monkeypatch.setattr(kind, method, patch)
    for original, fast in pairs:
        assert_same_call(original, fast, *graph())


# 7. NaN and infinity


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@everything
def test_what_is_not_finite_stays_with_the_neighbours_of_its_node(name, value):
    x, edge_index = graph(3)
    original, fast = copies(name, training=False)
    x[edge_index[0, 0]] = value
    with torch.no_grad():
        got, expected = fast(x, edge_index), original(x, edge_index)
    assert 0 < (~expected.isfinite()).any(1).sum() < N
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert_same(torch.where(got.isfinite(), got, 0.0), torch.where(expected.isfinite(), expected, 0.0))


@pytest.mark.parametrize("name", ["GCN", "SAGE", "Graph", "GIN", "own"])
def test_a_gradient_that_is_not_finite_stays_with_the_neighbours_of_its_node(name):
    x0, edge_index = graph(3)
    original, fast = copies(name)
    found = []
    for model in (original, fast):
        x = x0.clone().requires_grad_()
        out = model(x, edge_index)
        along = torch.ones_like(out)
        along[7] = math.nan
        found.append(torch.autograd.grad(out, x, along)[0].isfinite())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["GCN", "Graph", "Cheb", "TAG", "APPNP"])
@pytest.mark.parametrize("weight", ["negative", "zero", "nan"])
def test_edge_weights_of_any_sign_give_what_the_original_gives(name, weight):
    (x, edge_index), positive = graph(), torch.rand(E, dtype=torch.float64)
    original, fast = pair(ALL[name]().eval(), (x, edge_index, positive))
    weights = {
        "negative": positive - 0.5,
        "zero": 0 * positive,
        "nan": positive.clone().index_fill_(0, torch.tensor(3), math.nan),
    }
    with torch.no_grad():
        assert_same(fast(x, edge_index, weights[weight]), original(x, edge_index, weights[weight]))


# 8. messages that are linear for small values only

NOT_LINEAR = {
    "clamp": lambda rows: rows.clamp(-10, 10),
    "clamp from above": lambda rows: rows.clamp(max=20),
    "hardtanh": lambda rows: F.hardtanh(rows, -6, 6),
    "where": lambda rows: torch.where(rows.abs() < 50, rows, torch.zeros_like(rows)),
    "nan to num": lambda rows: torch.nan_to_num(rows),
    "masked": lambda rows: rows.masked_fill(rows.isnan(), 0),
    "minimum": lambda rows: torch.minimum(rows, torch.full_like(rows, 15.0)),
    "threshold": lambda rows: F.threshold(rows, -20.0, 0.0),
    "if": lambda rows: rows if rows.abs().max() < 30 else 2 * rows,
    "norm": lambda rows: rows / rows.norm().clamp(max=40.0),
    "indexed": lambda rows: _written(rows),
    "numpy": lambda rows: torch.from_numpy(np.clip(rows.detach().numpy(), -9, 9)) + 0 * rows,
    "data": lambda rows: rows * (rows.data.abs() < 30),
    "rounded to float32": lambda rows: rows.float().double(),
    "to float16": lambda rows: rows.half().double(),
}


def _written(rows):
    rows = rows.clone()
    rows[rows.abs() > 30] = 0
    return rows


@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
@pytest.mark.parametrize("how", NOT_LINEAR)
def test_a_message_that_is_linear_for_small_rows_alone_is_no_sum(how, example):
    x, edge_index = graph()
    original, fast = pair(given(lambda x_j, _: NOT_LINEAR[how](x_j)), (x, edge_index) if example else None)
    missing = x.clone()
    missing[3, 4] = math.nan
    tolerance = 1e-4 if "float" in how else 1e-9
    for rows in (x, 100 * x, missing, 1e5 * x):
        assert_same_call(original, fast, rows, edge_index, tolerance=tolerance)


# 9. weights that are written in ways that torch does not note


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad", "AdamW"])
@pytest.mark.parametrize("kind", ["GCN", "GAT", "Edge", "TAG"])
def test_a_fused_optimizer_trains_the_fast_model_as_the_original(kind, optimizer):
    x, edge_index = graph()
    original, fast = copies(f"two {kind}")
    for model in (original, fast):
        more = {} if optimizer == "SGD" else {"eps": 1e-2}  # no step from the rounding of a gradient that is zero
        stepping = getattr(torch.optim, optimizer)(model.parameters(), 0.01, fused=True, **more)
        for _ in range(3):
            with torch.no_grad():
                model.eval()(x, edge_index)
            model.train()(x, edge_index).square().mean().backward()
            stepping.step()
            stepping.zero_grad()
    assert_same_use(original, fast, lambda model: (model.eval()(x, edge_index), list(model.parameters())), 1e-7)


WRITTEN = {
    "data.mul_": lambda p: p.data.mul_(0.5),
    "data.copy_": lambda p: p.data.copy_(torch.ones_like(p)),
    "data.clamp_": lambda p: p.data.clamp_(-0.01, 0.01),
    "data =": lambda p: setattr(p, "data", 2 * p.data),
    "data.set_": lambda p: p.data.set_(torch.ones_like(p)),
    "copy_": lambda p: torch.no_grad()(p.copy_)(2 * p),
    "init": lambda p: nn.init.ones_(p),
    "numpy": lambda p: np.copyto(p.detach().numpy(), 0.5),
}


@pytest.mark.parametrize("how", WRITTEN)
@every
def test_weights_that_are_written_in_place_are_seen(name, how):
    original, fast = copies(name)
    x, edge_index = graph()
    for model in (original, fast):
        with torch.no_grad():
            model.eval()(x, edge_index)
        for parameter in model.parameters():
            WRITTEN[how](parameter)
    with torch.no_grad():
        assert_same(fast(x, edge_index), original(x, edge_index))


@everything
def test_an_output_that_its_reader_writes_to_spoils_nothing(name):
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    with torch.no_grad():
        fast(x, edge_index).zero_()
        first = fast(x, edge_index)
        kept = first.clone()
        fast(2 * x, edge_index)
        assert torch.equal(first, kept)
        assert_same(first, original(x, edge_index))


# 10. torch.jit


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["GCN", "GAT", "GATv2", "SAGE", "TAG"])
def test_a_traced_model_runs_on_other_graphs(kind):
    (x, edge_index), (x2, edge_index2) = graph(), graph(9)
    original, fast = copies(f"two {kind}", training=False)
    with torch.no_grad():
        if "GAT" in kind:  # the same tensors went through PyG's own code once
            fast.a(x, edge_index, return_attention_weights=True)
        for _ in range(2):
            fast(x, edge_index)
        traced = torch.jit.trace(fast, (x, edge_index), check_trace=False)
        assert_same(traced(x2, edge_index2), original(x2, edge_index2))


@pytest.mark.filterwarnings("ignore")
def test_torch_jit_script_leaves_the_fast_model_as_it_is():
    x, edge_index = graph()
    report = swap(Two(pyg.SAGEConv).double().eval(), (x, edge_index), measure=False)
    before, classes = report.replaced, [type(layer) for layer in report.model.modules()]
    try:
        scripted = torch.jit.script(report.model)
    except Exception:
        scripted = report.model  # the original may not be scripted either
    assert_same(scripted(x, edge_index), report.model(x, edge_index))
    assert report.replaced == before and [type(layer) for layer in report.model.modules()] == classes


# 11. edges, weights and rows that are written or replaced


def _other(edge_index):
    return torch.randint(N, edge_index.shape, generator=torch.Generator().manual_seed(5), dtype=edge_index.dtype)


EDGES_WRITTEN = {
    "copy_": lambda e: e.copy_(_other(e)),
    "one element": lambda e: e.__setitem__((1, 7), (int(e[1, 7]) + 1) % N),
    "row view": lambda e: e[0].copy_(_other(e)[0]),
    "transpose": lambda e: e.t().__setitem__(3, 1),
    "random_": lambda e: e.random_(0, N),
    "out=": lambda e: torch.randint(N, tuple(e.shape), out=e),
    "set_": lambda e: e.set_(_other(e)),
    "data =": lambda e: setattr(e, "data", _other(e)),
    "data.copy_": lambda e: e.data.copy_(_other(e)),
    "detach().copy_": lambda e: e.detach().copy_(_other(e)),
    "numpy view": lambda e: np.copyto(e.numpy(), _other(e).numpy()),
    "resize_": lambda e: e.resize_(2, E // 2),
}


@pytest.mark.parametrize("how", EDGES_WRITTEN)
@every
def test_edges_that_are_written_in_place_are_seen(name, how):
    original, fast = copies(name)
    x, edge_index = graph()
    for model in (original, fast):
        model.eval()
    with torch.no_grad():
        fast(x, edge_index), fast(x, edge_index)
        EDGES_WRITTEN[how](edge_index)
        expected = original(x, edge_index)
        assert_same(fast(x, edge_index), expected)
        assert_same(fast(x, edge_index), expected)


def _broadcast(rank, edges, meet):
    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    torch.distributed.broadcast(edges, 0)
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no collectives")
def test_edges_that_a_collective_wrote_are_seen(tmp_path):
    x, edge_index = graph()
    original, fast = pair(pyg.GCNConv(IN, OUT).eval(), (x, edge_index))
    sender = torch.multiprocessing.get_context("fork").Process(
        target=_broadcast, args=(0, _other(edge_index), tmp_path / "meet")
    )
    with torch.no_grad():
        fast(x, edge_index), fast(x, edge_index)
        sender.start()
        _broadcast(1, edge_index, tmp_path / "meet")
        sender.join(30)
        assert torch.equal(edge_index, _other(edge_index))
        assert_same(fast(x, edge_index), original(x, edge_index))


@pytest.mark.parametrize("how", ["mul_", "data.mul_", "one", "numpy", "data ="])
@pytest.mark.parametrize("name", ["GCN", "Graph", "TAG", "Cheb", "APPNP"])
def test_edge_weights_that_are_written_in_place_are_seen(name, how):
    original, fast = copies(name)
    (x, edge_index), weight = graph(), torch.rand(E, dtype=torch.float64) + 0.1
    write = {
        "mul_": lambda: weight.mul_(0.3),
        "data.mul_": lambda: weight.data.mul_(0.3),
        "one": lambda: weight.__setitem__(4, 9.0),
        "numpy": lambda: np.copyto(weight.numpy(), 0.4),
        "data =": lambda: setattr(weight, "data", weight.data + 0.3),
    }[how]
    with torch.no_grad():
        fast.eval()(x, edge_index, weight), fast(x, edge_index, weight)
        write()
        assert_same(fast(x, edge_index, weight), original.eval()(x, edge_index, weight))


@everything
def test_one_graph_with_more_or_fewer_nodes_is_another_graph(name):
    edge_index = graph()[1]
    original, fast = copies(name, training=False)
    for nodes in (N, N + 9, 3 * N, N):
        assert_same_call(original, fast, graph(2, nodes=nodes)[0], edge_index)


@everything
@pytest.mark.parametrize("where", [N, N + 1000, -1])
def test_an_edge_to_a_node_that_is_not_there_is_refused_as_by_the_original(name, where):
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    fast(x, edge_index)
    wrong = edge_index.clone()
    wrong[0, 5] = where
    edge_index[0, 5] = where
    for edges in (edge_index, wrong):
        assert_same_use(original, fast, lambda model, edges=edges: model(x, edges), may_raise=True)


@everything
def test_graphs_of_all_kinds_give_what_the_original_gives(name):
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    empty = torch.empty(2, 0, dtype=torch.long)
    for rows, edges in [
        (x, empty),
        (x[:1], empty),
        (x[:1], torch.zeros(2, 3, dtype=torch.long)),
        (x, edge_index.t().contiguous().t()),
        (x, torch.cat([edge_index, edge_index], 1)),
        (x, edge_index[:, :3]),
        (x, torch.arange(N).repeat(2, 1)),
        (x.t().contiguous().t(), edge_index),
        (x[:1].expand(N, IN), edge_index),
        (0 * x, edge_index),
        (x[:0], empty),
    ]:
        assert_same_call(original, fast, rows, edges, may_raise=edges.numel() == 0)


@everything
def test_edges_of_32_bits_are_taken(name):
    """Outputs alone: torch's own gradient of `scatter_add` is wrong where the index has 32 bits."""
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    for edges in (edge_index, edge_index.int()):
        assert_same(fast(x, edges), original(x, edge_index))


# 12. what code does beside its output


class LoggedGCN(pyg.GCNConv):
    def __init__(self):
        super().__init__(IN, OUT)
        self.count, self.norms, self.stats = 0, [], {}

    def forward(self, x, edge_index, edge_weight=None):
        self.count += 1
        self.norms.append(float(x.norm()))
        self.stats["nodes"] = x.shape[0]
        return super().forward(x, edge_index, edge_weight)


class LoggedAttention(pyg.GATv2Conv):
    def __init__(self):
        super().__init__(IN, OUT)
        self.seen = []

    def edge_update(self, x_j, x_i, edge_attr, index, ptr, dim_size):
        alpha = super().edge_update(x_j, x_i, edge_attr, index, ptr, dim_size)
        self.seen.append(alpha.detach().clone())
        return alpha


class LoggedMessage(MessagePassing):
    def __init__(self, what):
        super().__init__(aggr="mean")
        self.lin, self.what, self.count, self.seen, self.last = nn.Linear(IN, OUT), what, 0, [], None

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        if self.what in ("count", "count, then relu"):
            self.count += 1
        elif self.what == "energy":
            self.seen.append(float(x_j.detach().pow(2).mean()))
        elif self.what == "rows":
            self.seen.append(x_j.detach())
        elif self.what == "loss":
            self.seen.append(x_j.square().mean())
        elif self.what == "attribute":
            self.last = x_j
        elif self.what == "shape":
            self.seen.append(torch.tensor(x_j.shape))
        return x_j.relu() if "relu" in self.what else x_j


LOGGED = ["count", "count, then relu", "energy", "rows", "loss", "attribute", "shape"]


@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
@pytest.mark.parametrize(
    "make",
    [LoggedGCN, LoggedAttention, *[partial(LoggedMessage, what) for what in LOGGED]],
    ids=["forward", "edge_update", *LOGGED],
)
def test_counters_and_logs_hold_what_the_originals_hold(make, example):
    x, edge_index = graph()
    original, fast = pair(make(), (x, edge_index) if example else None)
    for model in (original, fast):
        for factor in (1, 2, 3):
            model(factor * x, edge_index)

    def left(model):
        numbers = [
            torch.tensor(getattr(model, "count", 0)),
            torch.tensor(getattr(model, "norms", [])),
            model.last if hasattr(model, "last") else None,
        ]
        return [*numbers, [torch.as_tensor(one) for one in getattr(model, "seen", [])]]

    assert_same(left(fast), left(original))
    assert all(type(one) is torch.Tensor for one in tensors(getattr(fast, "seen", [])))


def test_an_auxiliary_loss_kept_by_a_message_trains():
    original, fast = pair(LoggedMessage("loss"), graph())

    def use(model):
        model.seen.clear()
        out = model(*graph())
        return torch.autograd.grad(out.sum() + model.seen[0], model.lin.weight)

    assert_same_use(original, fast, use)
    assert_same_use(original, fast, use)


class Remembers(nn.Module):
    """A model with a memory that each call writes, a counter, statistics and random numbers."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.calls, self.log = pyg.GCNConv(IN, IN), nn.BatchNorm1d(IN), 0, []
        self.register_buffer("memory", torch.zeros(N, IN))

    def forward(self, x, edge_index):
        self.calls += 1
        self.log.append(x.shape[0])
        out = self.norm(self.conv(x + self.memory[: x.shape[0]], edge_index)) + torch.rand(1, dtype=x.dtype)
        self.memory[: x.shape[0]] += out.detach()
        return out


@pytest.mark.parametrize("training", [False, True])
def test_swap_with_an_example_leaves_the_model_and_the_random_generators_as_they_were(training):
    (x, edge_index), model = graph(), Remembers().double().train(training)
    expected, random_state, numpy_state = copy.deepcopy(model), torch.get_rng_state(), np.random.get_state()[1].copy()
    given = x.clone(), edge_index.clone()
    report = swap(model, (x, edge_index), measure=False)
    assert torch.equal(torch.get_rng_state(), random_state) and (np.random.get_state()[1] == numpy_state).all()
    assert torch.equal(x, given[0]) and torch.equal(edge_index, given[1]) and x.grad is None and not x.requires_grad
    for one in (model, report.model):
        assert_same(one.state_dict(), expected.state_dict())
        assert (one.calls, one.log, one.training) == (0, [], training)
        assert all(p.grad is None for p in one.parameters())


def test_statistics_of_an_inner_batch_norm_count_each_call_once():
    net = nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT), nn.ReLU())
    original, fast = pair(pyg.GINConv(net).train())
    for _ in range(3):
        assert_same_call(original, fast, *graph())
    assert_same(fast.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    "make",
    [lambda: pyg.GATConv(IN, OUT, dropout=0.5), lambda: pyg.TransformerConv(IN, OUT, dropout=0.5)],
    ids=["GAT", "Transformer"],
)
def test_dropout_draws_what_the_original_draws(make):
    (x, edge_index), states = graph(), []
    for model in pair(make().train()):
        torch.manual_seed(2)
        states.append((model(x, edge_index), model(x, edge_index), torch.get_rng_state()))
    assert_same(states[1][:2], states[0][:2])
    assert torch.equal(states[1][2], states[0][2])


# 13. layers of two kinds on one graph

ON_ONE_GRAPH = {
    "GATv2": lambda: pyg.GATv2Conv(IN, IN, add_self_loops=False),
    "GAT both": lambda: pyg.GATConv((IN, IN), IN, add_self_loops=False),
    "SAGE both": lambda: pyg.SAGEConv((IN, IN), IN),
    "TAG": lambda: pyg.TAGConv(IN, IN),
    "LG": lambda: pyg.LGConv(),
    "Simple": lambda: pyg.SimpleConv(),
    "ARMA": lambda: pyg.ARMAConv(IN, IN),
    "own": lambda: SquareAttention(),
    "GCN": lambda: pyg.GCNConv(IN, IN),
    "SAGE max": lambda: pyg.SAGEConv(IN, IN, aggr="max"),
    "Edge": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, IN), nn.ReLU())),
}


class SquareAttention(Attention):
    def __init__(self):
        super().__init__()
        self.lin, self.a, self.b = nn.Linear(IN, IN), nn.Parameter(torch.randn(IN)), nn.Parameter(torch.randn(IN))


class OnOneGraph(nn.Module):
    """Calls the layers whose names it is given, one after the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({name: make() for name, make in ON_ONE_GRAPH.items()})

    def forward(self, x, edge_index, names):
        for name in names:
            x = torch.tanh(self.layers[name]((x, x) if "both" in name else x, edge_index))
        return x


def test_layers_of_different_kinds_share_a_graph():
    original, fast = pair(OnOneGraph())
    for seed, names in enumerate(itertools.permutations(ON_ONE_GRAPH, 2)):
        x, edge_index = graph(seed, 80, 300)
        assert_same(fast(x, edge_index, names), original(x, edge_index, names))


# 14. other precisions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@everything
def test_a_model_that_is_cast_after_swap_computes_in_that_precision(name, dtype):
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    fast(x, edge_index)
    assert_same_call(original.to(dtype), fast.to(dtype), x.to(dtype), edge_index, tolerance=0.06)
    assert_same_call(original.double(), fast.double(), x, edge_index)


@every
def test_autocast_first_and_then_not_and_the_other_way_round(name):
    x, edge_index = graph(dtype=torch.float32)
    original, fast = pair(LAYERS[name](), dtype=torch.float32)
    for cast in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            got, expected = fast(x, edge_index), original(x, edge_index)
        assert got.dtype == expected.dtype
        assert_same(got, expected, 0.05 if cast else 1e-5)


@pytest.mark.parametrize("name", ["GCN", "Graph", "TAG"])
def test_edge_weights_of_another_precision_are_promoted_as_by_the_original(name):
    (x, edge_index), weight = graph(), torch.rand(E)
    original, fast = copies(name)
    assert_same_use(original, fast, lambda model: model(x, edge_index, weight), 1e-6)
    assert_same_use(original, fast, lambda model: model(x, edge_index, weight.double()))


# 15. torch.func and checkpoints


def _weights(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def _loss(model, edges):
    return lambda weights, x: functional_call(model, weights, (x, edges)).square().mean()


FUNC = {
    "grad": lambda m, x, e: torch.func.grad(_loss(m, e))(_weights(m), x),
    "grad of x": lambda m, x, e: torch.func.grad(lambda x: m(x, e).square().mean())(x),
    "vjp": lambda m, x, e: torch.func.vjp(lambda x: m(x, e), x)[1](torch.ones(N, 4, dtype=x.dtype)),
    "jvp": lambda m, x, e: torch.func.jvp(lambda x: m(x, e), (x,), (torch.ones_like(x),)),
    "jacrev": lambda m, x, e: torch.func.jacrev(lambda x: m(x, e)[:2].sum(1))(x),
    "jacfwd": lambda m, x, e: torch.func.jacfwd(lambda shift: m(x + shift, e).sum(0))(torch.zeros(IN, dtype=x.dtype)),
    "hessian": lambda m, x, e: torch.func.hessian(lambda s: m(x * s, e).square().sum())(torch.ones(IN, dtype=x.dtype)),
    "vmap": lambda m, x, e: torch.vmap(lambda x: m(x, e))(torch.stack([x, 2 * x])),
    "ensemble": lambda m, x, e: torch.vmap(lambda w: functional_call(m, w, (x, e)))(
        {name: torch.stack([p, 2 * p]) for name, p in _weights(m).items()}
    ),
    "per sample": lambda m, x, e: torch.vmap(torch.func.grad(_loss(m, e)), (None, 0))(
        _weights(m), torch.stack([x, -x])
    ),
    "other weights": lambda m, x, e: functional_call(m, {n: 1.5 * p for n, p in _weights(m).items()}, (x, e)),
    "dual numbers": lambda m, x, e: _dual(m, x, e),
    "dual weights": lambda m, x, e: _dual_weights(m, x, e),
}


def _dual(model, x, edges):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)), edges)))


def _dual_weights(model, x, edges):
    with forward_ad.dual_level():
        weights = {name: forward_ad.make_dual(p, torch.ones_like(p)) for name, p in _weights(model).items()}
        return tuple(forward_ad.unpack_dual(functional_call(model, weights, (x, edges))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", FUNC)
@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GAT", "GIN", "Edge"])
def test_transforms_of_torch_func_give_what_they_give_of_the_original(kind, what):
    x, edge_index = graph()
    original, fast = copies(f"two {kind}", training=False)
    assert_same_use(original, fast, lambda model: FUNC[what](model, x, edge_index))
    assert_same_call(original, fast, x, edge_index)


class Checkpointed(nn.Module):
    def __init__(self, make, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant = make(IN, OUT), make(OUT, 4), reentrant

    def forward(self, x, edge_index):
        hidden = checkpoint(self.a, x, edge_index, use_reentrant=self.reentrant).relu()
        return checkpoint(self.b, hidden, edge_index, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
@kinds
def test_checkpointed_layers_train_from_the_first_call_on(kind, example, reentrant):
    x, edge_index = graph()
    original, fast = pair(Checkpointed(KINDS[kind], reentrant), (x, edge_index) if example else None)
    bags = [(torch.rand(N, IN, generator=torch.Generator().manual_seed(k)) < 0.1).double() for k in range(2)]

    def use(model, rows):
        rows = rows.clone().requires_grad_()
        model.zero_grad()
        out = model.train()(rows, edge_index)
        out.square().mean().backward()
        with torch.no_grad():
            return out, rows.grad, [p.grad for p in model.parameters()], model.eval()(rows, edge_index)

    for rows in (x, *bags):
        assert_same_use(original, fast, partial(use, rows=rows))


def test_a_sequence_of_checkpoints_trains():
    class Sequenced(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(pyg.SAGEConv(IN, IN) for _ in range(3))

        def forward(self, x, edge_index):
            steps = [lambda x, layer=layer: layer(x, edge_index).tanh() for layer in self.layers]
            return checkpoint_sequential(steps, 2, x, use_reentrant=False)

    original, fast = pair(Sequenced())
    for _ in range(2):
        assert_same_call(original, fast, *graph())


# 16. other ways of calling


class OfData(pyg.GCNConv):
    def forward(self, data):
        return super().forward(data["x"], data["edge_index"])


class Renamed(pyg.SAGEConv):
    def forward(self, feats, adj, *, scale=1.0):
        return scale * super().forward(feats, adj)


@pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])
def test_a_subclass_with_a_forward_of_its_own_is_called_as_it_wants_to_be(example):
    x, edge_index = graph()
    data = {"x": x, "edge_index": edge_index}
    original, fast = pair(OfData(IN, OUT), (data,) if example else None)
    assert_same_call(original, fast, data)
    original, fast = pair(Renamed(IN, OUT), {"feats": x, "adj": edge_index} if example else None)
    assert_same_call(original, fast, feats=x, adj=edge_index)
    assert_same_call(original, fast, x, adj=edge_index, scale=3.0)


@pytest.mark.parametrize("kind", ["GCN", "GATv2", "TAG", "Edge"])
def test_threads_may_call_one_model_at_once(kind):
    graphs = [graph(seed, 20 + seed, 90 + seed) for seed in range(6)]
    original, fast = copies(f"two {kind}", training=False)
    with torch.no_grad():
        expected = [original(*given) for given in graphs]
    wrong, interval = [], sys.getswitchinterval()

    def work(start):
        try:
            with torch.no_grad():
                for at in range(start, start + 24):
                    x, edge_index = graphs[at % 6]
                    assert_same(fast(x, edge_index.clone() if at % 2 else edge_index), expected[at % 6])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, wrong[0]


FROM_THREADS = """
import gc, threading, time, torch
from torch_geometric.nn import TAGConv
from gnnswap import swap

x, edge_index = torch.randn(30, 8), torch.randint(0, 30, (2, 90))
fast = swap(TAGConv(8, 4).eval(), (x, edge_index), measure=False).model
gc.callbacks.append(lambda *_: time.sleep(0))  # as any finalizer written in Python, it lets another thread go on
gc.set_threshold(1)

def work():
    with torch.no_grad():
        for _ in range(50):
            fast(x, edge_index.clone())

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_do_not_wait_for_each_other_for_ever_where_garbage_is_collected():
    """torch.get_rng_state by itself does: it waits for the generator with the interpreter's lock in its hands."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FROM_THREADS], timeout=200)
    assert done.returncode == 0


class OwnForces(nn.Module):
    """Gives energy and forces: its forward takes a gradient."""

    def __init__(self, enabled):
        super().__init__()
        self.conv, self.enabled = pyg.GCNConv(IN, OUT), enabled

    def forward(self, x, edge_index):
        with torch.enable_grad() if self.enabled else contextlib.nullcontext():
            x = x.detach().requires_grad_()
            energy = self.conv(x, edge_index).square().sum()
            return energy, torch.autograd.grad(energy, x, create_graph=True)[0]


def test_a_forward_that_takes_gradients_of_its_own_is_swapped():
    original, fast = pair(OwnForces(True), graph())
    assert_same_call(original, fast, *graph())
    with torch.no_grad():
        assert_same(fast(*graph()), original(*graph()))


def test_a_forward_that_takes_gradients_without_enabling_them_works_as_before():
    original, fast = pair(OwnForces(False))
    assert_same_call(original, fast, *graph())


def test_lazy_layers_get_their_shapes_from_the_first_call_or_the_example():
    for example in (None, graph()):
        model = Two(lambda i, o: pyg.SAGEConv(-1, o)).double()
        report = swap(model, example, measure=False)
        got = report.model(*graph())
        original = Two(lambda i, o: pyg.SAGEConv(-1, o)).double()
        original(*graph())
        original.load_state_dict(report.model.state_dict())
        assert_same(got, original(*graph()))
        assert_same(report.model(*graph()), original(*graph()))


# 17. memory


def test_graphs_that_the_user_dropped_are_not_kept_alive():
    models = [
        swap(ALL[name]().double().eval(), measure=False).model for name in ("GCN", "TAG", "ARMA", "LG", "GAT", "own")
    ]
    alive = []
    with torch.no_grad():
        for model, seed in itertools.product(models, range(6)):
            x, edge_index = graph(seed)
            model(x, edge_index), model(x, edge_index)
            alive += [weakref.ref(x), weakref.ref(edge_index)]
    del x, edge_index
    gc.collect()
    assert not [one for one in alive if one() is not None]


def _live_bytes():
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, nn.Parameter) and one.layout is torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.parametrize("kind", ["TAG", "GAT"])
def test_forget_leaves_nothing_of_the_graphs(kind):
    report = swap(LAYERS[kind]().double().eval(), measure=False)
    with torch.no_grad():
        report.model(*graph())
        report.forget()
        before = _live_bytes()
        for seed in range(20):
            report.model(*graph(seed, 500, 4000))
        report.forget()
        assert _live_bytes() < before + 200_000  # a graph of these is 64,000 bytes


# 18. the report and its model


@pytest.mark.parametrize("make", [lambda: Two(), lambda: nn.Sequential(nn.Linear(IN, 4))], ids=["replaced", "nothing"])
def test_the_models_of_a_report_share_weights_and_nothing_else(make):
    model = make()
    classes = [type(module) for module in model.modules()]
    report = swap(model, measure=False)
    assert report.model is not model
    mine, its = list(model.modules()), list(report.model.modules())
    assert not [one for one, other in zip(mine, its, strict=True) if one is other]
    assert all(p is q for p, q in zip(model.parameters(), report.model.parameters(), strict=True))
    assert all(p is q for p, q in zip(model.buffers(), report.model.buffers(), strict=True))
    assert [type(module) for module in model.modules()] == classes
    assert all(isinstance(one, kind) for one, kind in zip(its, classes, strict=True))


def test_an_optimizer_made_before_swap_trains_both_models():
    model, (x, edge_index) = Two().double(), graph()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fast = swap(model, (x, edge_index), measure=False).model
    before = fast(x, edge_index).detach()
    fast(x, edge_index).square().mean().backward()
    optimizer.step()
    assert not torch.allclose(fast(x, edge_index), before)
    assert_same(fast(x, edge_index), model(x, edge_index))


def test_revert_gives_every_layer_its_class_back():
    model, (x, edge_index) = Two().double(), graph()
    report = swap(model, (x, edge_index), measure=False)
    report.model(x, edge_index)
    report.revert()
    assert [type(module) for module in report.model.modules()] == [type(module) for module in model.modules()]
    assert set(vars(report.model.a)) == set(vars(model.a))
    assert_same(report.model(x, edge_index), model(x, edge_index))
