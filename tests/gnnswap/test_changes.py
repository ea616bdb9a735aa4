"""What is changed in a model or written to its tensors after the first call acts in the next.

Original and fast model are called once, changed alike, and compared over two steps of training.
"""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
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
    Two,
    assert_same,
    assert_same_call,
    assert_same_use,
    copies,
    gradients,
    graph,
    pair,
    trained,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# ---- hooks, wraps and pruning, of a layer and of what is inside of it ------------------------------------------------

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


def _tripled(module, into, out):
    return tuple(None if gradient is None else 3 * gradient for gradient in into)


def _quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


HOOKED = {
    "forward hook": lambda m: m.register_forward_hook(lambda module, given, out: 2 * out),
    "hook before": lambda m: m.register_forward_pre_hook(lambda module, given: (2 * given[0],)),
    "counting hook": lambda m: m.register_forward_hook(_counted),
    "backward hook": lambda m: m.register_full_backward_hook(_tripled),
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


@pytest.mark.parametrize("what", HOOKED | WRAPPED)
def test_what_is_hooked_into_or_wrapped_around_an_inner_module_acts(what):
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
        original, fast = copies(name.partition(".")[0])
        handles = [HOOKED[what](PLACES[name](model)) for model in (original, fast)]
        assert_same_call(original, fast, *graph())
        for handle in handles:
            handle.remove()
        assert_same_call(original, fast, *graph())


@pytest.mark.parametrize("name", LAYERS)
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


LESS = [("CG", "lin_f.bias"), ("CG", "lin_s.bias"), ("ResGated", "lin_key.bias"), ("ResGated", "lin_query.bias")]
MORE_OR_OTHER = [  # a bias where there was none, as one of zeros learns, and shapes that PyG broadcasts
    ("GCN", "lin.bias", OUT),
    ("SAGE", "lin_r.bias", OUT),
    ("SAGE max", "lin_r.bias", OUT),
    ("Graph", "lin_root.bias", OUT),
    ("GAT", "lin.bias", OUT),
    ("GIN", "eps", IN),
    ("GAT", "att_src", (1, 1, 1)),
    ("GATv2", "att", (1, 1, 1)),
    ("SAGE", "lin_r.weight", (1, IN)),
]
# layer, what is set, to what
SET = [
    ("SAGE", "aggr_module", pyg.MaxAggregation),
    ("GIN", "aggr_module", pyg.MaxAggregation),
    ("GCN", "aggr_module", pyg.MeanAggregation),
    ("Graph", "aggr_module", pyg.MeanAggregation),
    ("own", "aggr_module", pyg.MaxAggregation),
    ("SAGE max", "aggr_module", pyg.SumAggregation),
    ("GEN", "aggr_module.t", lambda: 3.0),
    ("GEN", "eps", lambda: 0.5),
    ("ResGated", "act", nn.Tanh),
    ("FiLM", "act", nn.Tanh),
    ("GAT", "negative_slope", lambda: 0.9),
    ("GAT", "concat", lambda: False),
    ("GAT", "add_self_loops", lambda: False),
    ("GATv2", "negative_slope", lambda: 0.9),
    ("GCN", "improved", lambda: True),
    ("GCN", "normalize", lambda: False),
    ("GCN", "flow", lambda: "target_to_source"),
    ("own", "flow", lambda: "target_to_source"),
    ("SAGE", "normalize", lambda: True),
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
    *((name, path, lambda: None) for name, path in LESS),
    *((name, path, lambda size=size: nn.Parameter(torch.ones(size).double())) for name, path, size in MORE_OR_OTHER),
    ("Edge", "nn.1", nn.ReLU),
    ("Edge", "nn", lambda: after_tanh(2 * IN)),
    ("Edge", "nn", lambda: Adapter(nn.Linear(2 * IN, OUT).double())),
    ("GIN", "nn", lambda: after_tanh(IN)),
]
CHANGED = {
    "PNA scaler": ("PNA", lambda m: m.aggr_module.scaler.__setitem__(1, "attenuation")),
    "PNA degrees": ("PNA", lambda m: m.aggr_module.avg_deg_log.fill_(9.0)),
    "SAGE.project": ("SAGE", lambda m: (setattr(m, "project", True), setattr(m, "lin", nn.Linear(IN, IN).double()))),
    "GIN.eps written": ("GIN", lambda m: m.eps.fill_(2.0)),
    "Edge.nn longer by one": ("Edge", lambda m: m.nn.append(nn.ReLU())),
}
ADAPTED = {"Edge": "nn.0", "GIN": "nn.0", "GCN": "lin", "SAGE": "lin_l", "PNA": "pre_nns.0.0", "own": "lin"}


def replaced(model, path, value):
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, value)


def changes():
    yield from CHANGED.values()
    for name, path, value in SET:
        yield name, lambda m, path=path, value=value: replaced(m, path, value())
    for name, path in [*ADAPTED.items(), ("PNA", "post_nns.0.0")]:
        yield name, lambda m, path=path: replaced(m, path, Adapter(m.get_submodule(path)))


IDS = [*CHANGED, *(f"{name}.{path}" for name, path, _ in SET), *(f"{name} adapted" for name in ADAPTED), "PNA.post"]


@pytest.mark.parametrize(("name", "change"), [*changes()], ids=IDS)
def test_what_is_changed_after_the_first_call_is_seen(name, change, request):
    original, fast = copies(name)
    x, edge_index = graph()  # what was prepared for these edges before must not serve afterwards
    fast(x, edge_index)
    for model in (original, fast):
        torch.manual_seed(3)
        change(model)
    may_raise = "explain" in request.node.name or "forward" in request.node.name
    assert_same_call(original, fast, x, edge_index, may_raise=may_raise)
    if list(original.parameters()):
        assert_same_use(original, fast, lambda model: trained(model, *graph()), 1e-8, may_raise)


@pytest.mark.parametrize("value", [torch.tensor(0.0), 0.3, "max"], ids=["tensor", "float", "text"])
def test_a_fill_value_that_is_changed_is_seen(value):
    (x, edge_index), attr = graph(), torch.rand(E, 3, dtype=torch.float64)
    original, fast = pair(pyg.GATConv(IN, OUT, edge_dim=3), (x, edge_index, attr))
    assert_same_call(original, fast, x, edge_index, attr)
    original.fill_value = fast.fill_value = value
    assert_same_call(original, fast, x, edge_index, attr)


@pytest.mark.filterwarnings("ignore")
def test_an_inner_network_that_is_quantized_after_swap_runs_quantized():
    x, edge_index = graph(dtype=torch.float32)
    original, fast = pair(LAYERS["Edge"]().eval(), (x, edge_index), dtype=torch.float32)
    fast(x, edge_index)
    for model in (original, fast):
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)
    assert_same_use(original, fast, lambda model: model(x, edge_index), 1e-5)


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
    pairs = [copies(name) for name in ("SAGE", "Graph", "GCN", "GIN", "Edge", "PNA")]
    monkeypatch.setattr(kind, method, patch)
    for original, fast in pairs:
        assert_same_call(original, fast, *graph())


# ---- weights ---------------------------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("name", LAYERS)
def test_weights_that_are_written_in_place_are_seen(name, how):
    original, fast = copies(name)
    x, edge_index = graph()
    with torch.no_grad():
        for model in (original, fast):
            model.eval()(x, edge_index)
            for parameter in model.parameters():
                WRITTEN[how](parameter)
        assert_same(fast(x, edge_index), original(x, edge_index))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
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


@pytest.mark.parametrize("name", LAYERS)
def test_training_and_frozen_weights_follow_requires_grad(name):
    original, fast = copies(name)
    for wants in (False, True):
        for model in (original, fast):
            model.requires_grad_(wants)
        assert_same_call(original, fast, *graph())
    for model in (original, fast):
        next(model.parameters()).requires_grad_(False)
    assert_same_call(original, fast, *graph())


def test_weights_that_are_tied_after_swap_stay_tied():
    original, fast = pair(Two(lambda i, o: pyg.SAGEConv(i, i) if i == o else pyg.SAGEConv(i, o)), graph())
    for model in (original, fast):
        model.a.lin_r.weight = model.a.lin_l.weight
    assert_same_use(original, fast, lambda model: trained(model, *graph()))


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
@pytest.mark.parametrize("name", [*FEW, "TAG", "own", "attention"])
def test_edges_that_are_written_in_place_are_seen(name, how):
    x, edge_index = graph()
    original, fast = (model.eval() for model in copies(name))
    with torch.no_grad():
        fast(x, edge_index), fast(x, edge_index)
        EDGES_WRITTEN[how](edge_index)
        expected = original(x, edge_index)
        assert_same(fast(x, edge_index), expected)
        assert_same(fast(x, edge_index), expected)


@pytest.mark.parametrize("how", ["mul_", "data.mul_", "one", "numpy", "data ="])
@pytest.mark.parametrize("name", ["GCN", "Graph", "TAG", "APPNP"])
def test_edge_weights_that_are_written_in_place_are_seen(name, how):
    original, fast = (model.eval() for model in copies(name))
    (x, edge_index), weight = graph(), torch.rand(E, dtype=torch.float64) + 0.1
    write = {
        "mul_": lambda: weight.mul_(0.3),
        "data.mul_": lambda: weight.data.mul_(0.3),
        "one": lambda: weight.__setitem__(4, 9.0),
        "numpy": lambda: np.copyto(weight.numpy(), 0.4),
        "data =": lambda: setattr(weight, "data", weight.data + 0.3),
    }[how]
    with torch.no_grad():
        fast(x, edge_index, weight), fast(x, edge_index, weight)
        write()
        assert_same(fast(x, edge_index, weight), original(x, edge_index, weight))


def _broadcast(rank, edges, meet):
    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    torch.distributed.broadcast(edges, 0)
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no collectives")
def test_edges_that_a_collective_wrote_are_seen(tmp_path):
    x, edge_index = graph()
    original, fast = pair(pyg.GCNConv(IN, OUT).eval(), (x, edge_index))
    arguments = 0, _other(edge_index), tmp_path / "meet"
    sender = torch.multiprocessing.get_context("fork").Process(target=_broadcast, args=arguments)
    with torch.no_grad():
        fast(x, edge_index), fast(x, edge_index)
        sender.start()
        _broadcast(1, edge_index, tmp_path / "meet")
        sender.join(30)
        assert torch.equal(edge_index, _other(edge_index))
        assert_same(fast(x, edge_index), original(x, edge_index))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's tracer looks at it
@pytest.mark.parametrize(("name", "path"), [("GCN", "lin.bias"), ("SAGE", "lin_r.bias")])
def test_a_bias_that_comes_after_compiling_is_seen(name, path):
    original, fast = copies(name)
    compiled = torch.compile(fast, backend="eager")
    compiled(*graph())
    for model in (original, fast):
        replaced(model, path, nn.Parameter(torch.ones(OUT, dtype=torch.float64)))
    assert_same(compiled(*graph()), original(*graph()))
