"""Executed plans against their predictions.

    executed = lab.race("executed_plans", ...)             # over the sizes of the trials; forms are plans in words
    raced = Comparison(executed, bench.trials)
    raced.chosen["1000/5000"]                              # the fastest of those that the ranking proposed
    raced.errors(); raced.coverage(); raced.regret(); raced.gain()         # rows for the one table

The best of several plans is picked by every other round and judged by the rest, as in the ledger, so that luck does not
choose; what the A/A control of a race shows beyond 1 is in the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONFIDENCE, CONTROL
from gnnlab.planning.bench import EXPORTED, PEERS, Trial, conditions_of
from gnnlab.planning.plans import Plan, parse

ONE_UNIT = "over plans of one unit"
ALL_PEERS = f"{ONE_UNIT} and OpenVINO's own ways"
WORST = "chosen, at the worst size"
ENDS = ["value", "low", "high"]
_PERCENT = {"unit": "%", "better": "lower", "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE}


class Comparison:
    """`executed`: the study of a race of plans, which has a `frame` and the `samples` of its rows; `trials` by size.
    `chosen`: at each size the fastest of the trial's `candidates`. `predicted`: of every plan that ran.

    Raises:
        GnnlabError: at a size fewer than two plans ran, or none of the candidates.
    """

    def __init__(self, executed: Any, trials: Mapping[str, Trial]) -> None:
        frame = executed.frame.assign(samples=executed.samples)
        frame = frame[frame["status"] == "ok"]
        self.controls = frame[frame["form"] == CONTROL].set_index("size")["samples"]
        self.peers = frame[frame["form"].isin(PEERS)]
        self.executed = frame[~frame["form"].isin([CONTROL, *PEERS])]
        self.chosen: dict[str, Plan] = {}
        parts = []
        for size, part in self.executed.groupby("size", sort=False):
            proposed = part[part["form"].isin([plan.words() for plan in trials[size].candidates])]
            if len(part) < 2 or proposed.empty:
                raise GnnlabError(f"{size}: {len(part)} plans ran; one that was proposed and another are needed")
            self.chosen[size] = parse(_fastest(proposed)["form"])
            predicted = trials[size].predicted([parse(form) for form in part["form"]])
            parts.append(predicted.assign(chosen=predicted["form"] == self.chosen[size].words()))
        self.predicted = pd.concat(parts, ignore_index=True)
        ran = self.executed.rename(columns={"value": "ms", "low": "ms_low", "high": "ms_high", "n": "rounds"})
        ran = ran[["size", "form", "ms", "ms_low", "ms_high", "rounds", "samples"]]
        both = self.predicted.merge(ran, on=["size", "form"])
        self.both = both.assign(several=[len(parse(form).units) > 1 for form in both["form"]])

    def both_times(self) -> pd.DataFrame:
        """Both times of each plan, as two forms of one study: keys size and plan, forms executed and predicted."""
        ran = self.executed.drop(columns=["baseline", "ratio", "ratio_low", "ratio_high"])
        parts = (("executed", ran), ("predicted", self.predicted))
        return pd.concat([part.assign(plan=part["form"], form=form) for form, part in parts], ignore_index=True)

    def errors(self) -> pd.DataFrame:
        """How far each prediction is off the executed time (% of it, either way), by size and plan."""
        both = self.both
        off = 100 * (both["value"] / both["ms"] - 1)
        note = ", ".join(
            f"plans of {'several units' if many else 'one unit'} {part.abs().median():.2g} % in the median, "
            f"{(part < 0).sum()} of {len(part)} predicted too fast"
            for many, part in off.groupby(both["several"])
        )
        ends = pd.concat([100 * (both["value"] / both[end] - 1).abs() for end in ("ms", "ms_low", "ms_high")], axis=1)
        within = both["value"].between(both["ms_low"], both["ms_high"])
        error = {"value": off.abs(), "low": ends.min(axis=1).mask(within, 0.0), "high": ends.max(axis=1)}
        return self._by_plan(error).assign(notes=note)

    def coverage(self) -> pd.DataFrame:
        """How far executed times lie beyond the 90 % interval that the tables alone gave (% of its end; 0: within it).

        By size, plan and `fitted`, which says whether the tables hold times of that size. Nothing was measured at these
        sizes before these predictions.
        """
        both = self.both
        above, below = both["ms"] / both["table_high"] - 1, both["table_low"] / both["ms"] - 1
        rows = self._by_plan({"value": 100 * np.maximum(above, below).clip(lower=0), "fitted": both["fitted"]})
        return rows.assign(
            interval="none", notes="predicted by the tables alone, before anything was measured at this size"
        )

    def _by_plan(self, columns: Mapping[str, pd.Series]) -> pd.DataFrame:
        """A row of percent for each plan that ran: keys size and plan."""
        about = pd.DataFrame([conditions_of(form) for form in self.both["form"]])
        rows = self.both[["size"]].assign(plan=self.both["form"], form="predicted", n=self.both["rounds"])
        return pd.concat([rows.assign(**_PERCENT, **columns), about], axis=1)

    def regret(self) -> pd.DataFrame:
        """How much longer the chosen plan takes than the best of all executed ones (%), by size, and at the worst size.

        Where the best of the others is no faster, there is no regret.
        """
        rows = []
        for size, part in self.both.groupby("size", sort=False):
            chosen, others = part[part["chosen"]].iloc[0], part[~part["chosen"]]
            ratio, n, rival = self._slower(chosen, others)
            notes = f"{chosen['form']} against {rival}, the fastest of {len(others)} others"
            about = {"size": size, "form": "chosen", "notes": notes, **conditions_of(chosen["form"])}
            rows.append({**about, **_PERCENT, **(100 * (ratio - 1)).clip(lower=0), "n": n})
        # which size is the worst was seen in the same samples, so its own interval would be too narrow
        worst = pd.DataFrame(rows)[ENDS].max(skipna=False)
        last = max(rows, key=lambda row: row["value"])
        notes = f"{last['size']}: {last['notes']}; chosen by every other round and judged by the rest"
        return pd.DataFrame([*rows, {**last, **worst, "n": rows[0]["n"], "size": "all", "form": WORST, "notes": notes}])

    def gain(self) -> pd.DataFrame:
        """How many times as fast the chosen plan is as the best of one unit, by size; and over the peers, where these
        are forms of the race too, else a row that says what it would need. `rival`: what it is compared with."""
        rows = []
        for size, part in self.both.groupby("size", sort=False):
            chosen, alone = part[part["chosen"]].iloc[0], part[~part["several"]]
            peers = self.peers[self.peers["size"] == size]
            fixed = {"size": size, **_PERCENT, "unit": "x", "better": "higher", **conditions_of(chosen["form"])}
            for form, rivals in ((ONE_UNIT, alone), (ALL_PEERS, pd.concat([alone, peers]))):
                exported = [peer for peer, (unit, *_) in PEERS.items() if unit == EXPORTED]
                lacking = [peer for peer in exported if form == ALL_PEERS and peer not in set(peers["form"])]
                if lacking:
                    needs = f"needs OpenVINO {', '.join(lacking)} in the race: export 1-7, too (blocks of notebook 04)"
                    rows.append({**fixed, "form": form, "status": "unavailable", "reason": needs})
                    continue
                ratio, n, rival = self._slower(chosen, rivals)
                gain = (1 / ratio).rename({"low": "high", "high": "low"})
                notes = f"{chosen['form']} over {rival}, the fastest of {len(rivals)} by every other round"
                rows.append({**fixed, "form": form, **gain, "n": n, "notes": notes, "rival": rival})
        return pd.DataFrame(rows)

    def _slower(self, chosen: pd.Series, rivals: pd.DataFrame) -> tuple[pd.Series, int, str]:
        """The chosen plan's time over that of the best of `rivals` (`ENDS`), rounds, and that one: picked by the even
        rounds, judged by the odd ones."""
        size, best = chosen["size"], _fastest(rivals)
        ratio = estimates.ratio(chosen["samples"][1::2], best["samples"][1::2])
        ends = pd.Series([ratio.value, ratio.low, ratio.high], ENDS, dtype=float)
        baseline = self.executed[(self.executed["size"] == size) & self.executed["baseline"].isna()].iloc[0]
        floor = estimates.noise_floor(baseline["samples"], self.controls[size])
        return ends * [1, 1 / floor, floor], ratio.n, best["form"]


def _fastest(raced: pd.DataFrame) -> pd.Series:
    """By every other round."""
    return raced.iloc[int(np.argmin([np.median(samples[::2]) for samples in raced["samples"]]))]
