"""What the first call of a compiled function costs, and how often the compiler had to give up a graph."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

LATER_CALLS = 3


@dataclass(frozen=True)
class FirstCall:
    """Seconds of the first call beyond a later one, graphs captured, and breaks between them with their reasons.

    `cache_hits` of the graphs came compiled from torch's cache on disk. `failed` says in one line why it did not
    compile; the numbers are then 0.
    """

    seconds: float
    graphs: int
    graph_breaks: int
    cache_hits: int
    reasons: tuple[str, ...] = ()
    failed: str | None = None


def first_call(compiled: Callable[[], Any], *, fresh: bool = False) -> FirstCall:
    """Call a function that `torch.compile` made, in inference mode, for the first time.

    `fresh` compiles into an empty cache, so that the time is that of a first run on this machine.
    """
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    before = _counts(counters)
    try:
        with torch.inference_mode(), fresh_cache() if fresh else nullcontext():
            first = _seconds(compiled)
            later = min(_seconds(compiled) for _ in range(LATER_CALLS))
    except Exception as error:  # whatever the compiler could not do: the form has no number, and says why
        return FirstCall(0.0, 0, 0, 0, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}")
    graphs, hits, reasons = (now - then for now, then in zip(_counts(counters), before, strict=True))
    lines = tuple(reason.strip().splitlines()[0] for reason in reasons)
    return FirstCall(first - later, graphs.total(), reasons.total(), hits.total(), lines)


def _counts(counters: Any) -> tuple[Counter, Counter, Counter]:
    """Graphs captured, graphs found in the cache, and breaks by reason, so far in this process."""
    stats, inductor = counters["stats"], counters["inductor"]
    graphs, hits = stats["unique_graphs"], inductor["fxgraph_cache_hit"]
    return Counter(graphs=graphs), Counter(hits=hits), Counter(counters["graph_break"])


def _seconds(form: Callable[[], Any]) -> float:
    start = time.perf_counter()
    form()
    return time.perf_counter() - start
