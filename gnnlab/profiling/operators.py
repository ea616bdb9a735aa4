"""Where the time goes: torch.profiler to a table of operators and a table of modules, with intervals.

    profile = profile_operators(model, batch, runs=20, trace=Path("trace.json.gz"))
    profile.top(3)          # the three operators with the largest share of the time, each with its 95 % interval
    profile.modules         # the same by module
    # the trace opens in https://ui.perfetto.dev

Profiling slows down what it looks at, small operators most: read shares here, and times from `timing`.
"""

from __future__ import annotations

import bisect
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType, ProfilerActivity, record_function

from gnnlab.safe_files import write_atomically

from .accounting import quiet_profiler
from .context import call
from .dispatch import device_of, module_hooks
from .intervals import median_interval

_RUN, _MODULE = "gnnlab.run", "gnnlab.module "
_WARM_UP = 3
_TRACE_ENDINGS = (".json", ".json.gz")


class OperatorsError(ValueError):
    """Runs or a trace file that cannot be. The message is one line for the reader."""


@dataclass(frozen=True)
class OperatorProfile:
    """What ran, by operator and by module; times in ms a run, on the CPU or on the CUDA device.

    Times and shares are medians over the runs, so that one stall of the machine does not make a bottleneck; shares
    need not add up to 1 exactly.

    `frame`: operator, calls (in all runs), calls_per_forward, self_ms_per_forward, share (of the time of all
    operators), share_low, share_high (its 95 % interval), the largest share first.

    `modules`: module (path; "" is the model itself), class, calls_per_forward, inclusive_ms, self_ms (without the
    modules inside it), share (self_ms of the whole run), share_low, share_high.

    `run_ms` is a whole run under the profiler, `outside_ms` the part of it that no operator accounts for: Python, and
    the way into torch.
    """

    frame: pd.DataFrame
    modules: pd.DataFrame
    runs: int
    run_ms: float
    outside_ms: float
    device: str
    trace: Path | None = None
    shares: pd.DataFrame | None = field(default=None, repr=False)  # operator x run: share of that run

    def joint_share(self, *operators: str) -> dict[str, Any]:
        """Share of the time that these operators take together: value, ci (95 % of the median), n (runs)."""
        together = self.shares.reindex(list(operators), fill_value=0.0).sum()
        return {"value": float(np.median(together)), "ci": median_interval(together), "n": len(together)}

    def calls(self, *operators: str) -> dict[str, float]:
        """Calls of each of these operators in one forward pass; 0 where there is none."""
        per_forward = self.frame.set_index("operator")["calls_per_forward"]
        return {name: float(per_forward.get(name, 0.0)) for name in operators}

    def top(self, k: int = 10) -> pd.DataFrame:
        """The k operators with the largest share."""
        return self.frame.head(k)


def profile_operators(
    work: nn.Module | Callable[..., Any],
    batch: Any = (),
    *,
    runs: int = 20,
    trace: Path | str | None = None,
    model: nn.Module | None = None,
) -> OperatorProfile:
    """Profile `work`, called with `batch` (see `context.call`) `runs` times after a warm-up.

    A module is called without gradients, in the mode that it is in; a function as it is, and `model` names the module
    whose parts its time is assigned to. Modules are timed in runs of their own, so that their hooks do not weigh on
    the operators; `trace` (.json or .json.gz, written whole or not at all) holds those runs. Hooks make
    `nn.TransformerEncoderLayer` leave its fused path.

    Raises:
        OperatorsError: fewer than 2 runs (no interval from one), or a trace of another kind.
        FileError: the trace cannot be written.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 2:
        raise OperatorsError(f"runs must be a whole number of at least 2, not {runs!r}")
    target = None if trace is None else _trace_path(trace)
    follow = work if model is None else model
    device = device_of(follow, batch) if isinstance(follow, nn.Module) else device_of(batch)
    with torch.no_grad() if isinstance(work, nn.Module) else nullcontext():
        for _ in range(_WARM_UP):
            call(work, batch)
        record = _record(work, batch, runs, device)
        frame, shares, run_ms, outside_ms = _operator_table(_by_run(record), device)
        modules = _module_table([], {}, device)
        if isinstance(follow, nn.Module):
            classes = {path: type(module).__name__ for path, module in follow.named_modules()}
            with _annotated(follow):
                record = _record(work, batch, runs, device)
            modules = _module_table(_by_run(record), classes, device)
    if target is not None:
        _write_trace(record, target)
    return OperatorProfile(frame, modules, runs, run_ms, outside_ms, str(device), target, shares)


def _shares(parts: np.ndarray, totals: np.ndarray) -> dict[str, list[float]]:
    """Columns of the median share over the runs and its interval; `parts` is (P, R), `totals` (R,)."""
    shares = parts / np.maximum(totals, 1e-9)  # (P, R)
    intervals = [median_interval(row) for row in shares]
    return {
        "share": [float(np.median(row)) for row in shares],
        "share_low": [low for low, _ in intervals],
        "share_high": [high for _, high in intervals],
    }


def _record(work: Callable[..., Any], batch: Any, runs: int, device: torch.device) -> torch.profiler.profile:
    """`runs` runs and one before them, in which the profiler warms up."""
    quiet_profiler()
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as record:
        for _ in range(runs + 1):
            with record_function(_RUN):
                call(work, batch)
                if cuda:
                    torch.cuda.synchronize(device)
    return record


def _by_run(record: torch.profiler.profile) -> list[tuple[FunctionEvent, list[FunctionEvent]]]:
    """For each run but the first: its own event, and the CPU events that began inside it."""
    events = [event for event in record.events() if event.device_type == DeviceType.CPU]
    own = sorted((event for event in events if event.name == _RUN), key=lambda event: event.time_range.start)
    starts = [event.time_range.start for event in own]
    inside: list[list[FunctionEvent]] = [[] for _ in own]
    for event in events:
        at = bisect.bisect_right(starts, event.time_range.start) - 1
        if event.name != _RUN and at >= 0 and event.time_range.start <= own[at].time_range.end:
            inside[at].append(event)
    return list(zip(own, inside, strict=True))[1:]


def _operator_table(runs: list, device: torch.device) -> tuple[pd.DataFrame, pd.DataFrame, float, float]:
    """(table, share of each operator in each run, ms of a run, ms of a run outside operators)."""
    times: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    calls: Counter[str] = Counter()
    for at, (_, inside) in enumerate(runs):
        for event in inside:
            if not event.is_user_annotation:
                times[event.name][at] += _self_ms(event, device)
                calls[event.name] += 1
    names = list(times)
    parts = np.array([times[name] for name in names]).reshape(len(names), len(runs))
    run_ms = float(np.median([own.cpu_time_total / 1e3 for own, _ in runs]))
    outside_ms = float(np.median([own.cpu_time_total / 1e3 - _on_cpu_ms(inside) for own, inside in runs]))
    table = pd.DataFrame(
        {
            "operator": names,
            "calls": [calls[name] for name in names],
            "calls_per_forward": [calls[name] / len(runs) for name in names],
            "self_ms_per_forward": _medians(parts),
            **_shares(parts, parts.sum(0)),
        }
    )
    shares = pd.DataFrame(parts / np.maximum(parts.sum(0), 1e-9), index=names)
    return _largest_first(table), shares, run_ms, outside_ms


def _module_table(runs: list, classes: dict[str, str], device: torch.device) -> pd.DataFrame:
    inclusive = {path: np.zeros(len(runs)) for path in classes}
    inner = {path: np.zeros(len(runs)) for path in classes}  # of the modules directly inside
    calls: Counter[str] = Counter()
    for at, (_, inside) in enumerate(runs):
        for event in inside:
            if event.name.startswith(_MODULE):
                path, outer = event.name.removeprefix(_MODULE), _module_around(event)
                inclusive[path][at] += _total_ms(event, device)
                calls[path] += 1
                if outer is not None:
                    inner[outer][at] += _total_ms(event, device)
    parts = np.array([inclusive[path] - inner[path] for path in classes]).reshape(len(classes), len(runs))
    totals = np.array([_total_ms(own, device) for own, _ in runs])
    table = pd.DataFrame(
        {
            "module": list(classes),
            "class": list(classes.values()),
            "calls_per_forward": [calls[path] / len(runs) for path in classes],
            "inclusive_ms": _medians(inclusive.values()),
            "self_ms": _medians(parts),
            **_shares(parts, totals),
        }
    )
    return _largest_first(table)


def _medians(rows: Iterable[np.ndarray]) -> list[float]:
    return [float(np.median(row)) for row in rows]


def _module_around(event: FunctionEvent) -> str | None:
    outer = event.cpu_parent
    while outer is not None and not outer.name.startswith(_MODULE):
        outer = outer.cpu_parent
    return None if outer is None else outer.name.removeprefix(_MODULE)


def _largest_first(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


def _on_cpu_ms(events: list[FunctionEvent]) -> float:
    return sum(event.self_cpu_time_total for event in events if not event.is_user_annotation) / 1e3


def _self_ms(event: FunctionEvent, device: torch.device) -> float:
    return (event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total) / 1e3


def _total_ms(event: FunctionEvent, device: torch.device) -> float:
    return (event.device_time_total if device.type == "cuda" else event.cpu_time_total) / 1e3


@contextmanager
def _annotated(model: nn.Module) -> Iterator[None]:
    """Each forward of each module shows in the profile by its path; also one that fails."""
    open_ranges: list[record_function] = []

    def enter(path: str, _: nn.Module) -> None:
        open_ranges.append(record_function(_MODULE + path))
        open_ranges[-1].__enter__()

    def leave(_: str, __: nn.Module) -> None:
        open_ranges.pop().__exit__(None, None, None)

    with module_hooks(model, enter, leave):
        yield


def _trace_path(trace: Path | str) -> Path:
    path = Path(trace)
    if not path.name.endswith(_TRACE_ENDINGS):
        raise OperatorsError(f"a trace ends in .json or .json.gz, not in {path.name!r}")
    return path


def _write_trace(record: torch.profiler.profile, path: Path) -> None:
    """Whole or not at all. The profiler names its own file: in the system's temporary folder, and copied from there."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / path.name
            record.export_chrome_trace(str(written))
            with written.open("rb") as source:
                write_atomically(path, lambda file: shutil.copyfileobj(source, file), mode="wb")
    except OSError as error:
        raise OperatorsError(f"could not write the trace {path}: {error.strerror or error}") from error
