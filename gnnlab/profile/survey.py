"""The same profile of several workloads, to read: what notebooks 01 and 09 show and what `gnnlab profile` prints.

A subject is anything with `label`, `model` and `batch`. Functions take a list of them and give a frame whose columns
are named as the fields of a row of the lab's table: `variant` is the subject's label. Models are in eval mode, without
dropout and under a fixed seed while they are looked at. Threads, precision and the memory allocator are those of the
process: nothing is set here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from torch import nn

from gnnlab.measure.restore import ProfilingContext
from gnnlab.measure.tensors import device_of

from .memory import get_memory_breakdown
from .operators import profile_operators
from .roofline import Ceilings, attention_fused, bound_ms, count, fuses_attention
from .runtime import TIME, RuntimeProfiler, profile_forward

UNFUSED = "forward, attention unfused"
COUNTED = {"origin": "counted", "statistic": "count", "interval": "exact"}
SINGLE = {"origin": "measured", "statistic": "single", "interval": "none"}


class Subject(Protocol):
    label: str
    model: nn.Module
    batch: Any


def times(subjects: Sequence[Subject], *, budget_s: float = 1.0, num_runs: int | None = None) -> pd.DataFrame:
    """Forward pass in inference mode, backward pass and training step, a row each; the key is `phase`.

    Where torch would run attention layers in a fused kernel of their own, the forward pass is timed without it, too: it
    is not always the faster way. `budget_s` bounds the sampling of a row; `num_runs` is a fixed number of samples.
    """
    rows = []
    options = {"num_runs": num_runs, "budget_s": budget_s}
    for subject in subjects:
        with ProfilingContext(subject.model):
            stats_of = RuntimeProfiler(subject.model, **options).profile_all(subject.batch)
            if fuses_attention(subject.model):
                with attention_fused(False):
                    stats_of[UNFUSED] = profile_forward(subject.model, subject.batch, **options)
        for name, stats in stats_of.items():
            row = {"phase": name.replace("_", " "), "variant": subject.label, "samples": stats.samples_ms}
            rows.append(row | {"notes": list(stats.notes), **TIME})
    return pd.DataFrame(rows)


def operators(
    subjects: Sequence[Subject], *, k: int = 5, runs: int = 20, trace_folder: Path | None = None
) -> pd.DataFrame:
    """The k operators with the largest share of the operators' time in each workload; the key is `operator`.

    A sample is the share in one run. Further columns: calls_per_forward, self_ms_per_forward. Traces are written as
    `<label>.json.gz` if a folder is given.
    """
    frames = []
    for subject in subjects:
        name = "".join(c if c.isalnum() else "_" for c in subject.label)
        trace = None if trace_folder is None else Path(trace_folder) / f"{name}.json.gz"
        with ProfilingContext(subject.model):
            profile = profile_operators(subject.model, subject.batch, runs=runs, trace=trace)
        top = profile.top(k).rename(columns={"share": "value", "share_low": "low", "share_high": "high"})
        samples = [profile.shares.loc[operator].to_numpy() for operator in top["operator"]]
        frames.append(top.assign(variant=subject.label, samples=samples))
    fields = {"unit": "share", "better": "neither", "origin": "measured", "statistic": "median"}
    return pd.concat(frames, ignore_index=True).assign(**fields)


def memory(subjects: Sequence[Subject]) -> pd.DataFrame:
    """MiB of each part of a workload; the key is `part`. Counted on a CPU, but for the process's; measured on CUDA."""
    rows = []
    for subject in subjects:
        with ProfilingContext(subject.model):
            parts = get_memory_breakdown(subject.model, subject.batch)
        measured = device_of(subject.model, subject.batch).type != "cpu"
        for part, size in parts.items():
            row = {"part": part.replace("_", " "), "variant": subject.label, "value": float(size), "n": 1}
            row |= {**SINGLE, "notes": list(parts.notes)} if measured or part.startswith("process") else COUNTED
            rows.append({**row, "unit": "MiB", "better": "lower"})
    return pd.DataFrame(rows)


def against_the_roof(subjects: Sequence[Subject], timed: pd.DataFrame, limits: Ceilings) -> pd.DataFrame:
    """The share of this machine's limit that each forward pass reaches, with what it computes and moves.

    `timed` are rows of `times` with value, low and high. What is counted is what is timed: where attention is fused in
    the forward pass, the limit is that of the unfused one, and so is the time. Further columns: phase, gflop, mb (10^6
    bytes moved at least), flops_per_byte, gflop_s, bound_ms, coverage (share of the bytes whose operators are counted).
    """
    rows = []
    for subject in subjects:
        with ProfilingContext(subject.model):
            work = count(subject.model, subject.batch)
        own = timed[timed["variant"] == subject.label].set_index("phase")
        phase = UNFUSED if UNFUSED in own.index else "forward"
        time, bound = own.loc[phase], bound_ms(work, limits)
        row = {"variant": subject.label, "phase": phase, "unit": "share", "better": "higher", "origin": "measured"}
        row |= {"value": bound / time["value"], "low": _over(bound, time["high"]), "high": _over(bound, time["low"])}
        row |= {"statistic": "median", "n": time["n"], "interval": time["interval"], "bound_ms": bound}
        row |= {"gflop": work.flops / 1e9, "mb": work.bytes / 1e6, "gflop_s": work.flops / time["value"] / 1e6}
        rows.append(row | {"flops_per_byte": work.flops / max(work.bytes, 1), "coverage": work.coverage_bytes})
    return pd.DataFrame(rows)


def _over(bound: float, end: float | None) -> float | None:
    return None if end is None or np.isnan(end) else bound / end
