"""What people do with a model: in every use the fast model gives what the original gives.

The right value always comes from the original, a copy with weights of its own that is used in the same way. What is
changed in a model or written to its inputs: test_changes.
"""

import contextlib
import copy
import enum
import gc
import io
import itertools
import math
import subprocess
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import uses
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops
from uses import (
    ALL,
    FEW,
    IN,
    KINDS,
    LAYERS,
    OUT,
    Attention,
    E,
    N,
    Two,
    assert_same,
    assert_same_call,
    assert_same_use,
    copies,
    gradients,
    graph,
    pair,
    tensors,
    trained,
)

from gnnswap import swap

HERE = sys.modules[__name__]
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
examples = pytest.mark.parametrize("example", [False, True], ids=["no example", "example"])


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_these_tests_take_fast_kernels(name):
    """Else nothing here would prove anything."""
    x, edge_index = graph()
    report = swap(ALL[name]().double(), (x, edge_index), measure=False)
    report.model(x, edge_index)
    assert report.replaced, report.kept


# ---- what a message is given and reads beside tensors ----------------------------------------------------------------

GAIN, SETTINGS = 0.5, {"gain": 0.5}


class Kind(enum.Enum):
    PLAIN, DOUBLE = 1, 2


@dataclass
class Options:
    gain: float = 1.0


class Given(MessagePassing):
    """A layer whose message takes one value that is no tensor of edges; `how` is its message."""

    def __init__(self, how):
        super().__init__(aggr="add")
        self.lin, self.how = nn.Linear(IN, OUT), how

    def forward(self, x, edge_index, value=None):
        return self.propagate(edge_index, x=self.lin(x), value=value)

    def message(self, x_j, value):
        return self.how(x_j, value)


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


@examples
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_given_to_the_message_is_seen_in_each_call(kind, example):
    (x, edge_index), (how, values) = graph(), VALUES[kind]
    original, fast = pair(Given(how), (x, edge_index, values[0]) if example else None)
    for value in [*values, values[0]]:
        assert_same_call(original, fast, x, edge_index, value)


class Hops(MessagePassing):
    """The number of the hop, within one call."""

    def forward(self, x, edge_index):
        out = x
        for k in range(3):
            x = self.propagate(edge_index, x=x, k=k)
            out = out + x
        return out

    def message(self, x_j, k):
        return x_j * 0.5**k


class Either(MessagePassing):
    def forward(self, x, edge_index, a=None, b=None):
        return self.propagate(edge_index, x=x, a=a, b=b)

    def message(self, x_j, a, b):
        x_j = x_j if a is None else x_j * a.view(-1, 1)
        return x_j if b is None else x_j / b.view(-1, 1)


def test_a_hop_number_and_a_tensor_by_another_name_mean_another_thing():
    (x, edge_index), weight = graph(), torch.rand(E, dtype=torch.float64) + 0.5
    original, fast = pair(Hops())
    for _ in range(2):
        assert_same_call(original, fast, x, edge_index)
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
    "a schedule": lambda rows, layer: rows if layer.gain < 2 else rows.relu(),
}


def helper(rows):
    return rows


def _multiplied(number, rows):
    return rows * number


class Reads(MessagePassing):
    everyones = 1.0

    def __init__(self, what):
        super().__init__(aggr="add")
        self.what, self.gain, self.gains, self.options, self.act = what, 1.0, [1.0], Options(), nn.Identity()
        self.array, self.partial, self.cell = np.ones(1), partial(_multiplied, 1.0), types.SimpleNamespace(gain=1.0)
        self.closure = lambda rows: self.cell.gain * rows
        self.register_buffer("factor", torch.ones(()))

    @property
    def half(self):
        return 0.5 * self.gain

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return READ[self.what](x_j, self)


@examples
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
        model.partial, model.act, model.array[0] = partial(_multiplied, 3.0), nn.ReLU(), 3.0
        model.closure = lambda rows: 3 * rows
        model.factor.fill_(3.0)
        model.eval()
    assert_same_call(original, fast, x, edge_index)


CALLS = 0


class Helped(MessagePassing):
    def forward(self, x, edge_index):
        global CALLS
        CALLS += 1
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.shape[0])
        return self.propagate(edge_index, x=helper(x))

    def message(self, x_j):
        return x_j


def test_globals_beside_functions_of_pyg_are_those_of_the_users_module(monkeypatch):
    x, edge_index = graph()
    original, fast = pair(Attention(), (x, edge_index))
    monkeypatch.setattr(uses, "TEMPERATURE", 0.05)
    assert_same_call(original, fast, x, edge_index)
    original, fast = pair(Helped(), (x, edge_index))
    monkeypatch.setattr(HERE, "helper", lambda rows: 3 * rows)
    assert_same_call(original, fast, x, edge_index)
    monkeypatch.setattr(HERE, "CALLS", 0)
    for _ in range(3):
        fast(x, edge_index)
    assert CALLS == 3


NOT_LINEAR = {
    "clamp": lambda rows: rows.clamp(-10, 10),
    "where": lambda rows: torch.where(rows.abs() < 50, rows, torch.zeros_like(rows)),
    "nan to num": lambda rows: torch.nan_to_num(rows),
    "if": lambda rows: rows if rows.abs().max() < 30 else 2 * rows,
    "indexed": lambda rows: rows.clone().index_put_((rows.abs() > 30,), rows.new_zeros(())),
    "data": lambda rows: rows * (rows.data.abs() < 30),
    "to float16": lambda rows: rows.half().double(),
}


@pytest.mark.parametrize("how", NOT_LINEAR)
def test_a_message_that_is_linear_for_small_rows_alone_is_no_sum(how):
    x, edge_index = graph()
    original, fast = pair(Given(lambda x_j, _: NOT_LINEAR[how](x_j)), (x, edge_index))
    missing = x.clone()
    missing[3, 4] = math.nan
    for rows in (x, 100 * x, missing, 1e5 * x):
        assert_same_call(original, fast, rows, edge_index, tolerance=1e-4 if "float" in how else 1e-9)


# ---- a use is a function of a model and its inputs: what it gives is compared ----------------------------------------


def forces(model, x, edges, how):
    """The loss is one of gradients."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    (force,) = torch.autograd.grad(model(x, edges).square().sum(), x, create_graph=True)
    penalty, wanted = (force.norm(dim=1) - 1).square().mean(), [*model.parameters(), x]
    if how == "grad":
        return force, torch.autograd.grad(penalty, wanted, allow_unused=True)
    penalty.backward(**({} if how == "backward" else {"inputs": wanted}))
    return force, [t.grad for t in wanted]


def forces_of_a_sum(model, x, edges):
    """Where the layer comes last the gradient that reaches it is a constant."""
    x = x.clone().requires_grad_()
    (force,) = torch.autograd.grad(model(x, edges).sum(), x, create_graph=True)
    return torch.autograd.grad(force.square().sum(), [*model.parameters(), x], allow_unused=True)


def third(model, x, edges):
    x = x.clone().requires_grad_()
    value = torch.tanh(model(x, edges)).square().sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum()
    return gradient


def batched(model, x, edges):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x, edges).sum(1), x, torch.eye(N, dtype=x.dtype)[:3], is_grads_batched=True)


def meta_learning(model, x, edges):
    """The gradient of the loss after one step of training."""
    weights = dict(model.named_parameters())
    loss = functional_call(model, weights, (x, edges)).square().mean()
    steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
    after = {n: p if s is None else p - 0.1 * s for (n, p), s in zip(weights.items(), steps, strict=True)}
    value = functional_call(model, after, (x, edges)).square().mean()
    return torch.autograd.grad(value, list(weights.values()), allow_unused=True)


def _weights(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def _loss(model, edges):
    return lambda weights, x: functional_call(model, weights, (x, edges)).square().mean()


def dual(model, x, edges):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)), edges)))


def dual_weights(model, x, edges):
    with forward_ad.dual_level():
        weights = {name: forward_ad.make_dual(p, torch.ones_like(p)) for name, p in _weights(model).items()}
        return tuple(forward_ad.unpack_dual(functional_call(model, weights, (x, edges))))


def two_backward_passes(model, x, edges):
    x = x.clone().requires_grad_()
    loss = model(x, edges).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return x.grad, [p.grad for p in model.parameters()]


def two_calls_before_one_backward_pass(model, x, edges):
    x, y = x.clone().requires_grad_(), graph(4)[0].requires_grad_()
    out = model(x, edges).square().sum() + model(y, graph(4)[1]).sum() + model(x, graph(4)[1]).sum()
    return gradients(model, out, x, y)


def output_written(model, x, edges, write):
    x = x.clone().requires_grad_()
    return gradients(model, write(model(x, edges)), x)


def output_zeroed(model, x, edges):
    """What a reader does to an output spoils none that comes later."""
    with torch.no_grad():
        model(x, edges).zero_()
        first = model(x, edges)
        model(2 * x, edges)
        return first


def hooks_of_tensors(model, x, edges):
    log, x = [], x.clone().requires_grad_()
    x.register_hook(lambda gradient: 2 * gradient)
    handles = [p.register_hook(lambda gradient: 3 * gradient) for p in model.parameters()]
    handles += [p.register_post_accumulate_grad_hook(lambda p: log.append(p.shape)) for p in model.parameters()]
    out = model(x, edges)
    out.retain_grad()
    out.square().sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad, out.grad, [p.grad for p in model.parameters()], torch.tensor(len(log))


def threads_of_backward(model, x, edges):
    outs = [model(*graph(seed)).square().mean() for seed in range(3)]
    threads = [threading.Thread(target=out.backward) for out in outs]
    for thread in threads:
        thread.start()
        thread.join()
    return [p.grad for p in model.parameters()]


def within(mode):
    """The output and its gradients within a mode of torch."""

    def use(model, x, edges):
        with mode():
            x = x.clone().requires_grad_()
            out = model(x, edges)
            return out, gradients(model, out, x)

    return use


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Marked(torch.Tensor):
    pass


def of_another_class(model, x, edges):
    out = model(x.as_subclass(Marked), edges)
    return torch.tensor(float(type(out) is Marked)), out.as_subclass(torch.Tensor), model(nn.Parameter(x), edges)


def faked(model, x, edges):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shape = model(mode.from_tensor(x), mode.from_tensor(edges)).shape
    return torch.tensor(shape)


def on_meta(model, x, edges):
    return torch.tensor(copy.deepcopy(model).to("meta")(x.to("meta"), edges.to("meta")).shape)


def as_operators(model, x, edges):
    model(x, edges)
    return make_fx(lambda x, edges: model(x, edges))(x, edges)(*graph(9))


def traced(model, x, edges):
    """On another graph than that of the trace; of attention the same tensors went through PyG's own code once."""
    with torch.no_grad():
        if isinstance(model.a, (pyg.GATConv, pyg.GATv2Conv)):
            model.a(x, edges, return_attention_weights=True)
        for _ in range(2):
            model(x, edges)
        return torch.jit.trace(model, (x, edges), check_trace=False)(*graph(9))


def sparse(model, x, edges):
    adjacency = torch.sparse_coo_tensor(edges.flip(0), torch.ones(E, dtype=torch.float64), (N, N)).coalesce()
    return model(x, adjacency), model(x, adjacency.to_sparse_csr())


def bipartite(model, x, edges):
    y, edges = graph(1, nodes=15)[0], torch.stack([edges[0], edges[1] % 15])
    outs = model((x, y), edges), model((x, None), edges, size=(N, 15))
    return outs, [gradients(model, out) for out in outs]


def promoted(model, x, edges):
    """Edge weights of another precision."""
    weight = torch.rand(E)
    return model(x, edges, weight.double()), model(x, edges, weight)


def on_graphs_of_all_kinds(model, x, edges):
    empty = torch.empty(2, 0, dtype=torch.long)
    calls = [
        (x, edges.t().contiguous().t()),
        (x, torch.cat([edges, edges], 1)),
        (x, edges[:, :3]),
        (x, torch.arange(N).repeat(2, 1)),
        (x[:1], torch.zeros(2, 3, dtype=torch.long)),
        (x.t().contiguous().t(), edges),
        (x[:1].expand(N, IN), edges),
        (0 * x, edges),
        (torch.cat([x, x]), edges),  # the same edges of more nodes, and then of fewer
        (x, edges),
        (x, empty),
        (x[:1], empty),
        (x[:0], empty),
    ]
    found = []
    for rows, ends in calls:
        try:
            out = model(rows.requires_grad_() if rows.is_leaf else rows, ends)
            found.append((out, gradients(model, out)))
        except Exception:  # some layers take no graph without edges
            assert ends.numel() == 0
            found.append(None)
    return found


def of_32_bits(model, x, edges):
    """Outputs alone: torch's own gradient of `scatter_add` is wrong where the index has 32 bits."""
    return model(x, edges), model(x, edges.int())


def of_no_node(where):
    """An edge to a node that is not there, in edges that are new, and in edges that were known."""

    def use(model, x, edges):
        model(x, edges)
        wrong = edges.clone()
        wrong[0, 5] = edges[0, 5] = where
        found = []
        for one in (edges, wrong):
            try:
                found.append(model(x, one))
            except Exception:
                found.append(None)
        return found

    return use


func, two = torch.func, [f"two {kind}" for kind in FEW]
SUMS = ["GCN", "SAGE", "GIN", "Graph", "own"]
# name: (layers of `ALL`, or models of two layers; the use)
USES = {
    "forces by grad": (ALL, partial(forces, how="grad")),
    "forces by backward": (ALL, partial(forces, how="backward")),
    "forces by backward(inputs=)": (ALL, partial(forces, how="inputs")),
    "forces of a sum": ([f"two {kind}" for kind in KINDS], forces_of_a_sum),
    "hvp": (
        two,
        lambda m, x, e: torch.autograd.functional.hvp(lambda x: m(x, e).square().sum(), x, torch.ones_like(x)),
    ),
    "jacobian": (
        two,
        lambda m, x, e: torch.autograd.functional.jacobian(lambda x: m(x, e)[:2].sum(1), x, vectorize=True),
    ),
    "batched gradients": (two, batched),
    "third derivatives": (two, third),
    "meta learning": (two, meta_learning),
    "grad of torch.func": (two, lambda m, x, e: func.grad(_loss(m, e))(_weights(m), x)),
    "vjp": (two, lambda m, x, e: func.vjp(lambda x: m(x, e), x)[1](torch.ones(N, 4, dtype=x.dtype))),
    "jvp": (two, lambda m, x, e: func.jvp(lambda x: m(x, e), (x,), (torch.ones_like(x),))),
    "jacrev": (two, lambda m, x, e: func.jacrev(lambda x: m(x, e)[:2].sum(1))(x)),
    "jacfwd": (two, lambda m, x, e: func.jacfwd(lambda s: m(x + s, e).sum(0))(torch.zeros(IN, dtype=x.dtype))),
    "hessian": (two, lambda m, x, e: func.hessian(lambda s: m(x * s, e).square().sum())(torch.ones(IN).to(x))),
    "vmap": (two, lambda m, x, e: torch.vmap(lambda x: m(x, e))(torch.stack([x, 2 * x]))),
    "ensemble": (
        two,
        lambda m, x, e: torch.vmap(lambda w: functional_call(m, w, (x, e)))(
            {name: torch.stack([p, 2 * p]) for name, p in _weights(m).items()}
        ),
    ),
    "per sample": (
        two,
        lambda m, x, e: torch.vmap(func.grad(_loss(m, e)), (None, 0))(_weights(m), torch.stack([x, -x])),
    ),
    "other weights": (
        two,
        lambda m, x, e: functional_call(m, {n: 1.5 * p for n, p in _weights(m).items()}, (x, e)),
    ),
    "dual numbers": (two, dual),
    "dual weights": (two, dual_weights),
    "two backward passes": (ALL, two_backward_passes),
    "two calls before one backward pass": (ALL, two_calls_before_one_backward_pass),
    "an output written by relu_": (ALL, partial(output_written, write=torch.Tensor.relu_)),
    "an output written by dropout": (ALL, partial(output_written, write=partial(F.dropout, p=0.5, inplace=True))),
    "an output written without gradients": (ALL, output_zeroed),
    "hooks of parameters and tensors": ([f"two {kind}" for kind in KINDS], hooks_of_tensors),
    "threads of backward": (["two GAT"], threads_of_backward),
    "save_on_cpu": (FEW, within(torch.autograd.graph.save_on_cpu)),
    "saved_tensors_hooks": (FEW, within(lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t))),
    "anomaly": (FEW, within(torch.autograd.detect_anomaly)),
    "deterministic": (FEW, within(deterministic)),
    "a mode of functions": (FEW, within(Functions)),
    "a mode of operators": (FEW, within(Operators)),
    "tensors of another class": (ALL, of_another_class),
    "fake tensors": (FEW, faked),
    "the meta device": (FEW, on_meta),
    "a graph of operators": (SUMS, as_operators),
    "torch.jit.trace": ([f"two {kind}" for kind in ("GCN", "GAT", "GATv2", "SAGE", "TAG")], traced),
    "sparse adjacencies": ([*SUMS, "GAT"], sparse),
    "a batch of rows": (SUMS, lambda m, x, e: within(contextlib.nullcontext)(m, torch.stack([x, 2 * x, -x]), e)),
    "bipartite graphs": (["SAGE", "Graph", "GIN"], bipartite),
    "edge weights of another precision": (["GCN", "Graph", "TAG"], promoted),
    "graphs of all kinds": (ALL, on_graphs_of_all_kinds),
    "edges of 32 bits": (ALL, of_32_bits),
    "an edge to a node behind the last": (ALL, of_no_node(N)),
    "an edge to a node before the first": (ALL, of_no_node(-1)),
}
MAY_RAISE = {"an output written by relu_", "an output written by dropout", "fake tensors", "the meta device",
             "a graph of operators"}  # fmt: skip


@pytest.mark.parametrize(("use", "name"), [(use, name) for use, (names, _) in USES.items() for name in names])
def test_a_use_gives_what_it_gives_of_the_original(use, name):
    original, fast = copies(name, training="forces" in use or "hooks" in use)
    assert_same_use(original, fast, lambda m: USES[use][1](m, *graph()), may_raise=use in MAY_RAISE)
    assert_same_call(original, fast, *graph())  # and afterwards as before


# ---- exports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GCN", "GAT"])
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


# ---- NaN, infinity, other precisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ALL)
def test_what_is_not_finite_stays_with_the_neighbours_of_its_node(name, value):
    x, edge_index = graph(3)
    original, fast = copies(name, training=False)
    x[edge_index[0, 0]] = value
    with torch.no_grad():
        got, expected = fast(x, edge_index), original(x, edge_index)
    assert 0 < (~expected.isfinite()).any(1).sum() < N
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert_same(torch.where(got.isfinite(), got, 0.0), torch.where(expected.isfinite(), expected, 0.0))


@pytest.mark.parametrize("name", SUMS)
def test_a_gradient_that_is_not_finite_stays_with_the_neighbours_of_its_node(name):
    x0, edge_index = graph(3)
    found = []
    for model in copies(name):
        x = x0.clone().requires_grad_()
        out = model(x, edge_index)
        along = torch.ones_like(out)
        along[7] = math.nan
        found.append(torch.autograd.grad(out, x, along)[0].isfinite())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["GCN", "Graph", "Cheb", "TAG", "APPNP"])
def test_edge_weights_of_any_sign_give_what_the_original_gives(name):
    (x, edge_index), positive = graph(), torch.rand(E, dtype=torch.float64)
    original, fast = pair(ALL[name]().eval(), (x, edge_index, positive))
    missing = positive.clone().index_fill_(0, torch.tensor(3), math.nan)
    for weight in (positive - 0.5, 0 * positive, missing):
        with torch.no_grad():
            assert_same(fast(x, edge_index, weight), original(x, edge_index, weight))


@pytest.mark.parametrize("name", ALL)
def test_a_model_that_is_cast_after_swap_computes_in_that_precision(name):
    x, edge_index = graph()
    original, fast = copies(name, training=False)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        tolerance = 1e-9 if dtype is torch.float64 else 0.06
        original, fast = (copy.deepcopy(one).to(dtype) for one in copies(name, training=False))
        assert_same_call(original, fast, x.to(dtype), edge_index, tolerance=tolerance)
    assert_same_call(original.half().double(), fast.half().double(), x, edge_index)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_first_and_then_not_and_the_other_way_round(name):
    x, edge_index = graph(dtype=torch.float32)
    original, fast = pair(LAYERS[name](), dtype=torch.float32)
    for cast in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            got, expected = fast(x, edge_index), original(x, edge_index)
        assert got.dtype == expected.dtype
        assert_same(got, expected, 0.05 if cast else 1e-5)


# ---- what code does beside its output --------------------------------------------------------------------------------


class LoggedGCN(pyg.GCNConv):
    def __init__(self):
        super().__init__(IN, OUT)
        self.count, self.seen = 0, []

    def forward(self, x, edge_index, edge_weight=None):
        self.count += 1
        self.seen.append(float(x.norm()))
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
    def __init__(self, log):
        super().__init__(aggr="mean")
        self.lin, self.log, self.count, self.seen, self.last = nn.Linear(IN, OUT), log, 0, [], None

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        self.log(self, x_j)
        return x_j


LOGS = {
    "count": lambda one, x_j: setattr(one, "count", one.count + 1),
    "energy": lambda one, x_j: one.seen.append(float(x_j.detach().pow(2).mean())),
    "rows": lambda one, x_j: one.seen.append(x_j.detach()),
    "loss": lambda one, x_j: one.seen.append(x_j.square().mean()),
    "attribute": lambda one, x_j: setattr(one, "last", x_j),
    "shape": lambda one, x_j: one.seen.append(torch.tensor(x_j.shape)),
}


@examples
@pytest.mark.parametrize(
    "make",
    [LoggedGCN, LoggedAttention, *[partial(LoggedMessage, log) for log in LOGS.values()]],
    ids=["forward", "edge_update", *LOGS],
)
def test_counters_and_logs_hold_what_the_originals_hold(make, example):
    x, edge_index = graph()
    original, fast = pair(make(), (x, edge_index) if example else None)
    for model in (original, fast):
        for factor in (1, 2, 3):
            model(factor * x, edge_index)

    def left(model):
        seen = [torch.as_tensor(one) for one in model.seen]
        return torch.tensor(getattr(model, "count", 0)), getattr(model, "last", None), seen

    assert_same(left(fast), left(original))
    assert all(type(one) is torch.Tensor for one in tensors(fast.seen))


def test_an_auxiliary_loss_kept_by_a_message_trains():
    original, fast = pair(LoggedMessage(LOGS["loss"]), graph())

    def use(model):
        model.seen.clear()
        out = model(*graph())
        return torch.autograd.grad(out.sum() + model.seen[0], model.lin.weight)

    for _ in range(2):
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


DROPOUT = {
    "GAT": lambda: pyg.GATConv(IN, OUT, dropout=0.5, residual=True),
    "GATv2": lambda: pyg.GATv2Conv(IN, OUT, dropout=0.5, add_self_loops=False),
    "Transformer": lambda: pyg.TransformerConv(IN, OUT, dropout=0.5),
    "APPNP": lambda: pyg.APPNP(3, 0.1, dropout=0.5, add_self_loops=False),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_draws_what_the_original_draws(name):
    (x, edge_index), states = graph(), []
    for model in pair(DROPOUT[name]().train()):
        torch.manual_seed(2)
        states.append((model(x, edge_index), model(x, edge_index), torch.get_rng_state()))
    assert_same(states[1][:2], states[0][:2])
    assert torch.equal(states[1][2], states[0][2]) and not torch.equal(*states[1][:2])


# ---- several layers, checkpoints, threads, processes -----------------------------------------------------------------

ON_ONE_GRAPH = {
    "GATv2": lambda: pyg.GATv2Conv(IN, IN, add_self_loops=False),
    "GAT both": lambda: pyg.GATConv((IN, IN), IN, add_self_loops=False),
    "SAGE both": lambda: pyg.SAGEConv((IN, IN), IN),
    "TAG": lambda: pyg.TAGConv(IN, IN),
    "LG": lambda: pyg.LGConv(),
    "Simple": lambda: pyg.SimpleConv(),
    "ARMA": lambda: pyg.ARMAConv(IN, IN),
    "own": lambda: Attention(IN),
    "GCN": lambda: pyg.GCNConv(IN, IN),
    "SAGE max": lambda: pyg.SAGEConv(IN, IN, aggr="max"),
    "Edge": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, IN), nn.ReLU())),
}


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


class Checkpointed(nn.Module):
    def __init__(self, make, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant = make(IN, OUT), make(OUT, 4), reentrant

    def forward(self, x, edge_index):
        hidden = checkpoint(self.a, x, edge_index, use_reentrant=self.reentrant).relu()
        return checkpoint(self.b, hidden, edge_index, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
@examples
@pytest.mark.parametrize("kind", FEW)
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


# ---- other ways of calling -------------------------------------------------------------------------------------------


class OfData(pyg.GCNConv):
    def forward(self, data):
        return super().forward(data["x"], data["edge_index"])


class Renamed(pyg.SAGEConv):
    def forward(self, feats, adj, *, scale=1.0):
        return scale * super().forward(feats, adj)


@examples
def test_a_subclass_with_a_forward_of_its_own_is_called_as_it_wants_to_be(example):
    x, edge_index = graph()
    data = {"x": x, "edge_index": edge_index}
    original, fast = pair(OfData(IN, OUT), (data,) if example else None)
    assert_same_call(original, fast, data)
    original, fast = pair(Renamed(IN, OUT), {"feats": x, "adj": edge_index} if example else None)
    assert_same_call(original, fast, feats=x, adj=edge_index)
    assert_same_call(original, fast, x, adj=edge_index, scale=3.0)


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


@pytest.mark.parametrize("enabled", [True, False])
def test_a_forward_that_takes_gradients_of_its_own_works_as_before(enabled):
    original, fast = pair(OwnForces(enabled), graph() if enabled else None)
    assert_same_call(original, fast, *graph())
    if enabled:
        with torch.no_grad():
            assert_same(fast(*graph()), original(*graph()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", LAYERS)
def test_a_call_without_gradients_first_does_not_spoil_training(name, mode):
    original, fast = pair(ALL[name]())
    x, edge_index = graph()
    with mode():
        fast(x, edge_index), fast(x, edge_index)
    assert_same_call(original, fast, x, edge_index)


# ---- memory, copies, the report and its model ------------------------------------------------------------------------


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


@pytest.mark.parametrize("when", ["before the first call", "in training"])
def test_copies_and_pickles_train_on(when):
    original, fast = pair(Two(pyg.GATConv))
    if when == "in training":
        for model in (original, fast):
            trained(model, *graph())
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    for model in (copy.deepcopy(fast), torch.load(buffer, weights_only=False), fast):
        assert_same_use(copy.deepcopy(original), model, lambda model: trained(model, *graph()))


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
