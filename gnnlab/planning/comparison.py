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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.planning.planner import conditions
from gnnlab.planning.plans import Plan, parse
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONFIDENCE, CONTROL, Estimate

if TYPE_CHECKING:
    from gnnlab.planning.bench import Trial

ONE_UNIT = "over plans of one unit"
PEERS = ("HETERO", "AUTO", "throughput streams")  # forms of the same race, by their names
ALL_PEERS = f"{ONE_UNIT}, HETERO, AUTO and throughput streams"
WORST = "chosen, at the worst size"
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
        about = pd.DataFrame([_conditions(form) for form in self.both["form"]])
        rows = self.both[["size"]].assign(plan=self.both["form"], form="predicted", n=self.both["rounds"])
        return pd.concat([rows.assign(**_PERCENT, **columns), about], axis=1)

    def regret(self) -> pd.DataFrame:
        """How much longer the chosen plan takes than the best of all executed ones (%), by size, and at the worst size.

        Where the best of the others is no faster, there is no regret.
        """
        rows = []
        for size, part in self.both.groupby("size", sort=False):
            chosen, others = part[part["chosen"]].iloc[0], part[~part["chosen"]]
            ratio, rival = self._slower(chosen, others)
            ends = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
            percent = {name: None if end is None else 100 * max(0.0, end - 1) for name, end in ends.items()}
            notes = f"{chosen['form']} against {rival}, the fastest of {len(others)} others"
            about = {"size": size, "form": "chosen", "notes": notes, **_conditions(chosen["form"])}
            rows.append({**about, **_PERCENT, **percent, "n": ratio.n})
        # which size is the worst was seen in the same samples, so its own interval would be too narrow
        ends = {name: [row[name] for row in rows] for name in ("value", "low", "high")}
        worst = {name: None if None in each else max(each) for name, each in ends.items()}
        last = max(rows, key=lambda row: row["value"])
        notes = f"{last['size']}: {last['notes']}; chosen by every other round and judged by the rest"
        return pd.DataFrame([*rows, {**last, **worst, "n": rows[0]["n"], "size": "all", "form": WORST, "notes": notes}])

    def gain(self) -> pd.DataFrame:
        """How many times as fast the chosen plan is as the best of one unit, by size; and over the peers, where these
        are forms of the race too, else a row that says what it would need."""
        rows = []
        for size, part in self.both.groupby("size", sort=False):
            chosen, alone = part[part["chosen"]].iloc[0], part[~part["several"]]
            peers = self.peers[self.peers["size"] == size]
            fixed = {"size": size, **_PERCENT, "unit": "x", "better": "higher", **_conditions(chosen["form"])}
            for form, rivals, wanted in ((ONE_UNIT, alone, ()), (ALL_PEERS, pd.concat([alone, peers]), PEERS)):
                if lacking := [peer for peer in wanted if peer not in set(peers["form"])]:
                    needs = f"needs OpenVINO {', '.join(lacking)} in the race: export 1-7, too (blocks of notebook 04)"
                    rows.append({**fixed, "form": form, "status": "unavailable", "reason": needs})
                    continue
                ratio, rival = self._slower(chosen, rivals)
                ends = zip(("value", "low", "high"), (ratio.value, ratio.high, ratio.low), strict=True)
                gain = {name: None if end is None else 1 / end for name, end in ends}
                notes = f"{chosen['form']} over {rival}, the fastest of {len(rivals)} by every other round"
                rows.append({**fixed, "form": form, **gain, "n": ratio.n, "notes": notes})
        return pd.DataFrame(rows)

    def conclusion(self) -> str:
        """Which plan, what it gains over the best single unit, and if the prediction held; a sentence for each size."""
        gains = self.gain().query("form == @ONE_UNIT").set_index("size")
        sentences = []
        for row in self.both[self.both["chosen"]].to_dict("records"):
            gain = gains.loc[row["size"]]
            ends = f" ({gain['low']:.2f} to {gain['high']:.2f})" if pd.notna(gain["low"]) else ""
            over = f"{gain['value']:.2f}{ends} times as fast as the best single unit"
            over = over if row["several"] else "a single unit, which no plan of several was faster than"
            off = 100 * (row["value"] / row["ms"] - 1)
            held = "holds" if row["low"] <= row["ms"] <= row["high"] else "does not hold"
            sentences.append(
                f"At {row['size']} nodes/edges, **{row['form']}**: {row['ms']:.3g} ms a graph, "
                f"{over}. Expected were {row['value']:.3g} ms ({off:+.0f} %); the 90 % interval of that prediction "
                f"{held}."
            )
        return "\n\n".join(sentences)

    def _slower(self, chosen: pd.Series, rivals: pd.DataFrame) -> tuple[Estimate, str]:
        """The chosen plan's time over that of the best of `rivals`, and that one: picked by the even rounds, judged by
        the odd ones."""
        best = _fastest(rivals)
        ratio = estimates.ratio(chosen["samples"][1::2], best["samples"][1::2])
        if ratio.low is None:
            return ratio, best["form"]
        size = chosen["size"]
        baseline = self.executed[(self.executed["size"] == size) & self.executed["baseline"].isna()].iloc[0]
        floor = estimates.noise_floor(baseline["samples"], self.controls[size])
        return replace(ratio, low=ratio.low / floor, high=ratio.high * floor), best["form"]


def _fastest(raced: pd.DataFrame) -> pd.Series:
    """By every other round."""
    return raced.iloc[int(np.argmin([float(np.median(samples[::2])) for samples in raced["samples"]]))]


def _conditions(form: str) -> dict[str, Any]:
    return conditions(parse(form).units)
