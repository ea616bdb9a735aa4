"""Executed plans beside their predictions, and beside what OpenVINO does with the whole layer by itself.

    variants = alternatives(layer, cases, models, count=16)     # {"HETERO": a call that gives the last result, ...}
    compared = Comparison(executed, {"1000x5000": ranking})     # executed: the study of a race of plans and variants
    compared.errors(), compared.gains()                         # rows for the lab
    compared.finding(with_unit)                                 # does planning pay?

`ALTERNATIVES` are what a user of OpenVINO tries first: one model, placed and overlapped by the runtime. HETERO and AUTO
have every device that OpenVINO sees here; streams are what its throughput hint makes of this CPU. The hand-built model
is run in the same ways. Threads are OpenVINO's own choice: all cores, as the plans of several devices beside them have,
while a plan of one device has one core.

The best of several is picked by every other round and judged by the rest, so that luck does not choose; what the A/A
control of a race shows beyond 1 is in the intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pandas as pd

from gnnlab import machine
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONFIDENCE, CONTROL, PREDICTION, Estimate
from gnnlab.openvino_core import HINTS, openvino_core
from gnnlab.plans.execute import CheckedGraph
from gnnlab.plans.plans import Plan, parse
from gnnlab.plans.rank import Ranking
from gnnlab.stages import devices
from gnnlab.stages.export import model_for
from gnnlab.stages.measure import Config
from gnnlab.stages.padding import InputAdapter
from gnnlab.workloads.staged import StagedLayer

EXPORTED, HAND_BUILT = "openvino:CPU", "openvino-handbuilt:CPU"
ALTERNATIVES = {  # the device whose model of all stages it runs, on which of OpenVINO's devices, with which hint
    "HETERO": (EXPORTED, "HETERO:{all}", "LATENCY"),
    "AUTO": (EXPORTED, "AUTO:{all}", "LATENCY"),
    "throughput streams": (EXPORTED, "CPU", "THROUGHPUT"),
    "hand-built, all cores": (HAND_BUILT, "CPU", "LATENCY"),
    "hand-built, throughput streams": (HAND_BUILT, "CPU", "THROUGHPUT"),
}
NEEDED = [variant for variant, (device, *_) in ALTERNATIVES.items() if device == EXPORTED]  # for `ALL`
ONE_DEVICE = "over plans of one device"
ALL = f"{ONE_DEVICE} and OpenVINO's own ways"
Call = Callable[[], np.ndarray]
_ESTIMATED = {"better": "lower", "statistic": "estimate"}


def alternatives(layer: StagedLayer, cases: Sequence[CheckedGraph], models: Path | str, count: int) -> dict[str, Call]:
    """`ALTERNATIVES` as calls: `count` graphs in turn, the last result (N, F'). Those are left out whose model of the
    whole layer was not exported. `ParityError`: what one makes of a graph is wrong.
    """
    nodes, edges = cases[0].size
    names = ",".join(sorted(openvino_core().available_devices, key=lambda name: name.startswith("CPU")))
    calls = {}
    for name, (device, where, hint) in ALTERNATIVES.items():
        config = Config(layer.name, layer.features, nodes, edges, 1, len(layer.stages), device)
        model = model_for(devices.find(device), config, models)
        if model is None:
            continue
        graphs = [{value: tensor.numpy() for value, tensor in case.graph.items()} for case in cases]
        inputs = [InputAdapter(layer, model, nodes, edges).inputs(graph) for graph in graphs]
        options = {"INFERENCE_PRECISION_HINT": HINTS["float32"], "PERFORMANCE_HINT": hint}
        compiled = openvino_core().compile_model(model.path, where.format(all=names), options)
        run = partial(_streamed, ov.AsyncInferQueue(compiled), inputs, nodes)
        for place, case in enumerate(cases):
            case.require_equal(run(place + 1), name)
        calls[name] = partial(run, count)
    return calls


def _streamed(queue: ov.AsyncInferQueue, inputs: Sequence[dict[str, np.ndarray]], nodes: int, count: int) -> np.ndarray:
    """As many requests at once as the hint asks for. Rows behind the nodes are a hand-built model's."""
    last: list[np.ndarray] = []
    queue.set_callback(lambda request, keep: keep and last.append(np.array(request.get_output_tensor().data[:nodes])))
    for place in range(count):
        queue.start_async(inputs[place % len(inputs)], place == count - 1, share_inputs=True)
    queue.wait_all()
    return last[0]


def conditions_of(variant: str) -> dict[str, Any]:
    """What a plan in words, or one of `ALTERNATIVES`, computes under, as fields of a row. The device is left out where
    it is this machine's CPU alone."""
    if variant in ALTERNATIVES:
        return {"runtime": f"OpenVINO {machine.version('openvino')}", "threads": machine.cores()}
    used = [devices.find(name) for name in parse(variant).devices]
    runtimes = sorted({f"{device.runtime} {machine.version(device.runtime) or ''}".strip() for device in used})
    fields = {"runtime": ", ".join(runtimes), "threads": sum(device.processor == "CPU" for device in used)}
    chips = dict.fromkeys("CPU" if d.processor == "CPU" else f"{d.processor} ({d.name})" for d in used)
    return fields | ({"device": " and ".join(chips)} if set(chips) != {"CPU"} else {})


def expected_rows(ranking: Ranking, plans: Sequence[Plan]) -> pd.DataFrame:
    """ms a graph that some plans are expected to take, a row each."""
    table, variants = ranking.table.loc[plans].rename(columns={"ms": "value"}), [plan.words() for plan in plans]
    fixed = {"unit": "ms", "origin": "predicted", "interval": PREDICTION, "n": 1, **_ESTIMATED}
    return table.assign(variant=variants, **fixed).join(pd.DataFrame(map(conditions_of, variants), table.index))


class Comparison:
    """`executed`: the study of a race over sizes, which has a `frame` and the `samples` of its rows; its baseline is a
    plan. `rankings`: of these sizes."""

    def __init__(self, executed: Any, rankings: Mapping[str, Ranking]) -> None:
        frame = executed.frame.assign(samples=executed.samples)
        self.frame, self.rankings = frame[frame["status"] == "ok"], rankings
        self.plans = self.frame[~self.frame["variant"].isin([CONTROL, *ALTERNATIVES])]

    def errors(self) -> pd.DataFrame:
        """How far each prediction is off the executed time (% of it, either way): rows by size and plan.

        What was measured of devices one by one does not know how they slow each other down. So the expected time is
        multiplied by what plans at the other sizes took over theirs, in the median of those of one device, or of
        several. Of a single size it stays as it is.
        """
        rows = []
        for ran in self.plans.itertuples():
            expected, factor = self._expected(ran.size, ran.variant), self._factor(ran.size, ran.variant)
            predicted = factor * expected
            off, *ends = (100 * abs(predicted / ms - 1) for ms in (ran.value, ran.low, ran.high))
            low = 0.0 if ran.low <= predicted <= ran.high else min(ends)
            row = {"size": ran.size, "plan": ran.variant, "value": off, "low": low, "high": max(ends), "n": ran.n}
            notes = [f"expected {expected:.3g} ms a graph, times {factor:.3g}; executed {ran.value:.3g} ms"]
            rows.append({**row, "notes": notes, **conditions_of(ran.variant)})
        fixed = {"variant": "predicted", "unit": "%", "origin": "measured", "interval": CONFIDENCE, **_ESTIMATED}
        return pd.DataFrame(rows).assign(**fixed)

    def _expected(self, size: str, variant: str) -> float:
        return float(self.rankings[size].table.loc[parse(variant), "ms"])

    def _factor(self, size: str, variant: str) -> float:
        """Executed over expected, the median at the other sizes of plans with as many devices (one, or several)."""
        one = len(parse(variant).devices) == 1
        others = self.plans[self.plans["size"] != size]
        others = others[[(len(parse(other).devices) == 1) == one for other in others["variant"]]]
        ratios = [ran.value / self._expected(ran.size, ran.variant) for ran in others.itertuples()]
        return float(np.median(ratios)) if ratios else 1.0

    def gains(self) -> pd.DataFrame:
        """How many times as fast the fastest plan is as the best of one device, and as the best of these and of the
        alternatives: rows by size; where an alternative did not run, one that says what it needs."""
        rows = []
        for size, plans in self.plans.groupby("size", sort=False):
            chosen, at_size = _fastest(plans), self.frame[self.frame["size"] == size]
            alone = plans[[len(parse(variant).devices) == 1 for variant in plans["variant"]]]
            others = at_size[at_size["variant"].isin(ALTERNATIVES)]
            row = {"size": size, "plan": chosen["variant"], **conditions_of(chosen["variant"])}
            if len(alone):
                rows.append({**row, "variant": ONE_DEVICE, **_gain(chosen, _fastest(alone), at_size)})
            if lacking := [variant for variant in NEEDED if variant not in set(others["variant"])]:
                needs = f"needs OpenVINO's {', '.join(lacking)} in the race: export 1-7 (blocks of notebook 04)"
                rows.append({**row, "variant": ALL, "status": "unavailable", "reason": needs})
            else:
                rows.append({**row, "variant": ALL, **_gain(chosen, _fastest(pd.concat([alone, others])), at_size)})
        fixed = {"unit": "x", "origin": "measured", "interval": CONFIDENCE, **_ESTIMATED, "better": "higher"}
        return pd.DataFrame(rows).assign(**fixed)

    def finding(self, written: Callable[[Estimate, str], tuple[str, str]]) -> str:
        """Does planning pay? One sentence of the numbers of `gains`: over the alternatives where all of them ran.
        `written`: how an estimate and its interval are written, as `gnnlab.lab.text.with_unit` does on the same page.
        """
        gains = self.gains().dropna(subset="value").groupby("size", sort=False).tail(1)
        best = gains.loc[gains["value"].idxmax()]
        pays, loses = (gains["low"] > 1).sum(), (gains["high"] < 1).sum()
        if len(gains) > 1:
            said = f"Planning pays at {pays} of {len(gains)} sizes; at {best['size']}"
        else:
            verdict = "pays" if pays else "does not pay" if loses else "makes no measurable difference"
            said = f"Planning {verdict} at {best['size']}:"
        value, interval = written(Estimate(*best[["value", "low", "high"]], int(best["n"])), "x")
        return f"{said} the fastest plan, {best['plan']}, is {value} ({interval}) as fast as {best['rival']}."


def _fastest(raced: pd.DataFrame) -> pd.Series:
    """By every other round."""
    return raced.iloc[int(np.argmin([np.median(samples[::2]) for samples in raced["samples"]]))]


def _gain(chosen: pd.Series, rival: pd.Series, at_size: pd.DataFrame) -> dict[str, Any]:
    """The rival's time over that of the chosen plan, by the rounds that did not pick them."""
    baseline = at_size[at_size["baseline"].isna()].iloc[0]
    control = at_size[at_size["variant"] == CONTROL].iloc[0]
    floor = estimates.noise_floor(baseline["samples"], control["samples"])
    gain = estimates.ratio(rival["samples"][1::2], chosen["samples"][1::2]).widened(floor)
    notes = [f"{chosen['variant']} over {rival['variant']}, each the fastest by every other round"]
    return {**asdict(gain), "notes": notes, "rival": rival["variant"]}
