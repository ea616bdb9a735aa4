"""A captured step is the model's own step or says why it is none: by graphs that a test records and repeats on a CPU.

A recorded graph does what a CUDA graph does: the operators that ran once run again, on the same memory.
"""

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.optimize import captured, steps
from gnnlab.optimize.captured import EDGES, MOST, NOT_HERE, NUMBERS, Captured

EDGE_INDEX = torch.tensor([[0, 1, 2, 3, 3, 0], [1, 2, 0, 1, 0, 3]])


class Recorded(TorchDispatchMode):
    """Stands for `torch.cuda.CUDAGraph` and is filled within `record`."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.ran.append((function, args, kwargs or {}, results))
        return results

    def pool(self):
        return None

    def replay(self):
        for function, args, kwargs, before in self.ran:
            again = function(*args, **kwargs)
            for old, new in zip(pytree.tree_leaves(before), pytree.tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)


@contextmanager
def record(graph, pool=None):
    with graph:
        yield


@pytest.fixture
def recorded(monkeypatch):
    """Graphs are those of this module; gives a function that captures a module."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(captured, "_apart", nullcontext)
    monkeypatch.setattr(captured, "_no_waiting", nullcontext)
    monkeypatch.setattr(captured, "require", lambda *_: None)

    def make(model):
        replays = Captured()
        return steps.around(model, replays, training=True), replays

    return make


class OnEdges(nn.Module):
    """A model that holds its edges."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = SAGEConv(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("edge_index", EDGE_INDEX)

    def forward(self, x, scale=1.0):
        hidden = self.norm(self.conv(x, self.edge_index)) * scale
        return {"out": hidden.relu(), "mean": hidden.mean()}


def drawn(seed, nodes=4):
    return torch.randn(nodes, 3, generator=torch.Generator().manual_seed(seed))


def step_of(model, x):
    """Outputs and gradients of a whole step."""
    out = model(x)
    inputs = [x] if x.requires_grad else []
    grads = torch.autograd.grad(out["out"].square().sum() + out["mean"], [*inputs, *model.parameters()])
    return [out["out"].detach(), out["mean"].detach(), *grads]


def test_each_call_has_the_results_of_its_own_inputs_and_keeps_them(recorded):
    plain, (fast, replays) = OnEdges().eval(), recorded(OnEdges().eval())
    with torch.no_grad():
        given = [fast(drawn(seed)) for seed in range(4)]
        for seed, out in enumerate(given):
            torch.testing.assert_close(out, plain(drawn(seed)))
        torch.testing.assert_close(fast(drawn(1), scale=2.0), plain(drawn(1), scale=2.0))  # another graph
    assert not replays.reasons and [type(replay).__name__ for replay in replays._kept.values()] == ["_Replay"] * 2


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("of_input", [False, True])
def test_gradients_are_those_of_the_model_also_after_the_weights_were_updated(recorded, training, of_input):
    plain, (fast, replays) = OnEdges().train(training), recorded(OnEdges().train(training))
    for seed in range(4):
        x = drawn(seed).requires_grad_(of_input)
        expected, got = step_of(plain, x), step_of(fast, x)
        torch.testing.assert_close(got, expected)
        for model, grads in ((plain, expected), (fast, got)):
            for weight, grad in zip(model.parameters(), grads[-len(list(model.parameters())) :], strict=True):
                weight.data.sub_(0.1 * grad)
    torch.testing.assert_close(fast.state_dict(), plain.state_dict())  # statistics of batch norm, too
    assert not replays.reasons and len(replays._kept) == 1


def test_gradients_add_up_over_several_passes(recorded):
    plain, (fast, _) = OnEdges().eval(), recorded(OnEdges().eval())
    for model in (plain, fast):
        for seed in range(3):
            model(drawn(seed))["out"].sum().backward()
    for one, other in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_second_derivative_is_refused(recorded):
    fast, replays = recorded(OnEdges().eval())
    x = drawn(0).requires_grad_()
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(fast(x)["mean"], x, create_graph=True)
    assert not replays.reasons


def test_a_pass_whose_memory_another_one_took_has_no_backward_pass(recorded):
    fast, _ = recorded(OnEdges().eval())
    first = fast(drawn(0))["mean"]
    second = fast(drawn(1))["mean"]
    with pytest.raises(RuntimeError, match="holds one pass at a time"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="holds one pass at a time"):
        second.backward()


def test_a_capture_leaves_the_model_and_the_random_numbers_as_they_were(recorded):
    model, before = OnEdges().train(), copy.deepcopy(OnEdges().state_dict())
    (fast, replays), state = recorded(model), torch.get_rng_state()
    leaves, tree = pytree.tree_flatten(((drawn(0),), {}))
    weights = [*model.parameters(), *model.buffers()]
    assert replays._capture(fast, super(type(fast), fast).forward, leaves, tree, weights) is not None
    torch.testing.assert_close(fast.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in fast.parameters())


def test_what_stays_of_the_first_inputs_is_seen_and_the_model_runs_uncaptured(recorded):
    class Keeps(nn.Module):
        def forward(self, x):
            self.first = getattr(self, "first", x.clone())  # as a cached norm of edge weights
            return x + self.first.sum()

    fast, replays = recorded(Keeps().eval())
    with torch.no_grad():
        fast(drawn(0))
    assert not replays.reasons  # the model itself keeps it, which is no fault of the capture

    class Prepared(nn.Module):
        def forward(self, x):
            known = self.__dict__.setdefault("known", {})
            if (key := (x.data_ptr(), tuple(x.flatten().tolist()))) not in known:  # by contents, as a cache has it
                known[key] = x.detach().square()
            return x + known[key]

    plain, (fast, replays) = Prepared().eval(), recorded(Prepared().eval())
    with torch.no_grad():
        got = fast(drawn(1))
        assert len(replays.reasons) == 1 and "it keeps the first ones" in replays.reasons[0]
        torch.testing.assert_close([got, fast(drawn(2))], [plain(drawn(1)), plain(drawn(2))])
    assert len(replays.reasons) == 1  # it is tried once


def test_other_shapes_copies_and_other_weights_have_graphs_of_their_own_up_to_a_bound(recorded):
    fast, replays = recorded(nn.Linear(3, 2).eval())
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.bias.add_(1)
        fast(drawn(0)), other(drawn(0))
        torch.testing.assert_close(other(drawn(1)), fast(drawn(1)) + 1)
        fast.bias = nn.Parameter(torch.zeros(2))
        torch.testing.assert_close(fast(drawn(1)), drawn(1) @ fast.weight.T)
        for nodes in range(1, 2 * MOST):
            torch.testing.assert_close(fast(drawn(1, nodes)), drawn(1, nodes) @ fast.weight.T)
    assert len(replays._kept) == MOST


def test_edges_and_traced_calls_go_to_the_model_itself(recorded):
    fast, replays = recorded(SAGEConv(3, 2).eval())
    with torch.no_grad():
        fast(drawn(0), EDGE_INDEX)
        assert torch.jit.trace(fast, (drawn(0), EDGE_INDEX))(drawn(1), EDGE_INDEX).shape == (4, 2)
    assert not replays._kept


def test_a_model_that_waits_for_the_device_is_named_with_the_place(recorded, monkeypatch):
    watched = []

    @contextmanager
    def no_waiting():
        watched.append(True)
        yield
        watched.clear()

    class Asks(nn.Module):
        def forward(self, x):
            if watched:
                watched.clear()
                raise RuntimeError("called a synchronizing CUDA operation")
            return x * 2

    monkeypatch.setattr(captured, "_no_waiting", no_waiting)
    fast, replays = recorded(Asks().eval())
    with torch.no_grad():
        torch.testing.assert_close(fast(drawn(0)), 2 * drawn(0))
    (why,) = replays.reasons
    assert why.startswith("it asks the device for a value in each call, and waits for it: test_captured.py, line ")
    assert "raise RuntimeError" in why


def test_the_first_error_of_a_capture_is_its_reason():
    try:
        try:
            raise ValueError("the true one")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert captured._reason(error) == "ValueError: the true one"


def test_what_a_graph_reads_lives_as_long_as_it(monkeypatch):
    held, part = torch.ones(2), torch.zeros(3)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    model = nn.Linear(1, 1)
    model.cache = {"graph": [Data(x=held)]}
    found = captured._held_by(lambda: (model, part))
    assert {id(held), id(part), id(model.weight)} <= {id(tensor) for tensor in found}


# ---- where it is offered --------------------------------------------------------------------------------------------


def test_on_a_cpu_it_is_not_here():
    model, batch = nn.Linear(3, 2).eval(), {"input": drawn(0)}
    assert steps.applies_to(steps.CAPTURED, model, batch) == (False, NOT_HERE)
    with pytest.raises(Unavailable, match="CUDA graphs need a CUDA device"):
        steps.captured(model, batch)
    with pytest.raises(Unavailable, match="CUDA graphs need a CUDA device"):
        captured.training_step(model, None, None, (drawn(0),))


def test_it_is_offered_on_cuda_where_the_edges_are_the_models_own():
    model = nn.Identity()  # whatever it computes: what goes in decides
    with FakeTensorMode():
        x, mask = torch.ones(4, 3, device="cuda"), torch.ones(4, dtype=torch.bool, device="cuda")
        edge_index = torch.zeros(2, 6, dtype=torch.int64, device="cuda")
        batches = {"x": (x,), "edges": (x, edge_index), "data": Data(x=x, edge_index=edge_index)}
        batches |= {
            "ids": {"n_id": torch.zeros(6, dtype=torch.int64, device="cuda")},
            "mask": (x, mask),
            "text": (x, "mean", None, 2),
        }
        looked = {name: steps.applies_to(steps.CAPTURED, model, batch) for name, batch in batches.items()}
        threads = steps.applies_to("1 thread", model, (x,)), steps.applies_to("mallopt", model, (x,))
    assert looked["x"][0] and looked["text"][0]
    assert looked["edges"] == looked["data"] == (False, EDGES)
    assert looked["ids"] == looked["mask"] == (False, NUMBERS)
    assert threads == ((False, "it computes on cuda, not on the CPU"),) * 2
    with FakeTensorMode(), pytest.raises(GnnlabError, match="a set goes in"):
        captured.require(model, ({1}, torch.ones(1, device="cuda")))


def test_it_goes_with_fast_layers_and_inference_and_before_what_changes_results():
    tried = steps.tried(True)
    assert tried.index(steps.CAPTURED) < tried.index("torch.compile")
    assert steps.compatible(steps.FAST_LAYERS, steps.CAPTURED) and steps.compatible("inference mode", steps.CAPTURED)
    assert not any(steps.compatible(steps.CAPTURED, name) for name in ("torch.compile", "constant output", "bfloat16"))
    assert steps.in_order([steps.CAPTURED, "inference mode", steps.FAST_LAYERS])[-1] == steps.CAPTURED
