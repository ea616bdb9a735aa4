"""Show which layers of your model have a faster form, and what they bring.

The same as `gnnlab.swap(model, inputs)` in Python: each layer is tried beside its fast form, outputs and all
gradients, and replaced where it is equal and, on these inputs, faster. The report says what was replaced, what was
not and why, and time and memory of a forward pass before and after. It takes seconds; `gnnlab optimize` looks for
more, proves the whole model and writes it.

examples:
  gnnlab swap my_models:make --graph my_graph.npz
  gnnlab swap my_models:make --inputs my_models:molecules --train
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from .arguments import add_model
from .tables import show, warn_if_busy

TRAINING_S = 2.0  # of sampling


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="also measure a forward and backward pass")


def run(arguments: Namespace) -> int:
    """Print the report of `swap`, with `--train` also what a training step gains."""
    from gnnlab.user_code import guarded, require

    if ":" in arguments.model:
        require(arguments.model)
    import torch

    from gnnlab.rewrite.swap import swap
    from gnnlab.workloads import models

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
    from gnnlab.lab.text import estimate_text
    from gnnlab.profiling import estimates
    from gnnlab.profiling.context import ProfilingContext
    from gnnlab.profiling.memory import profile_memory_usage
    from gnnlab.profiling.races import call_of, race_forms

    with ProfilingContext(before, disable_dropout=True), ProfilingContext(after, disable_dropout=True):
        raced = race_forms({"before": before, "after": after}, batch, mode="training", budget_s=TRAINING_S)
        before_ms, after_ms = raced["before"].times_ms, raced["after"].times_ms
        if after_ms is None:
            return f"training: {raced['after'].reason}"
        gain = estimates.ratio(before_ms, after_ms, raced[estimates.CONTROL].times_ms)
        peaks = [
            profile_memory_usage(call_of(form, batch, "training"), device="cpu").rise_mb for form in (before, after)
        ]
    times = [estimates.summary(times).value for times in (before_ms, after_ms)]
    return (
        f"forward and backward: {times[0]:.3g} ms before, {times[1]:.3g} after ({estimate_text(gain)}x); outputs and "
        f"gradients differ by {raced['after'].parity_error:.1e}\nmemory at its peak: {peaks[0]:.1f} MiB before, "
        f"{peaks[1]:.1f} after"
    )
