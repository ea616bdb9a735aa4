"""The names of the profiling framework (S1), as its reader would write them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import gnnlab.profiling as profiling


def test_every_name_of_the_framework_is_there_and_no_other():
    assert all(callable(getattr(profiling, name)) for name in profiling.__all__) and len(profiling.__all__) == 30
    with pytest.raises(AttributeError, match="profile_nothing"):
        _ = profiling.profile_nothing


def test_the_quick_start_of_the_framework_runs():
    from gnnlab.profiling import ProfilingContext, RuntimeProfiler, get_memory_breakdown, profile_forward

    model, batch = nn.Linear(8, 4), torch.randn(16, 8)
    with ProfilingContext(model, disable_dropout=True, eval_mode=True, seed=42):
        assert profile_forward(model, batch, num_runs=5, warmup_runs=1).mean > 0
    results = RuntimeProfiler(model, "cpu", num_runs=3).profile_all(
        batch, optimizer=torch.optim.SGD(model.parameters())
    )
    assert list(results) == ["forward", "backward", "training_step"]
    assert get_memory_breakdown(model, batch, "cpu")["parameters"] == pytest.approx(36 * 4 / 2**20)


def test_what_needs_neither_torch_nor_all_of_scipys_statistics_does_not_load_them():
    code = "import sys, gnnlab.profiling.timing; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
