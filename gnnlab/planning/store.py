"""Plans compiled for classes of sizes and kept as JSON; at run time a graph's own size is looked up between them.

    found = compiled(path, planner, sizes, costs.made_from)       # read where it was made from the same, else made anew
    choice = found.choose(nodes=4000, edges=9000)
    choice.plan, choice.ms, choice.table

For each class the times, regrets and origins of all plans that are good somewhere are kept. Between classes they are
interpolated linearly in log nodes and log edges, over the triangles that the classes span; beyond them nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, TypeAdapter

from gnnlab.campaign import wanted_cells
from gnnlab.errors import GnnlabError
from gnnlab.files import digest, read_sealed, write_sealed
from gnnlab.planning.calibration import Calibration
from gnnlab.planning.costs import Shares
from gnnlab.planning.planning import DRAWS, PREDICTED, Planner, conditions
from gnnlab.planning.plans import Plan, parse
from gnnlab.prediction.measured import Hull, Size

SCHEMA_VERSION = 1
KEPT = 6  # plans of a class, besides the chosen one and the best of one unit
_NUMBERS = ("ms", "low", "high", "regret_p95")
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class SizeClass:
    """What is known of each plan at one size: ms with its interval, regret_p95, origin."""

    __pydantic_config__ = _STRICT

    nodes: int
    edges: int
    ms: tuple[NotNegative, ...]
    low: tuple[NotNegative, ...]
    high: tuple[NotNegative, ...]
    regret_p95: tuple[NotNegative, ...]
    origin: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """The plan for a graph; `table`: every plan that was weighed, best first, with plan, words, ms, low, high,
    regret_p95, units, chosen. `origin`: of the times that it was chosen by."""

    size: Size
    plan: Plan
    ms: float
    low: float
    high: float
    origin: str
    table: pd.DataFrame

    def row(self) -> dict[str, Any]:
        """What was looked up, as a row for the one table."""
        found = {"value": self.ms, "low": min(self.low, self.ms), "high": max(self.high, self.ms), "n": DRAWS}
        notes = [self.plan.words(), "from graph to graph of a stream", f"looked up, {self.origin}"]
        key = {"size": "/".join(map(str, self.size)), "form": "looked up", "notes": notes}
        return {**key, **found, **PREDICTED, **conditions(self.plan.units)}


@dataclass(frozen=True)
class Compiled:
    """Plans for sizes. `fingerprint`: of all that they were made from; `calibration`: what executed plans taught."""

    __pydantic_config__ = _STRICT

    fingerprint: str
    objective: str
    calibration: Calibration
    plans: tuple[str, ...]
    classes: tuple[SizeClass, ...]

    def choose(self, nodes: int, edges: int, plan: Plan | None = None) -> Choice:
        """The plan for a graph of this size, or `plan` beside the others.

        Raises:
            GnnlabError: the size lies outside those that plans were compiled for, or `plan` is not among these.
        """
        (shares,) = Hull([(c.nodes, c.edges) for c in self.classes]).weights([(nodes, edges)])
        if not np.isfinite(shares).all():
            known = ", ".join(f"{c.nodes}/{c.edges}" for c in self.classes)
            raise GnnlabError(
                f"{nodes} nodes and {edges} edges lie outside the sizes that plans were compiled for ({known}); "
                "measure larger ones (notebooks 05 and 06), or plan this size by itself"
            )
        found = {name: shares @ np.array([getattr(c, name) for c in self.classes]) for name in _NUMBERS}
        table = pd.DataFrame(found | {"plan": self.plans, "words": [parse(plan).words() for plan in self.plans]})
        table["units"] = [len(parse(plan).units) for plan in self.plans]
        if plan is not None and str(plan) not in self.plans:
            raise GnnlabError(f"plan {plan} is not among the {len(self.plans)} compiled ones; compile it for this size")
        every = range(len(self.plans)) if plan is None else [self.plans.index(str(plan))]
        best = min(every, key=lambda i: (found["regret_p95"][i], found["ms"][i]))
        table["chosen"] = np.arange(len(self.plans)) == best
        near = {c.origin[best] for c, weight in zip(self.classes, shares, strict=True) if weight > 0}
        same = len(near) == 1 and shares.max() > 1 - 1e-12
        worse = (origin for origin in ("simulated", "extrapolated") if origin in near)
        origin = near.pop() if same else next(worse, "interpolated")
        numbers = (float(found[name][best]) for name in _NUMBERS[:3])
        return Choice(
            (nodes, edges), parse(self.plans[best]), *numbers, origin, table.sort_values("ms", ignore_index=True)
        )


def compile(
    planner: Planner,
    sizes: Sequence[Size],
    *,
    plans: Sequence[Plan] | None = None,
    shares: Shares | None = None,
    fingerprint: str = "",
) -> Compiled:
    """Rank all plans, or `plans`, at each of these sizes and keep those that are good at one of them.

    `shares`: how the graph is cut for units that share it, where there is one graph.

    Raises:
        GnnlabError: no sizes, no plan whose times are known, or a plan that breaks a rule.
    """
    if not sizes:
        raise GnnlabError("no sizes to compile plans for; give at least one")
    ranked = [planner.rank(*size, plans=plans, shares=shares) for size in dict.fromkeys(sizes)]
    kept = list(plans or dict.fromkeys(plan for ranking in ranked for plan in ranking.top(KEPT)))
    columns = {"ms": "ms", "low": "ci_low", "high": "ci_high", "regret_p95": "regret_p95"}
    classes = []
    for ranking in ranked:
        table = ranking.table(kept).set_index("plan").loc[[str(plan) for plan in kept]]
        numbers = {name: tuple(table[column].astype(float)) for name, column in columns.items()}
        classes.append(SizeClass(ranking.nodes, ranking.edges, **numbers, origin=tuple(table["origin"])))
    return Compiled(fingerprint, planner.objective, planner.calibration, tuple(map(str, kept)), tuple(classes))


def compiled(path: Path, planner: Planner, sizes: Sequence[Size], made_from: str) -> Compiled:
    """The plans kept at `path`, if they were made from the same; else they are compiled for `sizes` and kept there."""
    fingerprint = fingerprint_of(planner, made_from)
    try:
        found = read(path, fingerprint)
        if {(c.nodes, c.edges) for c in found.classes} == set(sizes):
            return found
    except GnnlabError:  # missing, damaged or stale: all the same to who can make it anew
        pass
    found = compile(planner, sizes, fingerprint=fingerprint)
    write(path, found)
    return found


def fingerprint_of(planner: Planner, made_from: str) -> str:
    """What the planner plans with, the digest of the tables, and the code that plans."""
    space, machine = planner.space, planner.machine
    return digest(
        {
            "code": wanted_cells.code("gnnlab.planning.planning"),
            "layer": planner.model.layer.fingerprint(),
            "units": list(space.units),
            "unable": {unit: sorted(stages) for unit, stages in space.unable.items()},
            "sharing": sorted(sorted(group) for group in space.sharing),
            "ratios": list(space.ratios),
            "machine": [machine.cores, sorted(machine.devices)],
            "calibration": asdict(planner.calibration),
            "planner": [planner.objective, planner.max_blocks, planner.draws, planner.seed],
            "tables": made_from,
        }
    )


def write(path: Path, compiled: Compiled) -> None:
    """Raises `GnnlabError` when the disk refuses; what was there before is then unchanged."""
    write_sealed(path, {"schema_version": SCHEMA_VERSION, **asdict(compiled)})


def read(path: Path, fingerprint: str | None = None) -> Compiled:
    """Compiled plans; with `fingerprint` only those that were made from the same.

    Raises:
        GnnlabError: the file is missing, damaged, of another schema, or stale.
    """
    data = read_sealed(path, "compile plans anew (gnnlab run 07 --force)")
    try:
        if data.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError
        found = TypeAdapter(Compiled).validate_python(data)
        plans = [parse(plan) for plan in found.plans]
        numbers = {len(getattr(c, name)) for c in found.classes for name in (*_NUMBERS, "origin")}
        if not plans or numbers != {len(plans)}:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GnnlabError(f"{path} holds no plans of this version; compile them anew (gnnlab run 07 --force)") from None
    if fingerprint not in (None, found.fingerprint):
        raise GnnlabError(f"{path} was compiled from other tables, units or code; compile anew (gnnlab run 07 --force)")
    return found
