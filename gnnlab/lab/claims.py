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

import numpy as np
import yaml
from pydantic import AllowInfNan, Field, model_validator

from gnnlab.errors import GnnlabError, Untestable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL, Estimate

from .table import Interval, Row, Strict, Table
from .text import format_value

Range = tuple[float, float]

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

    `form` and `over` (the baseline, unless named) may be lists: of these the fastest counts, chosen in each cell on
    every other round and judged on the rest. With `peers` "right", one that failed in a cell is none there: it does not
    take the inputs, or computes something else. `where` keeps the rows whose keys have these values. `cells` is the
    number of cells that the claim speaks of; with fewer there is no verdict. `equals` are counts by form; all must
    hold.
    """

    study: str
    form: str | list[str] | None = None
    over: str | list[str] | None = None
    peers: Literal["all", "right"] = "all"
    stat: Literal["value", "ratio", "throughput", "worst ratio", "not slower", "geomean", "mean", "median", "share"] = (
        "value"
    )
    where: dict[str, Any] = Field(default_factory=dict)
    cells: int | None = None
    cluster: str | None = None  # key whose values share a graph or a fit
    within: float | None = None  # for "share": the largest magnitude that counts; "not slower": by so much at most
    equals: dict[str, float] | None = None
    logic: Literal["same_verdict"] | None = None  # what `ledger` decides over several runs, by no rule

    @property
    def margin(self) -> float:
        """By what share a form that is "not slower" may be slower."""
        return TOLERANCE - 1 if self.within is None else self.within


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
    return {row["id"]: Claim(**row) for row in _catalogue_file()["seeds"] + _catalogue_file()["goals"]}


def documents() -> Mapping[str, Mapping[str, str]]:
    """The source documents by their number: `name` (S0), `title`, and `about`, what each is."""
    return _catalogue_file()["documents"]


@cache
def _catalogue_file() -> dict[str, Any]:
    return yaml.safe_load((files("gnnlab.lab") / "claims.yaml").read_text(encoding="utf-8"))


# ---- the verdict on an interval -------------------------------------------------------------------------------------


def verdict(claim: Claim, interval: Range | None) -> Verdict:
    """The verdict on `claim` by the 95 % interval of what was measured; None where there is no interval."""
    if interval is None:
        return Verdict.OPEN if claim.is_goal else Verdict.INCONCLUSIVE
    low, high = interval
    if not low <= high:
        raise GnnlabError(f"interval {interval}: its ends must be numbers in order")
    if claim.is_goal:
        least, most = claim.at_least, claim.at_most
        least, most = -math.inf if least is None else least, math.inf if most is None else most
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
    """The verdict on a claimed effect: the interval must lie wholly inside one zone.

    "refuted" is a zone within that of "weaker", so widening an interval never strengthens the verdict.
    """
    least, most = claimed[0] / TOLERANCE, claimed[1] * TOLERANCE
    below, above = (Verdict.EXCEEDED, Verdict.WEAKER) if lower_is_better else (Verdict.WEAKER, Verdict.EXCEEDED)
    if not lower_is_better:
        quarter = claimed[0] ** REFUTED_BELOW  # of the effect's logarithm
        least = max(least, quarter)
        if high < quarter:
            return Verdict.REFUTED
    if high < least:
        return below
    if low > most:
        return above
    return Verdict.REPRODUCED if least <= low and high <= most else Verdict.INCONCLUSIVE


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
    everywhere = table.select(rule.study, where=rule.where)
    rows = [row for row in everywhere if claim.device is None or row.device.startswith(claim.device)]
    if not rows:
        raise Untestable(_nothing(claim, table))
    if rule.equals is not None:
        return _counts(rule, rows)
    if rule.stat in _OF_A_RACE:
        return _ratio(rule, rows, everywhere, table)
    chosen = _usable(rule, [row for row in rows if row.form == rule.form])
    if rule.stat == "value":
        if len(chosen) > 1:
            raise Untestable(f"its rule names {len(chosen)} rows of {rule.study}, not one")
        row = chosen[0]
        sampled = row.n > 1 and row.interval is not Interval.EXACT
        return Evidence(row.estimate, chosen, f"{row.statistic} of {row.n} samples" if sampled else row.origin.value)
    _enough(rule, chosen)
    cells = [row.estimate for row in chosen]
    if rule.stat == "geomean":
        return Evidence(estimates.geometric_mean(cells), chosen, f"geometric mean over {_cells(chosen)}")
    if rule.stat == "median" and rule.cluster is None:
        return Evidence(estimates.middle(cells), chosen, f"median over {_cells(chosen)}")
    clusters = [row.keys[rule.cluster] if rule.cluster else i for i, row in enumerate(chosen)]
    estimate = estimates.cluster_bootstrap([row.value for row in chosen], clusters, rule.stat, rule.within)
    count = len(set(clusters))
    what = f"share within {format_value(rule.within)}" if rule.stat == "share" and rule.within else rule.stat
    groups = f" in {count} cluster{'s' * (count != 1)} by {rule.cluster}" if rule.cluster else ""
    return Evidence(estimate, chosen, f"{what} of {len(chosen)} rows{groups}")


def _nothing(claim: Claim, table: Table) -> str:
    """Why no row decides a claim: its device or service is not here, or the parameters leave it out."""
    rule = claim.of
    elsewhere = table.select(rule.study)
    device = claim.device if elsewhere else None
    if device == "CUDA" or claim.needs == "cuda":
        return "needs a CUDA device; params/gpu measures it there"
    if device or claim.needs:
        return f"needs {claim.needs or f'a {device} device'}"
    wanted = " and ".join(f"{key} {value}" for key, value in rule.where.items() if elsewhere)
    which = f"{rule.study} with {wanted}" if wanted else rule.study
    return f"needs rows of {which}, which these parameters or this machine leave out; params/full measures all"


def _usable(rule: Rule, rows: list[Row]) -> list[Row]:
    """The rows with a value; where there is none, the reason of one that failed."""
    if not rows:
        forms = rule.form if isinstance(rule.form, str) else " or ".join(rule.form)
        raise Untestable(f"needs {forms} in {rule.study}; params/full measures it")
    if usable := [row for row in rows if row.status == "ok"]:
        return usable
    raise Untestable(f"{rows[0].form}: {rows[0].reason}")


def _enough(rule: Rule, cells: Sequence[Any]) -> None:
    if rule.cells is not None and len(cells) < rule.cells:
        raise Untestable(f"{len(cells)} of the {rule.cells} cells that are claimed were measured; params/full has all")


def _counts(rule: Rule, rows: list[Row]) -> Evidence:
    by_form = {row.form: row for row in _usable(rule, rows)}
    if missing := [form for form in rule.equals if form not in by_form]:
        raise Untestable(f"needs the count of {', '.join(missing)}")
    counted = [by_form[form] for form in rule.equals]
    how = "counted: " + ", ".join(f"{row.form} {format_value(row.value)}" for row in counted)
    holds = all(row.value == rule.equals[row.form] for row in counted)
    first = counted[0].value
    return Evidence(Estimate(first, first, first, 1), counted, how, holds)


def _cells(rows: Sequence[Row]) -> str:
    """The cells in words: "3 cells by size"."""
    keys = [key for key in rows[0].keys if len({row.keys.get(key) for row in rows}) > 1]
    return f"{len(rows)} cells by {' and '.join(keys)}" if keys else "one cell"


# ---- of a race -------------------------------------------------------------------------------------------------------

_OF_A_RACE = {
    "ratio": "geometric mean",
    "throughput": "geometric mean of throughputs",
    "worst ratio": "worst",
    "not slower": "share that is not slower",
}


def _not_slower(cells: Sequence[Estimate], within: float) -> Estimate:
    """The share of cells that are not slower by more than `within`: from those that surely are not to those that might
    not be."""
    least = 1 / (1 + within)
    value = np.mean([cell.value >= least for cell in cells])
    sure = np.mean([cell.low is not None and cell.low >= least for cell in cells])
    possible = np.mean([cell.high is None or cell.high >= least for cell in cells])
    return Estimate(float(value), float(sure), float(possible), len(cells))


def _ratio(rule: Rule, rows: list[Row], everywhere: list[Row], table: Table) -> Evidence:
    """The form over its baseline in each cell, from the samples of each round.

    The form is one of `rows`; what it is compared with may have run on another device, as a GPU's with the CPU's.
    """
    forms, peers = ([names] if isinstance(names, str) else names or [] for names in (rule.form, rule.over))
    of_forms = _usable(rule, [row for row in rows if row.form in forms])
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in everywhere:
        cells.setdefault(tuple(sorted(row.keys.items())), {})[row.form] = row
    races, choice = [], False
    for keys, cell in cells.items():
        ours = [row for row in of_forms if tuple(sorted(row.keys.items())) == keys]
        if ours:
            against = _baselines(rule, peers or [str(ours[0].baseline)], cell)
            choice |= len(ours) > 1 or len(against) > 1
            races.append(cell_ratio(table, cell, ours, against, "mean" if rule.stat == "throughput" else "median"))
    _enough(rule, races)
    ratios, fastest, over = ([race[i] for race in races] for i in range(3))
    if rule.stat == "not slower":
        figure = _not_slower(ratios, rule.margin)
    else:
        figure = (estimates.worst if rule.stat == "worst ratio" else estimates.geometric_mean)(ratios)
    names = [" or ".join(dict.fromkeys(row.form for row in rows)) for rows in (fastest, over[:1])]
    against = f"the fastest of {', '.join(rule.over)}" if isinstance(rule.over, list) else names[1]
    kind = _OF_A_RACE[rule.stat]
    kind += f" by more than {100 * rule.margin:.0f} %" * (rule.stat == "not slower" and rule.margin > 0)
    where = f", {kind} of {_cells(fastest)}" if len(races) > 1 else ""
    where += f", {len(races)} of {len(cells)} cells" if len(races) < len(cells) else ""
    chosen = ", the fastest chosen on every other round and judged on the rest" if choice else ""
    rounds = f"at least {min(estimate.n for estimate in ratios)} rounds"
    return Evidence(figure, fastest, f"{names[0]} over {against}{where}{chosen}; {rounds}")


def _baselines(rule: Rule, names: list[str], cell: Mapping[str, Row]) -> list[Row]:
    """The rows to compare with: the race's own baseline, or every named peer, none of which may be left out."""
    if missing := [name for name in names if name not in cell]:
        raise Untestable(f"needs {', '.join(missing)} in the same race ({rule.study}); params/full has all")
    peers = [cell[name] for name in names if rule.peers == "all" or cell[name].status != "failed"]
    for row in peers:
        if row.status != "ok":
            raise Untestable(f"a peer is not there to compare with; {row.form}: {row.reason}")
    return peers


def cell_ratio(
    table: Table, cell: Mapping[str, Row], forms: Sequence[Row], peers: Sequence[Row], of: str
) -> tuple[Estimate, Row, Row]:
    """One cell's ratio; where there is a choice, it is made on every other round and judged on the others."""
    times = {row.form: table.samples_of(row) for row in (*forms, *peers)}
    if any(samples is None for samples in times.values()):
        raise Untestable(f"the samples of {forms[0].study} are not there")
    if len({len(samples) for samples in times.values()}) > 1:
        raise Untestable(f"forms of {forms[0].study} have different numbers of rounds")
    form, peer = (min(rows, key=lambda row: float(np.median(times[row.form][::2]))) for rows in (forms, peers))
    judged = slice(1, None, 2) if len(forms) > 1 or len(peers) > 1 else slice(None)
    ratio = estimates.ratio(times[peer.form][judged], times[form.form][judged], of=of)
    control = cell.get(CONTROL)
    noise = None if control is None or form.form == CONTROL else table.samples_of(control)
    if noise is not None:
        ratio = ratio.widened(estimates.noise_floor(table.samples_of(cell[control.baseline]), noise))
    return ratio, form, peer
