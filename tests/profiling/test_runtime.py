import subprocess
import sys

import pytest
import torch
from torch import nn

from gnnlab import profiling
from gnnlab.errors import GnnlabError
from gnnlab.profiling import runtime
from gnnlab.profiling.runtime import RuntimeProfiler, RuntimeStats, benchmark_function


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


X = torch.ones(4, 3)


def test_statistics_are_those_of_the_samples_and_warm_up_runs_do_not_count():
    stats = RuntimeStats((1.0, 2.0, 3.0, 10.0))
    assert (stats.mean, stats.min, stats.max, stats.num_runs, stats.median) == (4.0, 1.0, 10.0, 4, 2.5)
    assert stats.std == pytest.approx(3.5355, rel=1e-4)
    assert stats.to_dict()["unit"] == "ms" and stats.to_dict()["p90"] is None
    assert "2.5 ms" in str(stats)
    calls = []
    stats = benchmark_function(lambda a, b: calls.append((a, b)), 1, b=2, num_runs=5, warmup_runs=3)
    assert stats.num_runs == 5 and calls == [(1, 2)] * 8


def test_forward_runs_without_gradients_in_the_mode_that_the_model_is_in(model):
    model.train()
    stats = runtime.profile_forward(model, X, num_runs=4, warmup_runs=1)
    assert stats.num_runs == 4 and model.forwards == 5 and not any(model.gradients) and model.training


def test_backward_alone_is_timed_on_a_fresh_graph_each_run(model, monkeypatch):
    timed = []
    real = runtime.timing.sample
    monkeypatch.setattr(
        runtime.timing, "sample", lambda form, **kw: real(lambda loss: (timed.append(model.forwards), form(loss)), **kw)
    )
    runtime.profile_backward(model, X, num_runs=3, warmup_runs=0)
    assert model.backwards == 3 and model.forwards == 3
    assert timed == [1, 2, 3]  # the forward pass was over when the timed part began


def test_profiling_leaves_weights_buffers_and_gradients_as_they_were(model):
    model.linear.weight.grad = torch.full((2, 3), 7.0)
    weights = []

    class Spy(torch.optim.Adam):
        def step(self):
            super().step()
            weights.append(model.linear.weight.detach().clone())

    optimizer = Spy(model.parameters(), lr=0.1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    RuntimeProfiler(model, num_runs=3, warmup_runs=1).profile_all(X, optimizer=optimizer)
    assert len(weights) == 4 and not torch.equal(weights[0], weights[1])  # a step moves them while it is profiled
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if k != "seen")
    assert torch.equal(model.linear.weight.grad, torch.full((2, 3), 7.0)) and model.linear.bias.grad is None
    assert optimizer.state_dict()["state"] == {}


def test_the_encoding_gets_a_fresh_copy_of_the_data_each_run():
    from torch_geometric.data import Data

    data, seen = Data(x=X), []

    def encode(d):
        seen.append("pe" in d)
        d.pe = d.x

    runtime.profile_pe_computation(encode, data, num_runs=3)
    assert seen == [False] * 4 and "pe" not in data


def test_what_cannot_be_timed_is_refused_and_a_model_with_nothing_to_train_has_a_forward_pass_only(model):
    for options in ({"num_runs": 0}, {"warmup_runs": -1}):
        with pytest.raises(GnnlabError, match="at least 1 run"):
            benchmark_function(lambda: None, **options)
    model.requires_grad_(False)
    assert list(RuntimeProfiler(model, num_runs=2, warmup_runs=0).profile_all(X)) == ["forward"]

    class Pair(nn.Linear):
        def forward(self, x):
            return (super().forward(x), 1)

    with pytest.raises(ValueError, match="Pair returns tuple, not a tensor"):
        runtime.profile_backward(Pair(3, 2), X, num_runs=1)


def test_the_names_of_the_framework_load_when_they_are_asked_for():
    assert all(callable(getattr(profiling, name)) for name in profiling.__all__) and len(profiling.__all__) == 30
    with pytest.raises(AttributeError, match="profile_nothing"):
        _ = profiling.profile_nothing
    code = "import sys, gnnlab.profiling.timing; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
