"""Show which layers of your model have a faster implementation, and what it gains.

The same as `gnnswap.swap(model, inputs)` in Python: each layer is compared with a faster implementation, and replaced
if outputs, first and second gradients match and it is faster on these inputs. The report says what was replaced, what
was kept and why, time and memory of a forward pass before and after, and what the layers keep between calls.

It takes seconds. `gnnlab optimize` looks for more, checks the whole model and writes it. docs/swap.md says in which
calls the original code runs.

examples:
  gnnlab swap my_models:make --graph my_graph.npz
  gnnlab swap my_models:make --graph edges.csv --nodes nodes.csv
  gnnlab swap my_models:make --inputs my_models:molecules --train
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from .terminal import add_model, graph_of, show, warn_if_busy

TRAINING_S = 2.0  # of sampling


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="also measure a forward and backward pass")


def run(arguments: Namespace) -> int:
    """Print the report of `swap`, with `--train` also what a training step gains."""
    import torch

    from gnnlab.user_code import guarded
    from gnnlab.workloads import models
    from gnnswap import swap

    workload = models.build(arguments.model, graph_of(arguments))
    show("\n".join(workload.read))
    warn_if_busy()
    report = swap(workload.model, workload.batch)
    show(f"{workload.label}; threads of torch: {torch.get_num_threads()}\n{report}")
    if arguments.train and report.replaced:
        with guarded(f"{arguments.model}, forward and backward:"):
            show(_training(workload.model, report.model, workload.batch))
    return 0


def _training(before: Any, after: Any, batch: Any) -> str:
    """Time and memory of a forward and backward pass, dropout at 0, and how far the gradients differ."""
    import numpy as np

    from gnnlab.lab.text import error_text, gain_text
    from gnnlab.measure.race import call_of, race_variants
    from gnnlab.measure.restore import ProfilingContext
    from gnnlab.profile.memory import profile_memory_usage

    variants = {"before": before, "after": after}
    with ProfilingContext(before), ProfilingContext(after):
        raced = race_variants(variants, batch, mode="training", budget_s=TRAINING_S)
        if (raced_after := raced["after"]).ratio is None:
            return f"training: {raced_after.reason}"
        held = [
            profile_memory_usage(call_of(variant, batch, "training"), device="cpu").rise_mb
            for variant in variants.values()
        ]
    before_ms, after_ms = (np.median(raced[name].times_ms) for name in variants)
    return (
        f"forward and backward: {before_ms:.3g} ms before, {after_ms:.3g} after, {gain_text(raced_after.ratio)}; "
        f"outputs and gradients: {error_text(raced_after.parity_error)}\n"
        f"memory at its peak: {held[0]:.3g} MiB before, {held[1]:.3g} after"
    )
