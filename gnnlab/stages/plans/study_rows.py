"""What notebook 07 records: frames whose columns are named as the fields of a row of the lab's one table.

lab.record("executed_plans", executed(raced, devices), keys=["size"])       # a row for each plan, its words as form
lab.record("predicted_plans", predicted(raced, devices), keys=["size"])     # the same plans

`devices` (see there) names the chips. What was predicted says so, and so does what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.stages.plans.bench import CONTROL, Held
from gnnlab.stages.plans.planning import Ranking
from gnnlab.stages.plans.plans import Plan, Space
from gnnlab.stages.plans.run import Done
from gnnlab.stages.plans.store import Choice
from gnnlab.stages.plans.study import Studied
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Unit

ITS_NPU, LESSER_NPU = "S4's rules and its NPU", "an NPU without stages 3 and 4"
ONE_UNIT, ALL_PEERS = "over plans of one unit", "over plans of one unit, HETERO, AUTO and throughput streams"
WORST = "chosen, at the worst size"
CHOSEN, SINGLE = "chosen plan", "best single unit"
CONFIDENCE, PREDICTION = "95 % confidence", "90 % prediction"
PEERS = "OpenVINO HETERO, AUTO and throughput streams in the same race as the plans; they are not raced yet"
_MS = {"unit": "ms", "better": "lower"}
_PERCENT = {"unit": "%", "better": "lower", "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE}
Fields = dict[str, Any]
Devices = Mapping[str, str]


def devices(environment: Mapping[str, Any]) -> dict[str, str]:
    """This machine's chips by their kind, as a row names them: {"CPU": "CPU AMD EPYC"}."""
    return {found["kind"]: f"{found['kind']} {found['name']}" for found in environment["devices"]}


def under(names: Sequence[str], devices: Devices) -> Fields:
    """The conditions of units at work at once, one thread each, as fields."""
    found = [units.find(name) for name in names]
    chips = " and ".join(dict.fromkeys(_chip(unit, devices) for unit in found))
    runtimes = ", ".join(sorted({_runtime(unit.runtime) for unit in found}))
    threads = sum(unit.processor == "CPU" for unit in found)
    return {"device": chips, "runtime": runtimes, "precision": "float32", "threads": threads}


def _chip(unit: Unit, devices: Devices) -> str:
    kind = unit.name.rpartition(":")[2]  # CUDA, where the processor is a GPU
    return devices.get(kind) or devices.get(unit.processor) or f"{unit.processor} ({unit.name})"


def _runtime(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:  # of a unit of the user's own, or a simulated one
        return name


def contention(held: Mapping[str, Held], devices: Devices) -> pd.DataFrame:
    """How many times as long work takes while another core works, by size; a sample for each round."""
    fixed = {"unit": "x", "better": "lower", "origin": "measured", "statistic": "median"}
    return pd.DataFrame(
        [
            {"size": size, "form": " beside ".join(found.pair), "samples": np.array(found.ratios), **fixed}
            | under(found.pair, devices)
            for size, found in held.items()
        ]
    )


def hand_over(studied: Studied, devices: Devices) -> pd.DataFrame:
    """ms from the end of a block to the start of the next on a unit that waits; no row where nothing is handed on."""
    names = dict.fromkeys(unit for ranking in studied.rankings.values() for unit in ranking.chosen.units)
    fixed = {**_MS, "form": "to a unit that waits", "origin": "measured", "statistic": "median"}
    row = {**fixed, "samples": np.array(studied.gaps_ms), **under(list(names), devices)}
    return pd.DataFrame([row] if studied.gaps_ms else [])


def plan_space(rankings: Mapping[str, Ranking], devices: Devices, count: int = 6) -> pd.DataFrame:
    """ms from graph to graph that are expected of the best plans, by size: predicted, none of them was executed."""
    rows = []
    for size, ranking in rankings.items():
        plans = {str(plan): plan for plan in ranking.plans}
        for row in ranking.table(ranking.top(count)).to_dict("records"):
            found = {"value": row["ms"], "low": row["ci_low"], "high": row["ci_high"], "n": ranking.draws.shape[1]}
            notes = f"times of blocks {row['origin']}; best in {row['probability']:.0%} of the draws"
            about = {**_predicted(notes), **under(plans[row["plan"]].units, devices)}
            rows.append({"size": size, "form": row["words"], **found, **about})
    return pd.DataFrame(rows)


def executed(raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """ms a graph of every executed plan, by size, and of the baseline a second time (A/A); a sample for each round."""
    rows = []
    for size, part in raced.groupby("size", sort=False):
        base = part[part["baseline"]].iloc[0]
        fixed = {"size": size, **_MS, "origin": "measured", "statistic": "median"}
        again = _over(base["words"], estimates.ratio(base["samples"], base["control"]))
        rows.append({**fixed, "form": CONTROL, "samples": base["control"], **again, **under(base["units"], devices)})
        for row in part.to_dict("records"):
            found = {"form": row["words"], "samples": row["samples"], "notes": _notes(row)}
            if not row["baseline"]:
                found |= {"parity_error": row["parity_error"]}
                found |= _over(base["words"], Estimate(row["ratio"], row["ci_low"], row["ci_high"], row["n"]))
            rows.append({**fixed, **found, **under(row["units"], devices)})
    return pd.DataFrame(rows)


def _over(baseline: str, found: Estimate) -> Fields:
    return {"baseline": baseline, "ratio": found.value, "ratio_low": found.low, "ratio_high": found.high}


def _notes(row: Mapping[str, Any]) -> list[str]:
    said = [note for note in row["notes"].split("; ") if note]
    return [*["the chosen plan"] * bool(row["chosen"]), *said]


def predicted(raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """ms a graph that were predicted of the same plans on the same stream, by size."""
    rows = []
    for row in raced.to_dict("records"):
        found = {"value": row["predicted_ms"], "low": row["predicted_low"], "high": row["predicted_high"]}
        about = {**_predicted(f"times of blocks {row['origin']}; a simulated stream"), **under(row["units"], devices)}
        rows.append({"size": row["size"], "form": row["words"], **found, "n": row["draws"], **about})
    return pd.DataFrame(rows)


def _predicted(notes: str) -> Fields:
    return {**_MS, "origin": "predicted", "statistic": "estimate", "interval": PREDICTION, "notes": notes}


def plan_error(raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """How far each prediction is off the executed time (% of it, either way), by size and plan."""
    note = by_units(raced)
    rows = []
    for row in raced.to_dict("records"):
        value, *ends = (100 * abs(row["predicted_ms"] / row[name] - 1) for name in ("ms", "ms_low", "ms_high"))
        least = 0.0 if row["ms_low"] <= row["predicted_ms"] <= row["ms_high"] else min(value, *ends)
        found = {"value": value, "low": least, "high": max(value, *ends), "n": row["n"]}
        key = {"size": row["size"], "plan": row["words"], "form": "predicted"}
        rows.append({**key, **_PERCENT, **found, "notes": note, **under(row["units"], devices)})
    return pd.DataFrame(rows)


def by_units(raced: pd.DataFrame) -> str:
    """How far predictions of plans of one unit are off, and how far those of several: these also need what units that
    run together cost each other."""
    parts = []
    for several, part in raced.groupby(raced["units"].map(len) > 1):
        fast = int((part["error"] < 0).sum())
        parts.append(
            f"plans of {'several units' if several else 'one unit'} {100 * part['error'].abs().median():.2g} % in the "
            f"median, {fast} of {len(part)} predicted too fast"
        )
    return ", ".join(parts)


def plan_coverage(by_tables: pd.DataFrame, raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """How far executed times lie beyond the 90 % interval that the tables alone give (% of its end; 0: within it).

    By size, plan and `fitted`, which says whether the tables hold times of that size. Nothing was measured at these
    sizes before these predictions.
    """
    both = by_tables.merge(raced[["size", "plan", "units", "ms", "n"]], on=["size", "plan"])
    rows = []
    for row in both.to_dict("records"):
        beyond = max(row["ms"] / row["predicted_high"] - 1, row["predicted_low"] / row["ms"] - 1, 0.0)
        key = {
            "size": row["size"],
            "plan": row["words"],
            "fitted": "yes" if row["fitted"] else "no",
            "form": "predicted",
        }
        found = {**_PERCENT, "interval": "none", "value": 100 * beyond, "n": row["n"]}
        found |= {"notes": "predicted by the tables alone, before anything was measured at this size"}
        rows.append({**key, **found, **under(row["units"], devices)})
    return pd.DataFrame(rows)


def plan_regret(raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """How much longer the chosen plan takes than the best of all executed ones (%), by size, and at the worst size.

    The best of the others is picked by every other round and judged by the rest; where it is no faster, there is no
    regret. What the control shows beyond 1 is in the interval.
    """
    rows, found = [], []
    for size, part in raced.groupby("size", sort=False):
        chosen, others = part[part["chosen"]].iloc[0], part[~part["chosen"]]
        ratio, rival = slower(chosen, others, _floor(part))
        regret = [None if end is None else 100 * max(0.0, end - 1) for end in (ratio.value, ratio.low, ratio.high)]
        found.append(Estimate(*regret, ratio.n))
        notes = f"against {rival['words']}, the fastest of {len(others)} others"
        rows.append(
            {"size": size, "form": "chosen", **_of(found[-1]), "notes": notes, **under(chosen["units"], devices)}
        )
    worst = Estimate(*(_most([getattr(one, end) for one in found]) for end in ("value", "low", "high")), found[0].n)
    last = rows[int(np.argmax([one.value for one in found]))]
    notes = f"{last['size']}, {last['notes']}; chosen on every other round and judged on the rest"
    return pd.DataFrame([*rows, {**last, **_of(worst), "size": "all", "form": WORST, "notes": notes}])


def _of(found: Estimate) -> Fields:
    return {**_PERCENT, "value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _most(ends: Sequence[float | None]) -> float | None:
    """The largest: which size is the worst was seen in the same samples, so its own interval would be too narrow."""
    return None if None in ends else max(ends)


def plan_gain(raced: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """How many times as fast the chosen plan is as the best of one unit, by size; what else it ought to be held against
    is not raced, and the row that would need it says so."""
    rows = []
    for size, part in raced.groupby("size", sort=False):
        chosen, alone = part[part["chosen"]].iloc[0], part[part["units"].map(len) == 1]
        ratio, rival = slower(chosen, alone, _floor(part))
        ends = (None if end is None else 1 / end for end in (ratio.value, ratio.high, ratio.low))
        fixed = {"size": size, "unit": "x", "better": "higher", "origin": "measured", "statistic": "estimate"}
        fixed |= under(chosen["units"], devices)
        found = {
            **_of(Estimate(*ends, ratio.n)),
            **fixed,
            "notes": f"over {rival['words']}, the fastest of {len(alone)} by every other round",
        }
        lacking = {"status": "unavailable", "reason": f"needs {PEERS}"}
        rows += [{"form": ONE_UNIT, **found}, {"form": ALL_PEERS, **fixed, **lacking}]
    return pd.DataFrame(rows)


def slower(chosen: pd.Series, rivals: pd.DataFrame, floor: float) -> tuple[Estimate, pd.Series]:
    """The chosen plan's time over that of the best of `rivals`, and that one: picked by the even rounds, judged by the
    odd ones, as in the ledger. `floor`: what the race's control shows beyond 1."""
    medians = [float(np.median(samples[::2])) for samples in rivals["samples"]]
    best = rivals.iloc[int(np.argmin(medians))]
    found = estimates.ratio(chosen["samples"][1::2], best["samples"][1::2])
    if found.low is None:
        return found, best
    return replace(found, low=found.low / floor, high=found.high * floor), best


def _floor(part: pd.DataFrame) -> float:
    base = part[part["baseline"]].iloc[0]
    return estimates.noise_floor(base["samples"], base["control"])


def at_run_time(choice: Choice, draws: int, whole: Done, in_parts: Done, devices: Devices) -> pd.DataFrame:
    """What was predicted and executed of graphs that come at run time, by size."""
    (size, other), rows = ("/".join(map(str, done.size)) for done in (whole, in_parts)), []
    found = {"value": choice.ms, "low": min(choice.low, choice.ms), "high": max(choice.high, choice.ms), "n": draws}
    notes = f"from graph to graph of a stream; looked up, {choice.origin}"
    rows.append({"size": size, "form": "looked up", **found, **_predicted(notes), **under(choice.plan.units, devices)})
    for at, done, form in (
        (size, whole, "one graph alone"),
        (other, in_parts, f"{in_parts.parts} parts, cut and loaded"),
    ):
        single = {**_MS, "origin": "measured", "statistic": "single", "value": done.ms, "n": 1}
        about = {"parity_error": done.parity_error, "notes": done.plan.words(), **under(done.plan.units, devices)}
        rows.append({"size": at, "form": form, **single, **about})
    return pd.DataFrame(rows)


def scenarios(found: pd.DataFrame, draws: int) -> pd.DataFrame:
    """ms a graph of the chosen plan and of the best single unit on machines that are not here: simulated."""
    about = {**_MS, "origin": "simulated", "statistic": "estimate", "interval": PREDICTION, "n": draws}
    about |= {"device": "CPU, simulated GPU and NPU", "runtime": "simulated", "precision": "float32", "threads": 1}
    rows = []
    for row in found.to_dict("records"):
        for form, words, names in (
            (CHOSEN, "words", ("ms", "ci_low", "ci_high")),
            (SINGLE, "one_unit", ("one_unit_ms", "one_unit_low", "one_unit_high")),
        ):
            numbers = dict(zip(("value", "low", "high"), (row[name] for name in names), strict=True))
            rows.append({"scenario": row["scenario"], "form": form, **numbers, **about, "notes": row[words]})
    return pd.DataFrame(rows)


def plan_counts() -> dict[str, int]:
    """How many plans there are of a CPU, a GPU and an NPU of which the first two may share a graph at one ratio, of at
    most two blocks and at least two units: enumerated, with S4's NPU, which runs all stages, and with a lesser one."""
    machine = Space(("CPU", "GPU", "NPU"), sharing=(frozenset({"CPU", "GPU"}),), ratios=(0.5,))
    lesser = replace(machine, unable={"NPU": {3, 4}})
    return {ITS_NPU: len(_plans(machine)), LESSER_NPU: len(_plans(lesser))}


def _plans(machine: Space) -> list[Plan]:
    return [machine.check(plan) for plan in machine.candidates(max_blocks=2)]
