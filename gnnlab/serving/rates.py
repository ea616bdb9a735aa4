"""What a service holds: latencies over rates of requests, the largest rate within a bound, and which form to use when.

over = over_rates({"guide": at_rate, "fast": other}, {"guide": [100, 200], "fast": [400, 800]}, rounds=6)
over.largest(bound_ms=20)["guide"]          # requests/s, one a round
advice(holds, peak=10)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.serving.load import Observed

DAY_S = 86_400


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
            got = forms[form](rate, int(order.integers(2**31)))
            p50, p99 = np.percentile(got.latency_ms, [50, 99], method="higher")
            late = np.percentile(got.late_ms, 99, method="higher")
            shares = {"client": got.client, "service": got.service}
            rows.append({"form": form, "round": at, "rate": rate, "p50": p50, "p99": p99, "late": late, **shares})
    return Rates(pd.DataFrame(rows), list(forms))


class Rates:
    """Latencies of forms over rates, a run a row of `runs`: form, round, rate (requests/s), p50, p99 and late (ms, the
    99th percentile of how late the client sent), client and service (cores)."""

    def __init__(self, runs: pd.DataFrame, forms: Sequence[str]) -> None:
        self.runs = runs.sort_values(["round", "rate"], kind="stable")
        self.forms = list(forms)

    def percentiles(self) -> pd.DataFrame:
        """Rows of form, requests_per_s, percentile (p50, p99), and the samples: one a round, ms."""
        return self._rows("percentile", "p50", "p99")

    def cores(self) -> pd.DataFrame:
        """Rows of form, requests_per_s, process (client, service), and the samples: cores that it took, one a round."""
        return self._rows("process", "client", "service")

    def late(self) -> float:
        """The median over runs of how late the client was with its latest hundredth, ms."""
        return float(self.runs["late"].median())

    def _rows(self, key: str, *what: str) -> pd.DataFrame:
        rows = [
            {"form": form, "requests_per_s": float(f"{rate:.3g}"), key: name, "samples": part[name].to_list()}
            for form in self.forms
            for rate, part in self.runs[self.runs["form"] == form].groupby("rate")
            for name in what
        ]
        return pd.DataFrame(rows)

    def largest(self, bound_ms: float) -> dict[str, list[float]]:
        """The largest rate of each form with a p99 within the bound, one a round."""
        found: dict[str, list[float]] = {form: [] for form in self.forms}
        for (form, _), part in self.runs.groupby(["form", "round"]):
            found[form].append(largest_rate(part["rate"].to_list(), part["p99"].to_list(), bound_ms))
        return found

    def over(self, baseline: str) -> pd.DataFrame:
        """Rows of the median latencies of forms that were asked at one rate, ms, one a round, over the baseline's."""
        p50 = {form: self.runs.loc[self.runs["form"] == form, "p50"].to_list() for form in self.forms}
        return compared(p50, baseline)

    def spacing_over(self, baseline: str, forms: Sequence[str], bound_ms: float) -> pd.DataFrame:
        """Rows of the time from one request to the next at the largest rates of baseline and forms, ms, as a time is
        what a ratio is made of."""
        largest = self.largest(bound_ms)
        return compared(
            {form: [1e3 / rate if rate else math.inf for rate in largest[form]] for form in (baseline, *forms)},
            baseline,
        )


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
        elif len(values) != len(base):
            reason = f"{len(base)} and {len(values)} rounds cannot be compared"
        else:
            row: dict[str, Any] = {"form": form, "samples": list(values)}
            if form != baseline:
                gain = estimates.ratio(base, values)
                row |= {"baseline": baseline, "ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
            rows.append(row)
            continue
        rows.append({"form": form, "status": "unavailable", "reason": reason})
    return pd.DataFrame(rows)


def advice(holds: Mapping[str, Estimate], *, peak: float) -> pd.DataFrame:
    """Which form to use from which rate on: the simplest, as long as it holds, then the next that holds more.

    `holds` are largest rates (requests/s), the simplest form first; what counts is the low end of the interval where
    there is one. `peak` is how many times the mean rate of a day its busiest second has.
    """
    rows, reached = [], 0.0
    for form, found in holds.items():
        most = found.value if found.low is None else max(found.low, 0.0)
        if most > reached:
            rows.append((form, reached, most, reached * DAY_S / peak, most * DAY_S / peak))
            reached = most
    columns = ["use", "from (requests/s)", "to (requests/s)", "from (requests a day)", "to (requests a day)"]
    return pd.DataFrame(rows, columns=columns).set_index("use")
