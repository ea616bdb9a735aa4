"""Which plan: all that are legal, ranked by their expected times.

    planner = Planner(costs, calibration=calibration)     # of the units that costs are known of, on this machine
    ranking = planner.rank(nodes=4000, edges=9000)
    ranking.table             # expected time with its interval, best first; one-unit plans among them
    ranking.chosen            # the plan with the smallest expected time

The time of a plan is that of a stream of `graphs` from the first that enters to the last that leaves, over `graphs`; of
one graph it is the latency. Where plans were executed, it is multiplied by what these took over what was expected, in
the median, with their 5 % and 95 % as its interval (`calibration`). Where none were, as on machines that are not here,
the interval has all times of blocks at their lower ends, and at their upper ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import PREDICTION
from gnnlab.planning.costs import LEAST_FIRST, Costs
from gnnlab.planning.plans import RATIOS, Plan, Space
from gnnlab.planning.steps import SEGMENTS, Work, places_of, stream, works_of
from gnnlab.prediction.predictor import MEASURED
from gnnlab.units import registry

PREDICTED = {"unit": "ms", "better": "lower", "origin": "predicted", "statistic": "estimate", "interval": PREDICTION}
PERCENTILES = (50, 5, 95)  # of executed over expected: the correction and its 90 % interval
CALIBRATION = ["size", "several", "timed", "ratio"]  # of a stream: several units? calls timed? executed over expected


def correction(calibration: pd.DataFrame, several: bool, timed: bool) -> tuple[float, float, float, int]:
    """Median, 5 %, 95 % and number of executed over expected times, of the streams that are most like a plan: of as
    many units (one, or several) by times of the same kind; else of as many units; else of all.

    `calibration`: a row for each executed stream (`CALIBRATION`).
    """
    alike = calibration[calibration["several"] == several]
    most = alike[alike["timed"] == timed]
    ratios = next(streams for streams in (most, alike, calibration) if len(streams))["ratio"]
    return *np.percentile(ratios, PERCENTILES).tolist(), len(ratios)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans at one size, best first.

    `table`, by plan: ms, low, high (90 %, around ms), n (executed streams that correct it, 1 where none do), factor
    (that correction), origin. `works`: of each plan.
    """

    planner: Planner
    table: pd.DataFrame
    works: Mapping[Plan, tuple[Work, ...]]

    @property
    def chosen(self) -> Plan:
        return self.table.index[0]

    @property
    def one_unit_plans(self) -> list[Plan]:
        """Those that leave everything to one unit, best first."""
        return [plan for plan in self.table.index if len(plan.units) == 1]

    @property
    def one_unit(self) -> Plan:
        """The best of these. `GnnlabError` where no unit can run it all."""
        if not self.one_unit_plans:
            raise GnnlabError("no unit has times for the whole layer, so there is no one-unit plan to compare with")
        return self.one_unit_plans[0]

    def rows(self, named: Mapping[str, Plan]) -> pd.DataFrame:
        """The expected time of some plans as rows for the one table, by the names of their forms."""
        rows = []
        for form, plan in named.items():
            at = self.table.loc[plan]
            value = {"value": at["ms"], "low": at["low"], "high": at["high"], "n": int(at["n"])}
            notes = [plan.words()] * (form != plan.words()) + [f"times of blocks {at['origin']}"]
            rows.append({"form": form, **value, **PREDICTED, **conditions(plan.units), "notes": notes})
        return pd.DataFrame(rows)

    def places(self, plan: Plan) -> dict[str, int | str]:
        """The core of each unit of a plan."""
        return self.planner.places(self.works[plan])

    def stream(self, plan: Plan) -> pd.DataFrame:
        """The `steps.SEGMENTS` of the stream, as long as executed plans make it."""
        segments = stream(self.works[plan], self.places(plan), self.planner.graphs)
        segments = pd.DataFrame(segments, columns=SEGMENTS)
        return segments.assign(**segments[["start_ms", "end_ms"]] * self.table.loc[plan, "factor"])


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans of the units of `costs` on a machine with so many `cores` (this one's), where any two that are no NPU
    may share a graph in the `ratios`. `graphs` of a stream; `max_blocks` of a plan; `calibration`: of `correction`, by
    streams of as many graphs.
    """

    costs: Costs
    graphs: int = 8
    ratios: Sequence[float] = RATIOS
    max_blocks: int = 2
    cores: int = field(default_factory=machine.cores)
    calibration: pd.DataFrame | None = None

    @cached_property
    def space(self) -> Space:
        """The plans that these units allow."""
        costs, stages = self.costs, len(self.costs.layer.stages)
        able = {unit: {stage for a, b in costs.blocks(unit) for stage in range(a, b + 1)} for unit in costs.units}
        unable = {unit: set(range(1, stages + 1)) - able[unit] for unit in costs.units}
        pairs = itertools.combinations([unit for unit in costs.units if costs.processors[unit] != "NPU"], 2)
        return Space(costs.units, stages, unable, tuple(map(frozenset, pairs)), tuple(self.ratios))

    def rank(self, nodes: int, edges: int, also: Sequence[Plan] = ()) -> Ranking:
        """Every legal plan whose times are known, one unit's included, and those that a reader adds, for a graph of
        this size.

        Raises:
            GnnlabError: there is no such plan; one of `also` breaks a rule, or a time of it is not known.
        """
        works, rows, corrections, lacking = {}, [], {}, ""
        for plan in self.space.candidates(max_blocks=self.max_blocks, one_unit=True):
            try:
                works[plan] = works_of(plan, self.costs, nodes, edges)
            except GnnlabError as error:
                lacking = lacking or str(error)
        works |= {self.space.check(plan): works_of(plan, self.costs, nodes, edges) for plan in also}
        if not works:
            lacking = lacking or "cells are missing; measure them (notebook 05)"
            raise GnnlabError(f"no plan of {', '.join(self.costs.units)} can be costed: {lacking}")
        if self.calibration is not None:
            kinds = itertools.product((False, True), repeat=2)
            corrections = {kind: correction(self.calibration, *kind) for kind in kinds}
        for plan, each in works.items():
            ms, origin = self._stream_ms(each), min((work.origin for work in each), key=LEAST_FIRST.index)
            if corrections:
                factor, low, high, n = corrections[len(plan.units) > 1, origin == MEASURED]
            else:
                by_end = ([work._replace(ms=getattr(work, end)) for work in each] for end in ("low_ms", "high_ms"))
                (low, high), factor, n = (self._stream_ms(works_at_end) / ms for works_at_end in by_end), 1.0, 1
            ends = {"low": ms * min(low, factor), "high": ms * max(high, factor)}
            rows.append({"ms": ms * factor, **ends, "n": n, "factor": factor, "origin": origin})
        table = pd.DataFrame(rows, pd.Index(works, dtype=object)).sort_values("ms", kind="stable")
        return Ranking(self, table, works)

    def places(self, works: Sequence[Work]) -> dict[str, int | str]:
        """The core that suits each unit, where all of them work at once."""
        return places_of(works, self.cores, self.costs.devices)

    def _stream_ms(self, works: Sequence[Work]) -> float:
        return max(end_ms for *_, end_ms in stream(works, self.places(works), self.graphs)) / self.graphs


def conditions(names: Sequence[str]) -> dict[str, Any]:
    """What units compute under that are at work at once, one thread each, as fields of a row. The device is left out
    where it is this machine's CPU alone."""
    units = [registry.find(name) for name in names]
    runtimes = sorted({f"{u.runtime} {machine.version(u.runtime) or ''}".strip() for u in units})
    threads = sum(unit.processor == "CPU" for unit in units)
    fields = {"runtime": ", ".join(runtimes), "precision": "float32", "threads": threads}
    if threads == len(units):
        return fields
    chips = dict.fromkeys("CPU" if unit.processor == "CPU" else f"{unit.processor} ({unit.name})" for unit in units)
    return {**fields, "device": " and ".join(chips)}
