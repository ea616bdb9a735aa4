import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from gnnlab import profile as profiling
from gnnlab.errors import GnnlabError
from gnnlab.measure import race
from gnnlab.profile import memory, operators, roofline, runtime
from gnnlab.profile.runtime import (
    RuntimeProfiler,
    RuntimeStats,
    benchmark_function,
    profile_backward,
    profile_forward,
    profile_training_step,
)

X = torch.ones(4, 3)


class Counting(nn.Module):
    """Counts its forward passes, and whether gradients were on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.forwards, self.backwards, self.gradients = 0, 0, []

    def forward(self, x):
        self.forwards += 1
        self.gradients.append(torch.is_grad_enabled())
        out = self.linear(x)
        if out.requires_grad:
            out.register_hook(self._count)
        self.seen += 1
        return out

    def _count(self, _):
        self.backwards += 1


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Counting()


def test_statistics_are_those_of_the_samples_and_fewer_than_six_have_no_interval():
    stats = RuntimeStats((1.0, 2.0, 3.0, 10.0))
    assert (stats.mean, stats.min, stats.max, stats.num_runs, stats.median) == (4.0, 1.0, 10.0, 4, 2.5)
    assert stats.std == pytest.approx(3.5355, rel=1e-4)
    assert stats.to_dict()["unit"] == "ms" and stats.to_dict()["p90"] is None and "2.5 ms" in str(stats)
    for runs in (1, 5):
        stats = RuntimeStats((1.0,) * runs)
        assert stats.ci is None and stats.to_dict()["ci"] is None and "no 95 % interval below six runs" in str(stats)
    assert "95 % interval 1 to 1, 6 runs" in str(RuntimeStats((1.0,) * 6))


def test_warm_up_runs_do_not_count_and_what_a_function_and_the_measurement_name_is_given_to_neither():
    calls = []
    stats = benchmark_function(lambda a, b: calls.append((a, b)), 1, b=2, num_runs=5, warmup_runs=3)
    assert stats.num_runs == 5 and calls == [(1, 2)] * 8

    def made(size, device="cpu", num_runs=3):
        calls.append((size, device, num_runs))

    with pytest.raises(GnnlabError, match=r"^device is an option .* functools\.partial\(fn, device=\.\.\.\)$"):
        benchmark_function(made, 4, device="cuda")
    calls.clear()
    benchmark_function(partial(made, device="meta", num_runs=7), 4, device="cpu", num_runs=1, warmup_runs=0)
    benchmark_function(made, 4, warmup_runs=0, setup=None, budget_s=1)  # names that the function does not have
    assert calls == [(4, "meta", 7)] + [(4, "cpu", 3)] * 100
    for options in ({"num_runs": 0}, {"warmup_runs": -1}):
        with pytest.raises(GnnlabError, match="at least 1 run"):
            benchmark_function(lambda: None, **options)


def test_forward_runs_without_gradients_in_the_mode_that_the_model_is_in(model):
    model.train()
    stats = profile_forward(model, X, num_runs=4, warmup_runs=1)
    assert stats.num_runs == 4 and model.forwards == 5 and not any(model.gradients) and model.training


def test_backward_alone_is_timed_on_a_fresh_graph_each_run(model, monkeypatch):
    timed, real = [], runtime.timing.sample
    monkeypatch.setattr(
        runtime.timing,
        "sample",
        lambda variant, **kw: real(lambda loss: (timed.append(model.forwards), variant(loss)), **kw),
    )
    profile_backward(model, X, num_runs=3, warmup_runs=0)
    assert model.backwards == 3 and model.forwards == 3
    assert timed == [1, 2, 3]  # the forward pass was over when the timed part began


def test_the_optimizer_steps_while_it_is_profiled_and_is_put_back(model):
    weights = []

    class Spy(torch.optim.Adam):
        def step(self):
            super().step()
            weights.append(model.linear.weight.detach().clone())

    optimizer = Spy(model.parameters(), lr=0.1)
    before = model.linear.weight.detach().clone()
    RuntimeProfiler(model, num_runs=3, warmup_runs=1).profile_all(X, optimizer=optimizer)
    assert len(weights) == 4 and not torch.equal(weights[0], weights[1])
    assert torch.equal(model.linear.weight, before) and optimizer.state_dict()["state"] == {}


def test_the_encoding_gets_a_fresh_copy_of_the_data_each_run():
    data, seen = Data(x=X), []

    def encode(d):
        seen.append("pe" in d)
        d.pe = d.x

    runtime.profile_pe_computation(encode, data, num_runs=3)
    assert seen == [False] * 4 and "pe" not in data


@pytest.mark.parametrize("profile", [profile_backward, profile_training_step])
def test_what_cannot_be_trained_is_refused_in_one_line_and_has_a_forward_pass_only(profile, model):
    class Pair(nn.Linear):
        def forward(self, x):
            return (super().forward(x), 1)

    for wrong, message in ((nn.ReLU(), "nothing to train"), (lambda x: x, r"needs a torch\.nn\.Module, not function")):
        with pytest.raises(GnnlabError, match=message):
            profile(wrong, X)
    with pytest.raises(ValueError, match="Pair returns tuple, not a tensor"):
        profile(Pair(3, 2), X, num_runs=1)
    model.requires_grad_(False)
    assert list(RuntimeProfiler(model, num_runs=2, warmup_runs=0).profile_all(X)) == ["forward"]


def test_the_names_of_the_framework_load_when_they_are_asked_for():
    assert all(callable(getattr(profiling, name)) for name in profiling.__all__) and len(profiling.__all__) == 31
    with pytest.raises(AttributeError, match="profile_nothing"):
        _ = profiling.profile_nothing
    code = "import sys, gnnlab.measure.timing; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# ---- the model is as before ------------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x))


FEW = {"num_runs": 2, "warmup_runs": 1}
ENTRIES = {
    "profile_forward": lambda model, x: profile_forward(model, x, **FEW),
    "profile_all": lambda model, x: RuntimeProfiler(model, **FEW).profile_all(x),
    "profile_backward": lambda model, x: profile_backward(model, x, **FEW),
    "profile_training_step": lambda model, x: profile_training_step(model, x, **FEW),
    "memory of a forward pass": lambda model, x: memory.MemoryProfiler(model).profile_forward(x),
    "memory": memory.get_memory_breakdown,
    "count": lambda model, x: roofline.count(model, (x,)),
    "operators": lambda model, x: operators.profile_operators(model, (x,), runs=2),
    "race": lambda model, x: race.race_variants({"a": model, "b": lambda x: model(x)}, {"x": x}, budget_s=0.01),
    "training race": lambda model, x: race.race_variants({"a": model}, {"x": x}, mode="training", budget_s=0.01),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_profiled_in_training_is_as_before(name, raises):
    torch.manual_seed(0)
    model, x = Normed().train(), 5 * torch.randn(8, 4) + 3
    model.linear.weight.grad = torch.full((3, 4), 2.0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    if raises:
        model.norm.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises((ZeroDivisionError, GnnlabError)):
            ENTRIES[name](model, x)
    else:
        ENTRIES[name](model, x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training and model.norm.training and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.linear.weight.grad, torch.full((3, 4), 2.0)) and model.linear.bias.grad is None


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch, of a pass without gradients
@pytest.mark.parametrize("checkpointed", [None, False, True])
def test_a_model_with_checkpoints_is_profiled_whole(checkpointed):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            return self.inner(x) if checkpointed is None else checkpoint(self.inner, x, use_reentrant=checkpointed)

    model, x = Deep(), torch.randn(8, 4)
    parts = memory.get_memory_breakdown(model, x)
    assert parts["gradients"] == pytest.approx(parts["parameters"]) and model.first.weight.grad is None
    step = race.call_of(model, (x,), "training")
    first, again = step().gradients, step().gradients
    assert len(first) == 4 and all(torch.equal(first[one], again[one]) for one in first)
    assert all(parameter.grad is None for parameter in model.parameters())
    raced = race.race_variants({"a": model, "b": Deep()}, (x,), mode="training", budget_s=0.02)
    assert raced["b"].reason is None and raced["b"].parity_error == 0
