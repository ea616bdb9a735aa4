"""Where the time goes: torch.profiler to a table of operators, with intervals.

    profile = profile_operators(model, batch, runs=20, trace=Path("trace.json.gz"))
    profile.top(3)          # the three operators with the largest share of the time, each with its 95 % interval
    # the trace opens in https://ui.perfetto.dev

Profiling slows down what it looks at, small operators most: read shares here, and times from `timing`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType, ProfilerActivity, record_function

from gnnlab.errors import GnnlabError, whole_numbers

from .context import call
from .dispatch import device_of
from .estimates import median_interval
from .memory import quiet_profiler

_RUN = "gnnlab.run"
_WARM_UP = 3
_TRACED = 2  # runs in a trace
_TRACE_ENDINGS = (".json", ".json.gz")


@dataclass(frozen=True)
class OperatorProfile:
    """What ran, by operator; times in ms a run, on the CPU or on the CUDA device.

    Times and shares are medians over the runs, so that one stall of the machine does not make a bottleneck; shares
    need not add up to 1 exactly.

    `frame`: operator, calls (in all runs), calls_per_forward, self_ms_per_forward, share (of the time of all
    operators), share_low, share_high (its 95 % interval), the largest share first.
    """

    frame: pd.DataFrame
    runs: int
    device: str
    trace: Path | None = None
    shares: pd.DataFrame | None = field(default=None, repr=False)  # operator x run: share of that run

    def calls(self, *operators: str) -> dict[str, float]:
        """Calls of each of these operators in one forward pass; 0 where there is none."""
        per_forward = self.frame.set_index("operator")["calls_per_forward"]
        return {name: float(per_forward.get(name, 0.0)) for name in operators}

    def joint_share(self, *operators: str) -> np.ndarray:
        """Share of the operators' time that these take together, (runs,)."""
        return self.shares.reindex(list(operators), fill_value=0.0).sum().to_numpy()

    def top(self, k: int = 10) -> pd.DataFrame:
        """The k operators with the largest share."""
        return self.frame.head(k)


def profile_operators(
    work: nn.Module | Callable[..., Any],
    batch: Any = (),
    *,
    runs: int = 20,
    trace: Path | str | None = None,
) -> OperatorProfile:
    """Profile `work`, called with `batch` (see `context.call`) `runs` times after a warm-up.

    A module is called without gradients, in the mode that it is in; a function as it is. `trace` (.json or .json.gz,
    written whole or not at all) holds two further runs, with operators, the shapes of inputs and each allocation of
    memory, as S0 asks for; recording these takes time, so they are in no other number.

    Raises:
        GnnlabError: fewer than 2 runs (no interval from one), or a trace of another kind.
    """
    whole_numbers(2, runs=runs)
    target = None if trace is None else Path(trace)
    if target is not None and not target.name.endswith(_TRACE_ENDINGS):
        raise GnnlabError(f"a trace ends in .json or .json.gz, not in {target.name!r}")
    device = device_of(work, batch) if isinstance(work, nn.Module) else device_of(batch)
    with torch.no_grad() if isinstance(work, nn.Module) else nullcontext():
        for _ in range(_WARM_UP):
            call(work, batch)
        record = _record(work, batch, runs, device)
        frame, shares = _operator_table(_by_run(record), device)
        if target is not None:
            _write_trace(_record(work, batch, _TRACED, device, record_shapes=True, profile_memory=True), target)
    return OperatorProfile(frame, runs, str(device), target, shares)


def _record(
    work: Callable[..., Any], batch: Any, runs: int, device: torch.device, **details: bool
) -> torch.profiler.profile:
    """`runs` runs and one before them, in which the profiler warms up; `details` as torch's profiler has them."""
    quiet_profiler()
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities, **details) as record:
        for _ in range(runs + 1):
            with record_function(_RUN):
                call(work, batch)
                if cuda:
                    torch.cuda.synchronize(device)
    return record


def _by_run(record: torch.profiler.profile) -> list[list[FunctionEvent]]:
    """For each run but the first the CPU events that began inside it."""
    events = [event for event in record.events() if event.device_type == DeviceType.CPU]
    own = sorted((event for event in events if event.name == _RUN), key=lambda event: event.time_range.start)
    starts = [event.time_range.start for event in own]
    inside: list[list[FunctionEvent]] = [[] for _ in own]
    for event in events:
        at = bisect.bisect_right(starts, event.time_range.start) - 1
        if event.name != _RUN and at >= 0 and event.time_range.start <= own[at].time_range.end:
            inside[at].append(event)
    return inside[1:]


def _operator_table(runs: list[list[FunctionEvent]], device: torch.device) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(table, share of each operator in each run)."""
    own_time = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = [
        (at, event.name, getattr(event, own_time) / 1e3)
        for at, inside in enumerate(runs)
        for event in inside
        if not event.is_user_annotation
    ]
    calls = pd.DataFrame(rows, columns=["run", "operator", "ms"])
    summed = calls.groupby(["operator", "run"], sort=False)["ms"].sum().unstack(fill_value=0.0)
    parts = summed.reindex(columns=range(len(runs)), fill_value=0.0)  # ms, 0 where there was no call
    table = pd.DataFrame({"calls": calls["operator"].value_counts().reindex(parts.index)})
    table = table.assign(calls_per_forward=table["calls"] / len(runs), self_ms_per_forward=parts.median(axis=1))
    table = table.assign(**_shares(parts.to_numpy(), parts.sum().to_numpy())).reset_index(names="operator")
    shares = parts / parts.sum().clip(lower=1e-9)
    table = table.sort_values("share", ascending=False, kind="stable", ignore_index=True)
    return table, shares


def _shares(parts: np.ndarray, totals: np.ndarray) -> dict[str, list[float]]:
    """Columns of the median share over the runs and its interval; `parts` is (P, R), `totals` (R,)."""
    shares = parts / np.maximum(totals, 1e-9)  # (P, R)
    intervals = [median_interval(row) for row in shares]
    return {
        "share": [float(np.median(row)) for row in shares],
        "share_low": [low for low, _ in intervals],
        "share_high": [high for _, high in intervals],
    }


def _write_trace(record: torch.profiler.profile, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")  # the ending decides whether the profiler compresses
    record.export_chrome_trace(str(unfinished))
    unfinished.replace(path)
