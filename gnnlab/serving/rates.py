"""Latencies over rates of requests, and the largest rate that a service holds within a bound.

over = over_rates({"guide": at_rate, "fast": other}, {"guide": [100, 200], "fast": [400, 800]}, rounds=6)
over.largest(bound_ms=20)["guide"]          # requests/s, one a round
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates
from gnnlab.serving.load import Observed


def over_rates(
    forms: Mapping[str, Callable[[float, int], Observed]],
    rates: Mapping[str, Sequence[float]],
    *,
    rounds: int,
    fewer: Mapping[str, int] | None = None,
) -> Rates:
    """Each form, called with a rate and a seed, at each of its rates (requests/s) in each round, in random order.

    `fewer` has the number of rounds of forms that run in the first of them only.
    """
    rows, order, limits = [], np.random.default_rng(0), dict(fewer or {})
    for at in range(rounds):
        cells = [(form, rate) for form in forms if at < limits.get(form, rounds) for rate in sorted(rates[form])]
        for place in order.permutation(len(cells)):
            form, rate = cells[place]
            run = forms[form](rate, int(order.integers(2**31)))
            p50, p99 = np.percentile(run.latency_ms, [50, 99], method="higher")
            late = np.percentile(run.late_ms, 99, method="higher")
            rows.append({"form": form, "round": at, "rate": rate, "p50": p50, "p99": p99, "late": late})
    return Rates(pd.DataFrame(rows), list(forms))


class Rates:
    """Latencies of forms over rates, a run a row of `runs`: form, round, rate (requests/s), p50, p99 and late (ms, the
    99th percentile of how late the client sent)."""

    def __init__(self, runs: pd.DataFrame, forms: Sequence[str]) -> None:
        self.runs = runs.sort_values(["round", "rate"], kind="stable")
        self.forms = list(forms)

    def percentiles(self) -> pd.DataFrame:
        """Rows of form, requests_per_s, percentile (p50, p99), and the samples: one a round, ms."""
        rows = [
            {"form": form, "requests_per_s": float(f"{rate:.3g}"), "percentile": name, "samples": part[name].to_list()}
            for form in self.forms
            for rate, part in self.runs[self.runs["form"] == form].groupby("rate")
            for name in ("p50", "p99")
        ]
        return pd.DataFrame(rows)

    def late(self) -> float:
        """The median over runs of how late the client was with its latest hundredth, ms."""
        return float(self.runs["late"].median())

    def largest(self, bound_ms: float) -> dict[str, list[float]]:
        """The largest rate of each form with a p99 within the bound, one a round."""
        found: dict[str, list[float]] = {form: [] for form in self.forms}
        for (form, _), part in self.runs.groupby(["form", "round"]):
            found[form].append(largest_rate(part["rate"].to_list(), part["p99"].to_list(), bound_ms))
        return found

    def medians(self) -> dict[str, list[float]]:
        """The median latencies of forms that were asked at one rate, ms, one a round."""
        return {form: self.runs.loc[self.runs["form"] == form, "p50"].to_list() for form in self.forms}


def largest_rate(rates: Sequence[float], p99_ms: Sequence[float], bound_ms: float) -> float:
    """The largest rate before the p99 first exceeds the bound, interpolated in logarithms; 0 where all exceed it.

    Where none does, the largest rate that was asked for: it may be more. `rates` rise.
    """
    for place, p99 in enumerate(p99_ms):
        if p99 > bound_ms:
            if place == 0:
                return 0.0
            before = p99_ms[place - 1]
            share = math.log(bound_ms / before) / math.log(p99 / before)
            return rates[place - 1] * (rates[place] / rates[place - 1]) ** share
    return rates[-1]


def compared(samples: Mapping[str, Sequence[float]], baseline: str) -> pd.DataFrame:
    """Rows of forms that ran in the same rounds: their samples, and the ratio of the baseline's over each.

    A form with a sample that is not finite has no number: the row says in how many rounds there was none.
    """
    rows, base = [], samples[baseline]
    for form, values in samples.items():
        never = sum(not math.isfinite(value) for value in values)
        if never:
            reason = f"within the bound at no rate in {never} of {len(values)} rounds"
        elif not all(map(math.isfinite, base)):
            reason = f"{baseline} has none"
        else:
            row: dict[str, Any] = {"form": form, "samples": list(values)}
            if form != baseline:
                gain = estimates.ratio(base, values)
                row |= {"baseline": baseline, "ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
            rows.append(row)
            continue
        rows.append({"form": form, "status": "unavailable", "reason": reason})
    return pd.DataFrame(rows)
