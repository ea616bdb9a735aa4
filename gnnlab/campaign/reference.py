"""A fixed piece of work, measured every so often, and which cells were measured while the machine had drifted.

The reference workload is a row of numbers for the arithmetic and a copy for the memory, on one core. It tells of other
load, of heat and of a changed clock. It knows nothing of the clock of a GPU or an NPU; their drift shows in their own
notes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnlab.campaign.checkpoints import LOST
from gnnlab.profiling.sampling import Clock

HERE = "here"  # the name of this machine, where a campaign has no other
_WARM_UP, _RUNS = 2, 41  # some 50 ms: with 9 runs the reference workload itself scattered by 20 % on a shared machine


def reference(clock: Clock = time.perf_counter) -> dict[str, float]:
    """{"here": ms} of the fixed work: the median of 41 runs after 2 that do not count.

    A run takes about a millisecond, so that a burst of somebody else's work does not decide the median.
    """
    numbers, source = np.linspace(0, 1, 100_000), np.ones(2**21)  # 0.8 MB; 16 MiB
    target, out = np.empty_like(source), np.empty_like(numbers)
    times = []
    for _ in range(_WARM_UP + _RUNS):
        start = clock()
        np.exp(numbers, out=out)
        np.copyto(target, source)
        times.append((clock() - start) * 1e3)
    return {HERE: float(np.median(times[_WARM_UP:]))}


@dataclass(frozen=True)
class Visit:
    """One measurement of a cell: its place in the journal, its record, and how far the reference was off beside it."""

    place: int
    record: dict[str, Any]
    # |reference / median reference - 1|, the larger of the two around it; 0 where there is none, inf where it is lost
    off: float


def visits_of(records: Sequence[dict[str, Any]], campaign: str, phase: str) -> dict[str, list[Visit]]:
    """By fingerprint, every measurement that a journal holds, judged by the reference before and after it.

    The references of one phase of one campaign (the same code, versions and machine) on one host are compared with
    their median. Where a kill came between a cell and its reference, the first one after the restart stands for it;
    none stands for one beyond lines that are lost.
    """
    lost = [place for place, record in enumerate(records) if record["kind"] == LOST]
    runs = [(i, r["ms"]) for i, r in enumerate(records) if is_reference(r, campaign, phase)]
    found: dict[str, list[Visit]] = {}
    for place, record in enumerate(records):
        if record["kind"] == "cell":
            off = _off(runs, lost, place, record["host"])
            found.setdefault(record["fingerprint"], []).append(Visit(place, record, off))
    return found


def is_reference(record: dict[str, Any], campaign: str, phase: str) -> bool:
    return record["kind"] == "reference" and (record["campaign"], record["phase"]) == (campaign, phase)


def _off(runs: Sequence[tuple[int, dict[str, float]]], lost: Sequence[int], place: int, host: str) -> float:
    here = [(i, ms[host]) for i, ms in runs if host in ms]
    if not here:
        return 0.0
    usual = float(np.median([ms for _, ms in here]))
    first, last = max([i for i in lost if i < place], default=-1), min([i for i in lost if i > place], default=np.inf)
    before = [ms for i, ms in here if first < i < place][-1:]
    after = [ms for i, ms in here if place < i < last][:1]
    return max((abs(ms / usual - 1) for ms in before + after), default=np.inf if lost else 0.0)
