"""What is changed in a model or written to its tensors after the first call acts in the next.

Original and fast model are called once, changed alike, and compared.
"""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.nn.dense.linear import Linear as PyGLinear
from uses import (
    ALL,
    FEW,
    IN,
    LAYERS,
    OUT,
    E,
    N,
    assert_same,
    assert_same_call,
    assert_same_use,
    copies,
    gradients,
    graph,
    pair,
    trained,
)

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

# ---- hooks, wraps and pruning, of a layer and of what is inside of it ------------------------------------------------

PLACES = ["GCN.lin", "SAGE.lin_l", "GIN.nn.0", "GIN.nn", "Edge.nn.0", "Edge.nn.1", "Edge.nn", "PNA.pre_nns.0.0",
          "PNA.post_nns.0.0", "PNA.lin", "Transformer.lin_key", "ResGated.lin_key", "FiLM.films.0", "own.lin",
          "both ends.lin"]  # fmt: skip


def inside(model, place):
    return model.get_submodule(place.partition(".")[2])


def _counted(module, *_):
    module.seen = getattr(module, "seen", 0) + 1


def _tripled(module, into, out):
    return tuple(None if gradient is None else 3 * gradient for gradient in into)


HOOKED = {
    "forward hook": lambda m: m.register_forward_hook(lambda module, given, out: 2 * out),
    "hook before": lambda m: m.register_forward_pre_hook(lambda module, given: (2 * given[0],)),
    "counting hook": lambda m: m.register_forward_hook(_counted),
    "backward hook": lambda m: m.register_full_backward_hook(_tripled),
}
WRAPPED = {
    "pruned": lambda m: prune.l1_unstructured(m, "weight", 0.5),
    "weight norm": parametrizations.weight_norm,
    "parametrized": lambda m: parametrize.register_parametrization(m, "weight", nn.Tanh()),
    "frozen": lambda m: m.requires_grad_(False),
    "new weight": lambda m: setattr(m, "weight", nn.Parameter(2 * m.weight.detach())),
    "gradient of the weight hooked": lambda m: m.weight.register_hook(lambda gradient: 2 * gradient),
    "patched forward": lambda m: setattr(m, "forward", lambda x: 2 * type(m).forward(m, x)),
}


@pytest.mark.parametrize("what", HOOKED | WRAPPED)
def test_what_is_hooked_into_or_wrapped_around_an_inner_module_acts(what):
    may_raise = what in ("frozen", "backward hook")  # no weight is left to train; torch refuses it at some places
    for place in PLACES:
        original, fast = copies(place.partition(".")[0])
        if what in WRAPPED and not hasattr(inside(original, place), "weight"):
            continue
        for model in (original, fast):
            torch.manual_seed(3)
            (HOOKED | WRAPPED)[what](inside(model, place))
        assert_same_use(original, fast, lambda model: trained(model, *graph()), 1e-8, may_raise)
        assert getattr(inside(fast, place), "seen", 0) == getattr(inside(original, place), "seen", 0), place


@pytest.mark.parametrize("what", HOOKED)
def test_a_hook_that_is_taken_off_again_no_longer_acts(what):
    for place in ("GCN.lin", "GIN.nn", "Edge.nn.0", "PNA.pre_nns.0.0"):
        original, fast = copies(place.partition(".")[0])
        handles = [HOOKED[what](inside(model, place)) for model in (original, fast)]
        assert_same_call(original, fast, *graph())
        for handle in handles:
            handle.remove()
        assert_same_call(original, fast, *graph())


@pytest.mark.parametrize("name", [*FEW, "TAG", "own"])
def test_hooks_of_the_layer_itself_and_of_all_modules_act(name):
    for what in ("", "message_", "aggregate_", "propagate_"):
        original, fast = copies(name)
        for model in (original, fast):
            getattr(model, f"register_{what}forward_hook")(lambda module, given, out: 2 * out)
        assert_same_call(original, fast, *graph())
    original, fast = copies(name)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 2 * out if isinstance(module, (nn.Linear, PyGLinear)) else None
    )
    try:
        assert_same_call(original, fast, *graph())
    finally:
        hook.remove()
    assert_same_call(original, fast, *graph())


# ---- modules, attributes and methods ---------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A linear layer with a correction of low rank, as LoRA has it."""

    def __init__(self, base):
        super().__init__()
        out, given = base.weight.shape
        self.base, self.down = base, nn.Linear(given, 2, bias=False, dtype=torch.float64)
        self.up = nn.Linear(2, out, bias=False, dtype=torch.float64)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def after_tanh(width):
    return nn.Sequential(nn.Tanh(), nn.Linear(width, OUT).double())


def tripled_sum(inputs, index, ptr=None, dim_size=None):
    return 3 * inputs.new_zeros(dim_size, inputs.shape[1]).index_add(0, index, inputs)


# layer, what is set, to what
SET = [
    ("SAGE", "aggr_module", pyg.MaxAggregation),
    ("GIN", "aggr_module", pyg.MaxAggregation),
    ("GCN", "aggr_module", pyg.MeanAggregation),
    ("Graph", "aggr_module", pyg.MeanAggregation),
    ("own", "aggr_module", pyg.MaxAggregation),
    ("GEN", "aggr_module.t", lambda: 3.0),
    ("GEN", "eps", lambda: 0.5),
    ("ResGated", "act", nn.Tanh),
    ("GAT", "negative_slope", lambda: 0.9),
    ("GAT", "concat", lambda: False),
    ("GAT", "add_self_loops", lambda: False),
    ("GCN", "improved", lambda: True),
    ("GCN", "normalize", lambda: False),
    ("GCN", "flow", lambda: "target_to_source"),
    ("own", "flow", lambda: "target_to_source"),
    ("GIN", "eps", lambda: torch.tensor(2.0, dtype=torch.float64)),
    ("APPNP", "alpha", lambda: 0.7),
    ("APPNP", "K", lambda: 5),
    ("TAG", "normalize", lambda: False),
    ("SAGE", "message", lambda: lambda x_j: x_j.relu()),
    ("own", "message", lambda: lambda x_j: x_j.relu()),
    ("GCN", "update", lambda: lambda inputs: inputs.relu()),
    ("own", "aggregate", lambda: tripled_sum),
    ("GCN", "forward", lambda: lambda x, edge_index: x.relu()),
    ("GCN", "explain", lambda: True),
    ("GCN", "decomposed_layers", lambda: 2),
    ("GCN", "bias", lambda: None),
    ("Edge", "nn.1", nn.ReLU),
    ("Edge", "nn", lambda: after_tanh(2 * IN)),
    ("Edge", "nn", lambda: Adapter(nn.Linear(2 * IN, OUT).double())),
    ("GIN", "nn", lambda: after_tanh(IN)),
]


def replaced(model, path, value):
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, value)


def adapted(path):
    return lambda m: replaced(m, path, Adapter(m.get_submodule(path)))


# name: (layer, change)
CHANGED = {
    "PNA scaler": ("PNA", lambda m: m.aggr_module.scaler.__setitem__(1, "attenuation")),
    "PNA degrees": ("PNA", lambda m: m.aggr_module.avg_deg_log.fill_(9.0)),
    "SAGE.project": ("SAGE", lambda m: (setattr(m, "project", True), setattr(m, "lin", nn.Linear(IN, IN).double()))),
    "GIN.eps written": ("GIN", lambda m: m.eps.fill_(2.0)),
    "Edge.nn longer by one": ("Edge", lambda m: m.nn.append(nn.ReLU())),
    **{
        f"{name}.{path} adapted": (name, adapted(path))
        for name, path in (("Edge", "nn.0"), ("GIN", "nn.0"), ("GCN", "lin"), ("PNA", "pre_nns.0.0"), ("own", "lin"))
    },
    **{
        f"{name}.{path} {at}": (name, lambda m, path=path, value=value: replaced(m, path, value()))
        for at, (name, path, value) in enumerate(SET)
    },
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_is_changed_after_the_first_call_is_seen(what):
    name, change = CHANGED[what]
    original, fast = copies(name)
    x, edge_index = graph()  # what was prepared for these edges before must not serve afterwards
    fast(x, edge_index)
    for model in (original, fast):
        torch.manual_seed(3)
        change(model)
    may_raise = "explain" in what or "forward" in what
    assert_same_call(original, fast, x, edge_index, may_raise=may_raise)
    if list(original.parameters()):
        assert_same_use(original, fast, lambda model: trained(model, *graph()), 1e-8, may_raise)


def test_a_fill_value_that_is_changed_is_seen():
    (x, edge_index), attr = graph(), torch.rand(E, 3, dtype=torch.float64)
    original, fast = pair(pyg.GATConv(IN, OUT, edge_dim=3), (x, edge_index, attr))
    for value in ("mean", torch.tensor(0.0), 0.3, "max"):
        original.fill_value = fast.fill_value = value
        assert_same_call(original, fast, x, edge_index, attr)


@pytest.mark.parametrize(
    ("kind", "method", "patch"),
    [
        (pyg.SAGEConv, "message", lambda self, x_j: x_j.relu()),
        (pyg.GCNConv, "update", lambda self, inputs: 2 * inputs),
        (PyGLinear, "forward", lambda self, x: 2 * F.linear(x, self.weight, self.bias)),
        (nn.Linear, "forward", lambda self, x: 2 * F.linear(x, self.weight, self.bias)),
    ],
    ids=["SAGE.message", "GCN.update", "PyG's Linear", "torch's Linear"],
)
def test_a_method_that_is_patched_in_its_class_runs(kind, method, patch, monkeypatch):
    pairs = [copies(name) for name in ("SAGE", "GCN", "GIN", "Edge", "PNA")]
    monkeypatch.setattr(kind, method, patch)
    for original, fast in pairs:
        assert_same_call(original, fast, *graph())


# ---- weights ---------------------------------------------------------------------------------------------------------

WRITTEN = {
    "data.mul_": lambda p: p.data.mul_(0.5),
    "data =": lambda p: setattr(p, "data", 2 * p.data),
    "copy_": lambda p: torch.no_grad()(p.copy_)(2 * p),
    "numpy": lambda p: np.copyto(p.detach().numpy(), 0.5),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_weights_that_are_written_in_place_are_seen(how):
    for name in LAYERS:
        original, fast = copies(name, training=False)
        x, edge_index = graph()
        with torch.no_grad():
            for model in (original, fast):
                model(x, edge_index)
                for parameter in model.parameters():
                    WRITTEN[how](parameter)
            assert_same(fast(x, edge_index), original(x, edge_index))


@pytest.mark.parametrize("kind", [*FEW, "TAG"])
def test_a_fused_optimizer_trains_the_fast_model_as_the_original(kind):
    x, edge_index = graph()
    original, fast = copies(f"two {kind}")
    for model in (original, fast):  # `eps`: no step from the rounding of a gradient that is zero
        stepping = torch.optim.Adam(model.parameters(), 0.01, fused=True, eps=1e-2)
        for _ in range(3):
            with torch.no_grad():
                model.eval()(x, edge_index)
            model.train()(x, edge_index).square().mean().backward()
            stepping.step()
            stepping.zero_grad()
    assert_same_use(original, fast, lambda model: (model.eval()(x, edge_index), list(model.parameters())), 1e-7)


@pytest.mark.parametrize("name", [*FEW, "GATv2", "own"])
def test_training_and_frozen_weights_follow_requires_grad(name):
    original, fast = copies(name)
    for wants in (False, True):
        for model in (original, fast):
            model.requires_grad_(wants)
        assert_same_call(original, fast, *graph())
    for model in (original, fast):
        next(model.parameters()).requires_grad_(False)
    assert_same_call(original, fast, *graph())


def _written_between(model, what):
    """Gradients of a call whose input, or whose weights, were written before the backward pass; None: torch refuses."""
    x, edge_index = graph()
    out = model(x, edge_index).square().sum()
    with torch.no_grad():
        for tensor in {"x": [x], "weights": list(model.parameters()), "nothing": []}[what]:
            tensor.mul_(2)
    try:
        return gradients(model, out)
    except RuntimeError:
        return None


@pytest.mark.parametrize("name", [name for name in ALL if list(ALL[name]().parameters())])
def test_what_is_written_between_forward_and_backward_gives_no_wrong_gradient(name):
    """Refused, as by torch; or right, as where nothing that was kept for the gradient was written."""
    expected = _written_between(copies(name)[0], "nothing")
    for what in ("x", "weights"):
        original, fast = copies(name)
        got = _written_between(fast, what)
        if got is not None:
            assert_same(got, expected)
        elif what == "x":  # the original refuses it, too
            assert _written_between(original, what) is None


# ---- edges and their weights -----------------------------------------------------------------------------------------


def _other(edge_index):
    return torch.randint(N, edge_index.shape, generator=torch.Generator().manual_seed(5), dtype=edge_index.dtype)


EDGES_WRITTEN = {
    "copy_": lambda e: e.copy_(_other(e)),
    "one element": lambda e: e.__setitem__((1, 7), (int(e[1, 7]) + 1) % N),
    "transpose": lambda e: e.t().__setitem__(3, 1),
    "set_": lambda e: e.set_(_other(e)),
    "data =": lambda e: setattr(e, "data", _other(e)),
    "data.copy_": lambda e: e.data.copy_(_other(e)),  # as collectives write, without another version
    "numpy view": lambda e: np.copyto(e.numpy(), _other(e).numpy()),
    "resize_": lambda e: e.resize_(2, E // 2),
}


@pytest.mark.parametrize("how", EDGES_WRITTEN)
def test_edges_that_are_written_in_place_are_seen(how):
    for name in (*FEW, "TAG", "own", "attention"):
        x, edge_index = graph()
        original, fast = copies(name, training=False)
        with torch.no_grad():
            fast(x, edge_index), fast(x, edge_index)
            EDGES_WRITTEN[how](edge_index)
            expected = original(x, edge_index)
            assert_same(fast(x, edge_index), expected)
            assert_same(fast(x, edge_index), expected)


@pytest.mark.parametrize("name", ["GCN", "Graph", "TAG", "APPNP"])
def test_edge_weights_that_are_written_in_place_are_seen(name):
    original, fast = copies(name, training=False)
    (x, edge_index), weight = graph(), torch.rand(E, dtype=torch.float64) + 0.1
    writes = (
        lambda: weight.mul_(0.3),
        lambda: weight.data.mul_(0.3),
        lambda: weight.__setitem__(4, 9.0),
        lambda: np.copyto(weight.numpy(), 0.4),
        lambda: setattr(weight, "data", weight.data + 0.3),
    )
    with torch.no_grad():
        for write in writes:
            fast(x, edge_index, weight), fast(x, edge_index, weight)
            write()
            assert_same(fast(x, edge_index, weight), original(x, edge_index, weight))


# ---- sequences of changes and calls, drawn at random -----------------------------------------------------------------

CALLS = {
    "plain": lambda m, x, e: m(x, e),
    "no gradients": torch.no_grad()(lambda m, x, e: m(x, e)),
    "inference": torch.inference_mode()(lambda m, x, e: m(x, e)),
    "checkpoint": lambda m, x, e: checkpoint(m, x, e, use_reentrant=False),
    "func.grad": lambda m, x, e: torch.func.grad(lambda x: m(x, e).square().mean())(x),
    "vmap": lambda m, x, e: torch.vmap(lambda x: m(x, e))(torch.stack([x, 2 * x])),
    "autocast": lambda m, x, e: torch.autocast("cpu", torch.bfloat16)(m)(x, e),
}
CHANGES = {
    "mode": lambda m, rng: m.train(rng.random() < 0.5),
    "written": lambda m, rng: [rng.choice(list(WRITTEN.values()))(p) for p in m.parameters()],
    "frozen": lambda m, rng: next(m.parameters()).requires_grad_(rng.random() < 0.5),
    "hook": lambda m, rng: rng.choice(list(HOOKED.values()))(rng.choice(list(m.modules()))),
    "wrapped": lambda m, rng: rng.choice(list(WRAPPED.values()))(rng.choice(list(m.modules()))),
    "set": lambda m, rng: setattr(m, *rng.choice([("flow", "target_to_source"), ("eps", 0.3), ("negative_slope", 0.6),
                                                  ("aggr_module", pyg.MaxAggregation()), ("normalize", False)])),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_after_any_sequence_of_changes_and_calls_the_models_are_equal(seed):
    """A change that the original refuses is refused, too; it may have changed a part of both."""
    rng, (x, edge_index) = random.Random(seed), graph(seed)
    original, fast = copies(rng.choice(list(ALL)), training=rng.random() < 0.5)
    for _ in range(5):
        change, salt = CHANGES[rng.choice(list(CHANGES))], rng.random()
        refused = []
        for model in (original, fast):
            torch.manual_seed(3)
            try:
                change(model, random.Random(salt))
            except Exception as error:
                refused.append(type(error))
        assert len(refused) != 1
        if rng.random() < 0.4:
            rng.choice(list(EDGES_WRITTEN.values()))(edge_index)
        call = rng.choice(list(CALLS))
        tolerance = 0.05 if call == "autocast" else 1e-8

        def use(model, call=CALLS[call]):
            out = call(model, x, edge_index)
            return out, gradients(model, out) if out.requires_grad else None

        assert_same_use(original, fast, use, tolerance, may_raise=True)
        assert_same([*fast.parameters(), *fast.buffers()], [*original.parameters(), *original.buffers()])
        assert getattr(fast, "seen", 0) == getattr(original, "seen", 0)
