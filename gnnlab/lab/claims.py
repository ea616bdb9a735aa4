"""The catalogue of claims, what the rows of a run say of one by its rule, and the verdict that an interval gives on it.

    evidence = evaluate(catalogue()["gat.compile"], table)   # evidence.estimate, with its interval; .how, in words
    verdict(catalogue()["gat.compile"], (0.99, 1.05))        # Verdict.REFUTED

A verdict is a pure function of the claim and the 95 % interval, and a statement that is true of every point of that
interval: noise can only make a row inconclusive (docs/decisions/0004). Goals are no claims and have words of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import AllowInfNan, BeforeValidator, Field, model_validator

from gnnlab.errors import GnnlabError, Untestable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import STATISTICS, Estimate

from .ratios import of_cells, usable
from .table import Row, Strict, Table
from .text import exact

Range = tuple[float, float]
Names = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]

TOLERANCE = 1.05  # a claimed range is widened by this factor on each side
NO_GAIN_BELOW = 1.02  # "some gain" is refuted by an interval that reaches down to 1 and stays below this
REFUTED_BELOW = 0.25  # of the claimed effect, in logarithms

UNITS = {"ratio": "x", "memory_ratio": "x", "hours": "h", "minutes": "min", "percent": "%"}  # others: as the metric
RATIOS = ("ratio", "memory_ratio")  # 1 is no effect, more is better
TIMES = ("hours", "minutes")  # less is better


class Verdict(StrEnum):
    """What the lab says of a claim (the first six) or of a goal of its own (the last three)."""

    REPRODUCED = "reproduced"
    EXCEEDED = "exceeded"
    WEAKER = "weaker"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    UNTESTABLE = "untestable here"
    MET = "met"
    MISSED = "missed"
    OPEN = "open"


class Rule(Strict):
    """Which rows of the table decide a claim, and by what statistic of them.

    "ratio" is the geometric mean over the cells of how many times as fast `variant` is as `over`, the baseline unless
    named (`ratios.of_cells`). Both may be lists: of these the fastest counts, chosen in each cell on every other round
    and judged on the rest. "value" is that of one row. "same verdict" is the share of claims that several runs agree
    on. `where` keeps the rows whose keys have these values. `cells` is the number of cells that the claim speaks of;
    with fewer there is no verdict. `equals` are counts by variant; all must hold.
    """

    study: str
    variant: Names = Field(default_factory=list)
    over: Names = Field(default_factory=list)
    stat: Literal["ratio", "value", "same verdict"] = "ratio"
    where: dict[str, Any] = Field(default_factory=dict)
    cells: int = 1
    equals: dict[str, float] | None = None


class Claim(Strict):
    """One row of the catalogue: what is claimed, by whom, and the rule that decides it.

    `claimed` is None where a gain is claimed without a number. A goal has `at_least` or `at_most` instead. `margin` is
    how far from `claimed` still is no difference, for claims of a value rather than of an effect.
    """

    id: str
    notebook: str = Field(pattern=r"^\d\d$")
    metric: Literal["ratio", "memory_ratio", "hours", "minutes", "percent", "share", "count", "difference"]
    statement: str
    of: Rule
    source: str = "goal"
    claimed: tuple[float, Annotated[float, AllowInfNan(True)]] | None = None
    at_least: float | None = None
    at_most: float | None = None
    margin: float | None = None
    needs: str | None = None
    processor: Literal["cpu", "cuda"] | None = None  # the kind of device whose rows count; None: any

    @property
    def device(self) -> str | None:
        """The kind of device, as rows name it, whose rows count."""
        kind = "cuda" if self.needs == "cuda" else self.processor
        return kind and kind.upper()

    @property
    def unit(self) -> str:
        return UNITS.get(self.metric, self.metric)

    @property
    def is_goal(self) -> bool:
        return self.at_least is not None or self.at_most is not None

    @property
    def bounds(self) -> tuple[float | None, float | None] | None:
        """The claimed range, open on one side for a goal."""
        return (self.at_least, self.at_most) if self.is_goal else self.claimed

    @model_validator(mode="after")
    def _judgeable(self) -> Claim:
        if self.is_goal or self.of.equals is not None:
            return self
        if self.claimed is None and self.metric not in RATIOS:
            raise ValueError(f"{self.id}: only a ratio can claim a gain without a number")
        value = self.claimed == (1, 1) or self.metric in ("share", "difference", "percent")
        if value and self.margin is None:
            raise ValueError(f"{self.id}: a {self.metric} of {self.claimed} needs a margin, or counts (equals)")
        return self


@cache
def catalogue() -> dict[str, Claim]:
    """Every claim by its id, in the catalogue's order: those of the documents, then the lab's goals."""
    rows = [{"source": source} | row for source, of in _catalogue_file()["claims"].items() for row in of]
    return {row["id"]: Claim(**row) for row in rows}


def documents() -> Mapping[str, Mapping[str, str]]:
    """The source documents by their number: `name` (S0), `title`, and `about`, what each is."""
    return _catalogue_file()["documents"]


@cache
def _catalogue_file() -> dict[str, Any]:
    return yaml.safe_load((files("gnnlab.lab") / "claims.yaml").read_text(encoding="utf-8"))


# ---- the verdict on an interval -------------------------------------------------------------------------------------


def verdict(claim: Claim, interval: Range | None) -> Verdict:
    """The verdict on `claim` by the 95 % interval of what was measured; None where there is no interval.

    The interval has to lie wholly within the claimed range, widened by `TOLERANCE` or by the claim's margin, wholly
    below or wholly above it. "refuted" is a part of "weaker", so widening an interval never strengthens the verdict.
    """
    unsure = Verdict.OPEN if claim.is_goal else Verdict.INCONCLUSIVE
    if interval is None:
        return unsure
    low, high = interval
    if not low <= high:
        raise GnnlabError(f"interval {interval}: its ends must be numbers in order")
    within, below, above = Verdict.REPRODUCED, Verdict.REFUTED, Verdict.REFUTED
    if claim.bounds is None:  # a gain without a number: refuted where it reaches down to none and stays small
        return within if low > 1 else below if high < NO_GAIN_BELOW else unsure
    least, most = claim.bounds
    least, most = -math.inf if least is None else least, math.inf if most is None else most
    if claim.is_goal:
        within, below, above = Verdict.MET, Verdict.MISSED, Verdict.MISSED
    elif claim.margin is not None or claim.metric == "count":  # a value is claimed, not an effect
        least, most = least - (claim.margin or 0.0), most + (claim.margin or 0.0)
    elif claim.metric in TIMES:
        below, above = Verdict.EXCEEDED, Verdict.WEAKER
        least, most = least / TOLERANCE, most * TOLERANCE
    else:
        quarter = least**REFUTED_BELOW  # of the effect's logarithm
        below, above = Verdict.REFUTED if high < quarter else Verdict.WEAKER, Verdict.EXCEEDED
        least, most = max(least / TOLERANCE, quarter), most * TOLERANCE
    if least <= low and high <= most:
        return within
    return below if high < least else above if low > most else unsure


# ---- the rule of a claim over the rows of a run ----------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What the rows of one run say of a claim: the figure, its rows, and how it was computed."""

    estimate: Estimate
    rows: Sequence[Row]
    how: str
    holds: bool | None = None  # of counts: are all as claimed?


def evaluate(claim: Claim, table: Table) -> Evidence:
    """What `table` says of `claim` by its rule. Raises `Untestable` with what it would need."""
    rule = claim.of
    among = table.select(rule.study, where=rule.where)
    here = [row for row in among if claim.device is None or row.device.startswith(claim.device)]
    if not here and (claim.needs or (among and claim.device)):
        cuda = "; params/gpu measures it there" * (claim.device == "CUDA")
        raise Untestable(f"needs {f'a {claim.device} device' if claim.device else claim.needs}{cuda}")
    if not here:
        wanted = "".join(f", {key} {value}" for key, value in rule.where.items())
        raise Untestable(f"needs rows of {rule.study}{wanted}, which were not measured here; params/full measures all")
    if rule.equals is not None:
        counted = [row for variant in rule.equals for row in usable(here, [variant])]
        how = "counted: " + ", ".join(f"{row.variant} {exact(row.value)}" for row in counted)
        holds = all(row.value == rule.equals[row.variant] for row in counted)
        return Evidence(counted[0].estimate, counted, how, holds)
    rows = usable(here, rule.variant, rule.cells)
    if rule.stat == "ratio":
        cells = of_cells(table, rows, among, rule.over)
        sides = list(zip(*cells, strict=True))[1:]
        variants, over = (dict.fromkeys(row.variant for row in side if row) for side in sides)
        where = f"geomean of {len(cells)} cells, " if len(cells) > 1 else ""
        names = " or ".join(variants) + f" over {' or '.join(over)}" * bool(over)
        how = f"{names}: {where}{min(cell.ratio.n for cell in cells)} rounds"
        return Evidence(estimates.geometric_mean([cell.ratio for cell in cells]), [cell.variant for cell in cells], how)
    if len(rows) > 1:
        raise Untestable(f"its rule names {len(rows)} rows of {rule.study}, not one")
    (row,) = rows
    sampled = row.n > 1 and row.statistic in STATISTICS
    return Evidence(row.estimate, rows, f"{row.statistic} of {row.n} samples" if sampled else row.origin.value)
