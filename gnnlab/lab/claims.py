"""The catalogue of claims, and the verdict that an interval gives on a claim.

    verdict(catalogue()["gat.compile"], (0.99, 1.05))  ->  Verdict.REFUTED

A verdict is a pure function of the claim and the 95 % interval, and a statement that is true of every point of that
interval: noise can only make a row inconclusive (docs/decisions/0004). Goals are no claims and have words of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from gnnlab.errors import GnnlabError

from .table import Strict

Range = tuple[float, float]

TOLERANCE = 1.05  # a claimed range is widened by this factor on each side
NO_GAIN_BELOW = 1.02  # "some gain" is refuted by an interval that reaches down to 1 and stays below this
REFUTED_BELOW = 0.25  # of the claimed effect, in logarithms

UNITS = {
    "ratio": "x",
    "memory_ratio": "x",
    "share": "share",
    "count": "count",
    "difference": "difference",
    "hours": "h",
    "minutes": "min",
    "percent": "%",
}
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

    `form` and `over` (the baseline, unless named) may be lists: of these the fastest counts, chosen in each cell on
    every other round and judged on the rest. `where` keeps the rows whose keys have these values. `cells` is the number
    of cells that the claim speaks of; with fewer there is no verdict. `equals` are counts by form; all must hold.
    """

    study: str
    form: str | list[str] | None = None
    over: str | list[str] | None = None
    stat: Literal["value", "ratio", "throughput", "worst ratio", "geomean", "mean", "median", "share"] = "value"
    where: dict[str, Any] = Field(default_factory=dict)
    cells: int | None = None
    cluster: str | None = None  # key whose values share a graph or a fit
    within: float | None = None  # for "share": the largest magnitude that counts
    equals: dict[str, float] | None = None
    logic: str | None = None  # a function of gnnlab.lab.ledger, for a claim with a logic of its own

    @model_validator(mode="after")
    def _complete(self) -> Rule:
        if self.stat == "share" and self.within is None:
            raise ValueError(f"a share of {self.study} needs the largest magnitude that counts (within)")
        return self


class Claim(Strict):
    """One row of the catalogue: what is claimed, by whom, and the rule that decides it.

    `claimed` is None where a gain is claimed without a number. A goal has `at_least` or `at_most` instead. `margin` is
    how far from `claimed` still is no difference, for claims of a value rather than of an effect.
    """

    id: str
    notebook: str = Field(pattern=r"^\d\d$")
    metric: str
    statement: str
    of: Rule
    source: str = "goal"
    claimed: Range | None = None
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
        return UNITS[self.metric]

    @property
    def is_goal(self) -> bool:
        return self.at_least is not None or self.at_most is not None

    @property
    def bounds(self) -> tuple[float | None, float | None] | None:
        """The claimed range, open on one side for a goal."""
        return (self.at_least, self.at_most) if self.is_goal else self.claimed

    @model_validator(mode="after")
    def _judgeable(self) -> Claim:
        if self.metric not in UNITS:
            raise ValueError(f"{self.id}: metric {self.metric!r} is none of {', '.join(UNITS)}")
        plain = not self.is_goal and self.of.equals is None
        if plain and self.claimed is None and self.metric not in RATIOS:
            raise ValueError(f"{self.id}: only a ratio can claim a gain without a number")
        if plain and self.claimed == (1, 1) and self.margin is None:
            raise ValueError(f"{self.id}: a claim of no effect names its margin")
        if plain and self.metric in ("share", "difference", "percent") and self.margin is None:
            raise ValueError(f"{self.id}: a {self.metric} is claimed with a margin, or as counts (equals)")
        return self


@cache
def catalogue() -> dict[str, Claim]:
    """Every claim by its id, in the catalogue's order: those of the seeds, then the lab's goals."""
    data = yaml.safe_load((files("gnnlab.lab") / "claims.yaml").read_text(encoding="utf-8"))
    return {row["id"]: Claim(**row) for row in data["seeds"] + data["goals"]}


def documents() -> Mapping[str, str]:
    """What the source documents are, by their number."""
    return yaml.safe_load((files("gnnlab.lab") / "claims.yaml").read_text(encoding="utf-8"))["documents"]


def verdict(claim: Claim, interval: Range | None) -> Verdict:
    """The verdict on `claim` by the 95 % interval of what was measured; None where there is no interval."""
    if interval is None:
        return Verdict.OPEN if claim.is_goal else Verdict.INCONCLUSIVE
    low, high = interval
    if not low <= high:
        raise GnnlabError(f"interval {interval}: its ends must be numbers in order")
    if claim.is_goal:
        least = -math.inf if claim.at_least is None else claim.at_least
        most = math.inf if claim.at_most is None else claim.at_most
        return _within(least, most, low, high, Verdict.MET, Verdict.MISSED, Verdict.OPEN)
    if claim.claimed is None:  # a gain without a number: refuted where it reaches down to none and stays small
        refuted = Verdict.REFUTED if high < NO_GAIN_BELOW else Verdict.INCONCLUSIVE
        return Verdict.REPRODUCED if low > 1 else refuted
    if claim.margin is not None or claim.metric == "count":  # a value is claimed
        least, most = claim.claimed[0] - (claim.margin or 0.0), claim.claimed[1] + (claim.margin or 0.0)
        return _within(least, most, low, high, Verdict.REPRODUCED, Verdict.REFUTED, Verdict.INCONCLUSIVE)
    return _effect(claim.claimed, low, high, lower_is_better=claim.metric in TIMES)


def _within(least: float, most: float, low: float, high: float, yes: Verdict, no: Verdict, across: Verdict) -> Verdict:
    """Does the interval lie wholly within two bounds, wholly beyond them, or across one?"""
    if least <= low and high <= most:
        return yes
    return no if high < least or low > most else across


def _effect(claimed: Range, low: float, high: float, *, lower_is_better: bool) -> Verdict:
    """An effect is claimed. The zones in which an interval must lie wholly; those of two verdicts overlap in one case,
    refuted within weaker, so that a wider interval never says more."""
    if lower_is_better:
        if claimed[0] / TOLERANCE <= low and high <= claimed[1] * TOLERANCE:
            return Verdict.REPRODUCED
        if high < claimed[0] / TOLERANCE:
            return Verdict.EXCEEDED
        return Verdict.WEAKER if low > claimed[1] * TOLERANCE else Verdict.INCONCLUSIVE
    quarter = claimed[0] ** REFUTED_BELOW  # of the effect's logarithm
    least = max(claimed[0] / TOLERANCE, quarter)
    if high < quarter:
        return Verdict.REFUTED
    if high < least:
        return Verdict.WEAKER
    if least <= low and high <= claimed[1] * TOLERANCE:
        return Verdict.REPRODUCED
    return Verdict.EXCEEDED if low > claimed[1] * TOLERANCE else Verdict.INCONCLUSIVE
