"""The output of a model without inputs is kept only while all that it was made from is bit by bit the same."""

import copy
import functools
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, LGConv

from gnnlab.optimize import constant_output, steps
from gnnlab.optimize.constant_output import ChangeDetector

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])


class Recommender(nn.Module):
    """A model that owns its graph: no tensor goes into forward, which calls `note` with its argument."""

    def __init__(self, note):
        super().__init__()
        self.emb, self.conv, self.gat = nn.Embedding(4, 6), LGConv(), GATConv(6, 6)
        nn.init.normal_(self.gat.bias)
        self.register_buffer("edge_index", EDGES.clone())
        self.alpha, self.scales, self.options = 0.5, [1.0, 2.0], {"power": 1}
        self.shift, self.config = torch.ones(6), types.SimpleNamespace(slope=0.1)
        self.act, self.note = functools.partial(nn.functional.leaky_relu, negative_slope=0.2), note

    def forward(self, rows=4):
        self.note(rows)
        x = self.emb.weight + self.alpha * self.conv(self.emb.weight, self.edge_index) * self.scales[0]
        x = self.act(self.gat(x, self.edge_index)) ** self.options["power"] + self.shift * self.config.slope
        return x[:rows]


def recommender(seed=0):
    """A model in eval, and the arguments that it was called with."""
    computed = []
    torch.manual_seed(seed)
    return Recommender(lambda rows: computed.append(rows)).eval(), computed  # a function's closure is not compared


def kept(model):
    return steps.constant_output(model, ())


def equal(got, expected):
    return got.dtype == expected.dtype and np.array_equal(got.detach(), expected, equal_nan=True)


def fused(kind):
    def change(model):
        optimizer = kind(model.parameters(), lr=0.5, fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    return change


def through_numpy(model):
    model.emb.weight.detach().numpy()[1] = 7


def swap_rows(model):  # neither their sum nor any other number of all of them changes
    model.emb.weight.data[:] = model.emb.weight.data[[1, 0, 2, 3]].clone()


CHANGES = {
    "Adam, fused": fused(torch.optim.Adam),
    "SGD, fused": fused(torch.optim.SGD),
    "Adagrad, fused": fused(torch.optim.Adagrad),
    "data.mul_": lambda m: m.emb.weight.data.mul_(0.9),
    "data.copy_": lambda m: m.emb.weight.data.copy_(torch.ones(4, 6)),
    "data.clamp_": lambda m: m.emb.weight.data.clamp_(-0.01, 0.01),
    "one element": lambda m: m.gat.lin.weight.data[3, 5].add_(1),
    "two rows for each other": swap_rows,
    "numpy": through_numpy,
    "data replaced": lambda m: setattr(m.emb.weight, "data", torch.ones(4, 6)),
    "data of other strides": lambda m: setattr(m.emb.weight, "data", m.emb.weight.data.t().contiguous().t() * 2),
    "NaN": lambda m: m.emb.weight.data[0].fill_(torch.nan),
    "loaded": lambda m: m.load_state_dict(recommender(seed=9)[0].state_dict()),
    "loaded and assigned": lambda m: m.load_state_dict(recommender(seed=9)[0].state_dict(), assign=True),
    "a parameter removed": lambda m: setattr(m.gat, "bias", None),
    "a buffer in place": lambda m: m.edge_index.copy_(EDGES.flip(0)),
    "a buffer replaced": lambda m: setattr(m, "edge_index", EDGES.flip(0)),
    "double": lambda m: m.double(),
    "a number": lambda m: setattr(m, "alpha", 2),
    "a number of a layer": lambda m: setattr(m.gat, "negative_slope", 0.9),
    "a list": lambda m: m.scales.__setitem__(0, 3.0),
    "a dict": lambda m: m.options.update(power=2),
    "an attribute of an object": lambda m: setattr(m.config, "slope", 3.0),
    "a plain tensor": lambda m: m.shift.data.fill_(2),
    "an argument of a function": lambda m: m.act.keywords.update(negative_slope=0.7),
    "a function": lambda m: setattr(m, "act", torch.tanh),
    "a module": lambda m: setattr(m, "gat", copy.deepcopy(recommender(seed=9)[0].gat)),
    "a class": lambda m: setattr(m.conv, "__class__", type("Twice", (LGConv,), {"forward": twice})),
    "a method of its own": lambda m: setattr(m.conv, "forward", lambda x, edge_index: x),
    "a hook": lambda m: m.conv.register_forward_hook(lambda module, inputs, output: output * 2),
    "a hook of a message": lambda m: m.conv.register_message_forward_hook(lambda module, inputs, output: output * 2),
    "a parametrization": lambda m: nn.utils.parametrize.register_parametrization(m.emb, "weight", nn.Tanh()),
}


def twice(self, x, edge_index):
    return 2 * x


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_change_the_output_is_that_of_the_changed_model(change):
    (fast, computed), (own, _) = recommender(), recommender()
    fast = kept(fast)
    before = fast()
    assert equal(fast(), before) and computed == [4]
    change(fast), change(own)
    with torch.no_grad():
        expected = own()
    assert equal(fast(), expected) and not equal(expected, before)
    assert equal(fast(), expected)


def test_what_is_unchanged_is_computed_once_for_each_argument():
    fast, computed = recommender()
    fast = kept(fast)
    for rows in (4, 2, 4, 2):
        assert fast(rows).shape == (rows, 6)
    assert fast(rows=2).shape == (2, 6) and computed == [4, 2, 2]


def test_only_the_last_outputs_are_kept(monkeypatch):
    monkeypatch.setattr(constant_output, "MOST_OUTPUTS", 2)
    fast, computed = recommender()
    fast = kept(fast)
    for rows in (1, 2, 3, 3, 2, 1):
        fast(rows)
    assert computed == [1, 2, 3, 1]


def test_weights_that_are_nan_count_as_equal():
    fast, computed = recommender()
    fast.emb.weight.data[0] = torch.nan
    fast = kept(fast)
    assert equal(fast(), fast()) and computed == [4]


def test_an_output_that_its_reader_wrote_to_is_as_it_was():
    fast, _ = recommender()
    fast = kept(fast)
    first = fast().clone()
    fast().zero_()
    with torch.inference_mode():
        fast().zero_()
    assert torch.equal(fast(), first)


@pytest.mark.parametrize("first, second", [(1, True), (1, 1.0), (0.0, -0.0)])
def test_arguments_that_are_equal_but_not_the_same_have_outputs_of_their_own(first, second):
    class Scaled(nn.Module):
        def forward(self, value):
            return torch.full((2,), 1.0) / value if isinstance(value, float) else torch.tensor([value])

    fast = kept(Scaled())
    for value in (first, second):
        assert fast(value).dtype == Scaled()(value).dtype and torch.equal(fast(value), Scaled()(value))


class Odd(nn.Module):
    """Runs `run(self)`; `runs` counts outside of it."""

    def __init__(self, run, **attributes):
        super().__init__()
        self.weight, self.run = nn.Parameter(torch.ones(3)), run
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *given):
        return self.run(self, *given)


def counts(model):
    model.count += 1
    return model.weight * model.count


NOT_KEPT = {
    "a module that draws": Odd(lambda m: m.weight + torch.rand(3)),
    "a module that draws from numpy": Odd(lambda m: m.weight + float(np.random.rand())),
    "a module that counts its calls": Odd(counts, count=0),
    "a generator of its own": Odd(lambda m: m.weight + torch.rand(3, generator=m.draw), draw=torch.Generator()),
    "an array of numpy": Odd(lambda m: m.weight * float(m.array.__iadd__(1)[0]), array=np.ones(1)),
    "a module that writes to its weights": Odd(lambda m: m.weight.detach().add_(1)),
}


@pytest.mark.parametrize("model", NOT_KEPT.values(), ids=NOT_KEPT)
def test_a_module_of_which_no_two_calls_compute_the_same_runs_in_each(model):
    own, fast = copy.deepcopy(model).eval(), kept(copy.deepcopy(model))
    torch.manual_seed(0), np.random.seed(0)
    expected = [own().detach().clone() for _ in range(3)]
    torch.manual_seed(0), np.random.seed(0)
    assert [fast().tolist() for _ in range(3)] == [one.tolist() for one in expected]


@pytest.mark.parametrize("given", [torch.ones(3), [torch.ones(3)], np.ones(3), {"x": 1.0}])
def test_what_a_call_brings_is_used(given):
    fast = kept(Odd(lambda m, value: m.weight * (value["x"] if isinstance(value, dict) else torch.as_tensor(value[0]))))
    first = fast(given)
    twice = {"x": 2.0} if isinstance(given, dict) else [2 * given[0]] if isinstance(given, list) else 2 * given
    assert torch.equal(fast(twice), 2 * first)


def test_autocast_and_tracing_run_the_modules_own_code():
    fast = kept(Odd(lambda m: m.weight[None] @ m.weight[:, None]))
    fast()
    with torch.autocast("cpu", torch.bfloat16):
        assert fast().dtype == torch.bfloat16
    assert torch.export.export(fast, ()).graph_signature.user_outputs[0] not in ("", None)
    doubled = torch.func.functional_call(fast, {"weight": torch.full((3,), 2.0)}, ())
    assert doubled.item() == 12 and fast().item() == 3
    gradient = torch.func.grad(lambda weight: torch.func.functional_call(fast, {"weight": weight}, ()).sum())
    assert gradient(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_parameter_that_is_given_out_is_the_parameter_itself():
    fast = kept(Odd(lambda m: (m.weight, m.weight * 2)))
    assert fast()[0] is fast.weight and fast()[0] is fast.weight


def test_a_model_in_training_runs_its_own_code():
    fast, computed = recommender()
    fast = kept(fast)
    fast(), fast.train()
    assert fast().requires_grad and fast().requires_grad and computed == [4, 4, 4]


def test_a_deep_copy_has_outputs_of_its_own():
    fast, _ = recommender()
    fast = kept(fast)
    first = fast()
    other = copy.deepcopy(fast)
    other.shift += 1
    assert torch.equal(fast(), first) and not torch.equal(other(), first)


def test_threads_get_outputs_between_those_before_and_after_their_call():
    fast, levels, wrong = kept(Odd(lambda m, more: m.weight.expand(500, 3) * 1.0 + more)), [0.0, 0.0], []
    fast.weight.data.zero_()
    stop = threading.Event()

    def read(more):
        while not stop.is_set():
            low = levels[0]
            out = fast(more) - more
            if not (low <= out.min() and out.max() <= levels[1]):
                wrong.append((low, out.min(), out.max(), levels[1]))

    readers = [threading.Thread(target=read, args=(1000 * place,)) for place in range(2)]
    [reader.start() for reader in readers]
    for level in range(1, 150):
        levels[1] = float(level)
        fast.weight.data.fill_(float(level))
        levels[0] = float(level)
        threading.Event().wait(0.001)
    stop.set()
    [reader.join() for reader in readers]
    assert not wrong


INCOMPARABLE = {
    "a Generator": lambda m: setattr(m, "draw", torch.Generator()),
    "a ndarray": lambda m: setattr(m, "array", np.ones(2)),
    "hooks of LGConv": lambda m: m.conv.register_forward_pre_hook(lambda module, inputs: None),
    "sparse": lambda m: setattr(m, "adjacency", torch.eye(3).to_sparse()),
    "complex": lambda m: setattr(m, "phase", torch.ones(2, dtype=torch.complex64)),
}


@pytest.mark.parametrize("what", INCOMPARABLE)
def test_a_detector_says_what_it_cannot_compare(what):
    model, _ = recommender()
    assert ChangeDetector(model).reason == "" and ChangeDetector(model).unchanged()
    INCOMPARABLE[what](model)
    detector = ChangeDetector(model)
    assert what in detector.reason and not detector.unchanged()


@pytest.mark.parametrize("tensor", [torch.ones(4, 8)[:, :3], torch.ones(1).expand(5), torch.ones(0), torch.eye(3).t()])
def test_tensors_of_any_strides_are_compared(tensor):
    model = Odd(None, held=tensor)
    detector = ChangeDetector(model)
    assert detector.unchanged()
    tensor.data[..., -1:] += 1
    assert detector.unchanged() is (tensor.numel() == 0)
    assert ChangeDetector(model).unchanged()


def test_memory_that_was_taken_away_is_a_change():
    model = Odd(None)
    detector = ChangeDetector(model)
    model.weight.untyped_storage().resize_(0)
    assert not detector.unchanged()
