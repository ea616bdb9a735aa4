"""The same profile of several workloads, as rows of the lab's table: what notebook 01 shows side by side.

A subject is anything with `label`, `model` and `batch`. Every function takes a list of them and gives a frame, or an
object that holds frames, whose columns are named as the fields of a row: `form` is the subject's label. Models are in
eval mode, without dropout and under a fixed seed while they are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from torch import nn

from gnnlab.progress import progress

from . import findings as detectors
from .context import ProfilingContext
from .estimates import CONFIDENCE, PREDICTION_95
from .memory import get_memory_breakdown
from .operators import OperatorProfile, profile_operators
from .roofline import Ceilings, attention_fused, bound_ms, count, fuses_attention
from .runtime import RuntimeProfiler, profile_forward, profile_pe_computation
from .scaling import Build, ScalingResult, sweep

PHASES = ("forward", "backward", "training_step")
APART = "forward, attention unfused"
TIME = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median"}


class Subject(Protocol):
    label: str
    model: nn.Module
    batch: Any


def times(subjects: Sequence[Subject], *, budget_s: float = 1.0) -> pd.DataFrame:
    """Forward pass in inference mode, backward pass and training step, a row each; the key is `phase`.

    Where torch would run attention layers in a fused kernel of their own, the forward pass is timed without it, too: it
    is not always the faster way. `budget_s` bounds the sampling of a row.
    """
    rows = []
    for subject in subjects:
        options = {"num_runs": None, "budget_s": budget_s}
        with ProfilingContext(subject.model):
            stats_of = RuntimeProfiler(subject.model, **options).profile_all(subject.batch)
            if fuses_attention(subject.model):
                with attention_fused(False):
                    stats_of[APART] = profile_forward(subject.model, subject.batch, **options)
        for phase in (*PHASES[:1], APART, *PHASES[1:]):
            if phase in stats_of:
                stats = stats_of[phase]
                key = {"phase": phase.replace("_", " "), "form": subject.label}
                rows.append({**key, "samples": stats.samples_ms, "notes": list(stats.notes), **TIME})
    return pd.DataFrame(rows)


def encodings(graphs: Mapping[str, Any], transforms: Mapping[str, Any], *, budget_s: float = 1.0) -> pd.DataFrame:
    """What each positional encoding (`form`) takes on each graph, once a graph; the key is `graph`.

    `budget_s` bounds the sampling of a row. An encoding that alone takes longer is timed once, without an interval.
    """
    rows = []
    for graph, data in graphs.items():
        for form, transform in transforms.items():
            stats = profile_pe_computation(transform, data, num_runs=1)
            if stats.median < 1e3 * budget_s:
                stats = profile_pe_computation(transform, data, num_runs=None, budget_s=budget_s)
            rows.append({"graph": graph, "form": form, "samples": stats.samples_ms, "notes": list(stats.notes), **TIME})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Profiles:
    """The operator profile of each workload, by label."""

    of: Mapping[str, OperatorProfile]

    def operators(self, k: int = 5) -> pd.DataFrame:
        """The k operators with the largest share of the operators' time in each workload; the key is `operator`."""
        fields = {"unit": "share", "better": "neither", "origin": "measured", "statistic": "median"}
        rows = [
            {"operator": name, "form": label, "samples": profile.shares.loc[name].to_numpy(), **fields}
            for label, profile in self.of.items()
            for name in profile.top(k)["operator"]
        ]
        return pd.DataFrame(rows)

    def joint_share(self, label: str, *names: str) -> np.ndarray:
        """Share of the operators' time that these take together in one workload, (runs,)."""
        return self.of[label].shares.reindex(list(names), fill_value=0.0).sum().to_numpy()


def operators(subjects: Sequence[Subject], *, runs: int = 20, trace_folder: Path | None = None) -> Profiles:
    """Profile each workload by operator; traces are written as `<label>.json.gz` if a folder is given."""
    profiles = {}
    for subject in subjects:
        name = "".join(c if c.isalnum() else "_" for c in subject.label)
        trace = None if trace_folder is None else Path(trace_folder) / f"{name}.json.gz"
        with ProfilingContext(subject.model):
            profiles[subject.label] = profile_operators(subject.model, subject.batch, runs=runs, trace=trace)
    return Profiles(profiles)


def memory(subjects: Sequence[Subject]) -> pd.DataFrame:
    """MiB of each part of a workload; the key is `part`. Counted on a CPU, one measurement of the allocator on CUDA."""
    rows = []
    for subject in subjects:
        with ProfilingContext(subject.model):
            parts = get_memory_breakdown(subject.model, subject.batch)
        on_cpu = all(tensor.device.type == "cpu" for tensor in subject.model.parameters())
        how = ("counted", "count", "exact") if on_cpu else ("measured", "single", "none")
        fields = dict(zip(("origin", "statistic", "interval"), how, strict=True))
        for part, size in parts.items():
            key = {"part": part.replace("_", " "), "form": subject.label}
            rows.append({**key, "value": float(size), "n": 1, "unit": "MiB", "better": "lower", **fields})
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
            counted = count(subject.model, subject.batch)
        own = timed[timed["form"] == subject.label].set_index("phase")
        phase = APART if APART in own.index else "forward"
        time, bound = own.loc[phase], bound_ms(counted, limits)
        fields = {"unit": "share", "better": "higher", "origin": "measured", "statistic": "median", "n": time["n"]}
        share = {"value": bound / time["value"], "low": _over(bound, time["high"]), "high": _over(bound, time["low"])}
        work = {"gflop": counted.flops / 1e9, "mb": counted.bytes / 1e6, "bound_ms": bound}
        work |= {"flops_per_byte": counted.flops / max(counted.bytes, 1), "coverage": counted.coverage_bytes}
        work |= {"gflop_s": counted.flops / time["value"] / 1e6, "interval": time["interval"]}
        rows.append({"form": subject.label, "phase": phase, **share, **fields, **work})
    return pd.DataFrame(rows)


def _over(bound: float, end: float | None) -> float | None:
    return None if end is None or np.isnan(end) else bound / end


@dataclass(frozen=True)
class Sweeps:
    """Sweeps of forward passes over the values of parameters, by (workload, parameter), and what was fitted to them."""

    of: Mapping[tuple[str, str], ScalingResult]

    def points(self, *parameters: str) -> pd.DataFrame:
        """Each measured time; the keys are `parameter` and `at`, the value of it."""
        rows = [
            {"parameter": parameter, "at": at, "form": workload, "samples": stats.samples_ms, **TIME}
            for (workload, parameter), result in self.of.items()
            if parameter in parameters
            for at, stats in zip(result.parameter_values, result.runtime_stats, strict=True)
        ]
        return pd.DataFrame(rows)

    def exponents(self) -> pd.DataFrame:
        """The exponent of each fitted power law; the key is `parameter`. n is the number of sizes fitted."""
        rows = []
        fields = {"unit": "exponent", "better": "lower", "origin": "measured", "statistic": "estimate"}
        for (workload, parameter), result in self.of.items():
            if (fit := result.fit) is None:
                continue
            row = {"parameter": parameter, "form": workload, **fields}
            if fit.identified:
                low, high = fit.exponent_ci
                ends = {"low": min(low, fit.exponent), "high": max(high, fit.exponent), "interval": CONFIDENCE}
                sizes = len(result.parameter_values) - (result.prediction is not None)
                rows.append({**row, "value": fit.exponent, "n": sizes, **ends})
            else:
                reason = "these sizes are too few or too noisy to tell the exponent"
                rows.append({**row, "status": "unavailable", "reason": reason})
        return pd.DataFrame(rows)

    def held_out(self) -> pd.DataFrame:
        """The largest size as the others predict it, with a 95 % prediction interval; keys as in `points`."""
        rows = []
        fields = {"unit": "ms", "better": "lower", "origin": "predicted", "statistic": "estimate"}
        for (workload, parameter), result in self.of.items():
            if result.prediction:
                ms, (low, high) = result.prediction
                row = {"parameter": parameter, "at": result.parameter_values[-1], "form": workload, **fields}
                ends = {"value": ms, "low": low, "high": high, "interval": PREDICTION_95, "inside": result.inside}
                rows.append({**row, **ends, "n": len(result.parameter_values) - 1})
        return pd.DataFrame(rows)


def sweeps(plan: Mapping[tuple[str, str], tuple[Sequence[Any], Build]], *, budget_s: float = 0.5) -> Sweeps:
    """Run every sweep of a plan: (workload, parameter) -> (values, builder). `budget_s` bounds each point."""
    found = {}
    with progress("sweeps", len(plan)) as step:
        for (workload, parameter), (values, build) in plan.items():
            found[workload, parameter] = sweep(parameter, values, build, budget_s=budget_s)
            step(f"{workload} over {parameter}")
    return Sweeps(found)


def findings(subjects: Sequence[Subject]) -> pd.DataFrame:
    """What is easily overlooked: workload, kind, where, sentence."""
    rows = [
        {"workload": subject.label, "kind": found.kind, "where": found.where, "sentence": found.sentence}
        for subject in subjects
        for found in detectors.inspect(subject.model, subject.batch)
    ]
    return pd.DataFrame(rows, columns=["workload", "kind", "where", "sentence"])


def deterministic_share(subjects: Sequence[Subject], runs: int = 10) -> float:
    """Share of forward passes, over all subjects, whose output is bit-equal to the first under the same seed."""
    return sum(detectors.deterministic_share(s.model, s.batch, runs=runs) for s in subjects) / len(subjects)
