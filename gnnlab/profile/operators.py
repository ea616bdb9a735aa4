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
from torch.profiler import DeviceType, ProfilerActivity, record_function

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.measure.estimates import median_interval
from gnnlab.measure.restore import unchanged
from gnnlab.measure.tensors import device_of
from gnnswap.cost import quiet_profiler
from gnnswap.inputs import call

OUTSIDE = "kernels outside of operators"  # as those that a CUDA graph replays, or a function launches by itself
_RUN = "gnnlab.run"
_WARM_UP = 3
_TRACED = 2  # runs in a trace
_ROUNDING = 0.01  # of the kernels' time


@dataclass(frozen=True)
class OperatorProfile:
    """What ran, by operator; times in ms a run, on the CPU or on the CUDA device.

    Times and shares are medians over the runs, so that one stall of the machine does not make a bottleneck; shares
    need not add up to 1 exactly.

    On CUDA the time is that of the kernels that an operator launches; those that no operator launches have the row
    `OUTSIDE`.

    `frame`: operator, calls (in all runs), calls_per_forward, self_ms_per_forward, share (of the time of all
    operators), share_low, share_high (its 95 % interval, NaN below six runs), the largest share first. `shares` has
    them by run: operator x run.
    """

    frame: pd.DataFrame
    shares: pd.DataFrame = field(repr=False)
    runs: int
    device: str
    trace: Path | None = None

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
    """Profile `work`, called with `batch` (see `gnnswap.inputs.call`) `runs` times after a warm-up.

    A module is called without gradients, in the mode that it is in; a function as it is. `trace` (.json or .json.gz,
    written whole or not at all) holds two further runs, with operators, the shapes of inputs and each allocation of
    memory, as S0 asks for; recording these takes time, so they are in no other number.

    Raises:
        GnnlabError: fewer than 2 runs (no interval from one), or a trace of another kind.
    """
    whole_numbers(2, runs=runs)
    target = None if trace is None else Path(trace)
    if target is not None and not target.name.endswith((".json", ".json.gz")):
        raise GnnlabError(f"a trace ends in .json or .json.gz, not in {target.name!r}")
    device = device_of(work, batch) if isinstance(work, nn.Module) else device_of(batch)
    with unchanged(work, trains=False), torch.no_grad() if isinstance(work, nn.Module) else nullcontext():
        for _ in range(_WARM_UP):
            call(work, batch)
        calls = _calls_by_run(_record(work, batch, runs, device), device)
        if target is not None:
            record = _record(work, batch, _TRACED, device, record_shapes=True, profile_memory=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished = target.with_name(f".{target.name}")  # the ending decides whether the profiler compresses
            record.export_chrome_trace(str(unfinished))
            unfinished.replace(target)
    ms = calls.groupby(["operator", "run"])["ms"].sum().unstack(fill_value=0.0)
    ms = ms.reindex(columns=range(runs), fill_value=0.0)  # operator x run, 0 where there was no call
    frame, shares = _shares(ms)
    frame.insert(0, "calls", calls["operator"].value_counts())
    frame.insert(1, "calls_per_forward", frame["calls"] / runs)
    return OperatorProfile(frame.reset_index(names="operator"), shares, runs, str(device), target)


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


def _calls_by_run(record: torch.profiler.profile, device: torch.device) -> pd.DataFrame:
    """A row for each operator call that began inside a run, the first run left out: run, operator, ms (of its own); on
    CUDA also one a run for `OUTSIDE`, where there is anything."""
    cuda = device.type == "cuda"
    own_time = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = [event for event in record.events() if event.device_type == DeviceType.CPU]
    runs = sorted((event.time_range for event in events if event.name == _RUN), key=lambda time: time.start)
    starts = [time.start for time in runs]

    def run_of(event: Any) -> int:
        """The number of the run, -1 in the first one or outside of all."""
        at = bisect.bisect_right(starts, event.time_range.start) - 1
        return at - 1 if at > 0 and event.time_range.start <= runs[at].end else -1

    rows = []
    for event in events:
        if not event.is_user_annotation and (run := run_of(event)) >= 0:
            rows.append((run, event.name, getattr(event, own_time) / 1e3))
    frame = pd.DataFrame(rows, columns=["run", "operator", "ms"])
    if not cuda:
        return frame
    annotations = {event.name for event in events if event.is_user_annotation}
    kernels = [e for e in record.events() if e.device_type != DeviceType.CPU and e.name not in annotations]
    total = pd.Series(0.0, index=range(len(runs) - 1))
    for kernel in kernels:
        if (run := run_of(kernel)) >= 0:
            total[run] += kernel.time_range.elapsed_us() / 1e3
    left = total - frame.groupby("run")["ms"].sum().reindex(total.index, fill_value=0.0)
    left = left[left > _ROUNDING * total]
    return pd.concat([frame, pd.DataFrame({"run": left.index, "operator": OUTSIDE, "ms": left.to_numpy()})])


def _shares(ms: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(self_ms_per_forward, share, share_low and share_high by operator, largest first; share by operator and run) of
    `ms`, operator x run."""
    shares = ms / ms.sum().clip(lower=1e-9)
    frame = pd.DataFrame({"self_ms_per_forward": ms.median(axis=1), "share": shares.median(axis=1)})
    frame[["share_low", "share_high"]] = [median_interval(row) or (np.nan, np.nan) for row in shares.to_numpy()]
    return frame.sort_values("share", ascending=False, kind="stable"), shares
