"""How predictions go: how many, how long they take, how many fail and how many were known.

    tracker = Tracker()
    tracker.record(latency_ms)                   # an answer that was computed
    tracker.record(latency_ms, cached=True)      # one that was known
    tracker.record_error()
    tracker.table()                              # for a reader
    tracker.prometheus()                         # for a monitor, in the text format

Percentiles follow the lab's sample floors (docs/measuring.md): p90 from 64 answers, p95 from 130, p99 from 662; below
there is none, and the table says so.
"""

from __future__ import annotations

import math
from collections import deque
from threading import Lock

import numpy as np
import pandas as pd
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gnnlab.kernels.errors import OptimizeError
from gnnlab.profiling.intervals import PERCENTILE_FLOORS, percentile

WINDOW = 10_000  # answers that the percentiles are of, the last ones
# s; from a cached answer to one that a user would wait for
BUCKETS_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0)


class Tracker:
    """Counts of predictions and their latencies; safe to share among threads, with a registry of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latencies_ms: deque[float] = deque(maxlen=WINDOW)
        self._computed = self._cached = self._errors = 0
        self._registry = CollectorRegistry()
        self._predictions = Counter(
            "gnnlab_predictions", "Predictions by what became of them.", ["result"], registry=self._registry
        )
        self._latency = Histogram(
            "gnnlab_prediction_latency_seconds",
            "Time to an answer, computed or cached.",
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        for result in ("computed", "cached", "error"):  # so that a monitor sees a zero, not nothing
            self._predictions.labels(result)

    def record(self, latency_ms: float, *, cached: bool = False) -> None:
        """One answer and the ms that its caller waited for it; in a batch, once for each answer.

        Raises:
            OptimizeError: a latency that is no finite number of 0 or more.
        """
        if not 0 <= latency_ms < math.inf:
            raise OptimizeError(f"latency_ms is {latency_ms!r}; a finite number of 0 or more is needed")
        with self._lock:
            self._latencies_ms.append(float(latency_ms))
            self._computed += not cached
            self._cached += cached
        self._predictions.labels("cached" if cached else "computed").inc()
        self._latency.observe(latency_ms / 1000)

    def record_error(self) -> None:
        """One request that got an error instead of an answer."""
        with self._lock:
            self._errors += 1
        self._predictions.labels("error").inc()

    @property
    def count(self) -> int:
        """Answers so far, errors not among them."""
        return self._computed + self._cached

    @property
    def errors(self) -> int:
        return self._errors

    @property
    def cache_rate(self) -> float | None:
        """Share of the answers that was known before; None before the first answer."""
        return self._cached / self.count if self.count else None

    def latency_ms(self, q: int) -> float | None:
        """The q-th percentile (50, 90, 95 or 99) of the last answers in ms, None below its sample floor."""
        with self._lock:
            samples = list(self._latencies_ms)
        return percentile(samples, q)

    def table(self) -> pd.DataFrame:
        """Columns figure, value, unit, note; a value of too few samples is NaN, and the note says what it takes."""
        with self._lock:
            samples = list(self._latencies_ms)
            counts = {"computed": self._computed, "cached": self._cached, "errors": self._errors}
        rows = [(name, float(value), "predictions", "") for name, value in counts.items()]
        answers = counts["computed"] + counts["cached"]
        rate = 100 * counts["cached"] / answers if answers else math.nan
        rows.append(("cache rate", rate, "%", "" if answers else "no answer yet"))
        rows.append(("mean latency", float(np.mean(samples)) if samples else math.nan, "ms", _of(samples)))
        rows += [_percentile_row(samples, q) for q in PERCENTILE_FLOORS]
        return pd.DataFrame(rows, columns=["figure", "value", "unit", "note"])

    def prometheus(self) -> str:
        """Counters by result and the histogram of latencies, in the Prometheus text format."""
        return generate_latest(self._registry).decode()


def _percentile_row(samples: list[float], q: int) -> tuple[str, float, str, str]:
    value = percentile(samples, q)
    if value is not None:
        return f"p{q} latency", value, "ms", _of(samples)
    return f"p{q} latency", math.nan, "ms", f"takes {PERCENTILE_FLOORS[q]} answers, there are {len(samples)}"


def _of(samples: list[float]) -> str:
    return f"of the last {len(samples)}" if len(samples) == WINDOW else f"of {len(samples)}"
