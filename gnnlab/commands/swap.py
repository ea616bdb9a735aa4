"""`gnnlab swap`: the faster layers of a model of one's own, and what they bring, without a search."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from gnnlab.lab.table import estimate_text
from gnnlab.profiling import estimates
from gnnlab.profiling.context import ProfilingContext
from gnnlab.profiling.estimates import CONTROL
from gnnlab.profiling.memory import profile_memory_usage
from gnnlab.profiling.races import call_of, race_forms
from gnnlab.rewrite.swap import swap
from gnnlab.user_code import guarded
from gnnlab.workloads import models

from .tables import warn_if_busy

TRAINING_S = 2.0  # of sampling


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Print the report of `swap`, with `--train` also what a training step gains."""
    workload = models.build(arguments.model, arguments.graph)
    warn_if_busy()
    report = swap(workload.model, workload.batch)
    show(f"{workload.label}; threads of torch: {torch.get_num_threads()}\n{report}")
    if arguments.train and report.replaced:
        with guarded(f"{arguments.model}, forward and backward:"):
            show(_training(workload.model, report.model, workload.batch))
    return 0


def _training(before: Any, after: Any, batch: Any) -> str:
    """Time and memory of a forward and backward pass, dropout at 0, and how far the gradients differ."""
    with ProfilingContext(before, disable_dropout=True), ProfilingContext(after, disable_dropout=True):
        raced = race_forms({"before": before, "after": after}, batch, mode="training", budget_s=TRAINING_S)
        before_ms, after_ms = raced["before"].times_ms, raced["after"].times_ms
        if after_ms is None:
            return f"training: {raced['after'].reason}"
        gain = estimates.ratio(before_ms, after_ms, raced[CONTROL].times_ms)
        peaks = [
            profile_memory_usage(call_of(form, batch, "training"), device="cpu").rise_mb for form in (before, after)
        ]
    times = [estimates.summary(times).value for times in (before_ms, after_ms)]
    return (
        f"forward and backward: {times[0]:.3g} ms before, {times[1]:.3g} after ({estimate_text(gain)}x); outputs and "
        f"gradients differ by {raced['after'].parity_error:.1e}\nmemory at its peak: {peaks[0]:.1f} MiB before, "
        f"{peaks[1]:.1f} after"
    )
