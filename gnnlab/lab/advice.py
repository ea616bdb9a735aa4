"""What to do, by the rows: the opening of a report and the top of the front page. Every sentence is computed.

uses(table, purposes)        # for each choice: the fastest form that computes the same, or that nothing is faster
headlines(rows)              # of a ledger: which advice pays here, and which is wrong
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from gnnlab import machine
from gnnlab.profiling.estimates import CONTROL, Estimate

from .claims import NO_GAIN_BELOW, RATIOS, Verdict
from .ledger import Judged
from .results import ResultFile
from .table import Row, Table, digits, over_baseline

HEADLINES, OF_A_DOCUMENT = 5, 2
SAME = 1e-4  # largest relative error of a form that is called equal
NOISY = 0.03  # median difference of A/A controls from which a report warns
YOURS = ("models", "model", "graphs", "graph", "table")  # parameters that name what is the reader's
NO_EFFECT = (1.0, 1.0)  # claimed of a ratio
OWN_STUDIES = ("your_model",)  # whose cells are models: a line for each
FALSE, LESS, PAYS = "Does not pay here", "Pays less here", "Pays here"
UNSURE = "Pays less here, if at all"


@dataclass(frozen=True)
class Use:
    """What to use for a purpose: `form` over `over`, by `gain`; `form` None where nothing compared is faster."""

    purpose: str
    study: str
    form: str | None
    over: str
    gain: Estimate | None
    yours: bool = False

    @property
    def times(self) -> str:
        return "" if self.gain is None else f"{digits(self.gain.value, self.gain.low, self.gain.high)}×"

    @property
    def interval(self) -> str:
        if self.gain is None or self.gain.low is None:
            return ""
        low, high = self.gain.interval
        return f"{digits(low, low, high)} to {digits(high, low, high)}"


def yours(parameters: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """The parameters by which the reader named something of their own; `declared` are those of the notebook."""
    named = [name for name in YOURS if name in declared and name in parameters]
    return [name for name in named if _others(parameters[name], declared[name].default)]


def _others(value: Any, default: Any) -> bool:
    """Does a parameter name anything that its default does not?"""
    return bool(set(value) - set(default)) if isinstance(value, list) else value != default


# ---- a report -------------------------------------------------------------------------------------------------------


def uses(table: Table, purposes: Mapping[str, str], own: bool = False) -> list[Use]:
    """For each choice between forms what to use: first the reader's own (`own`), then in the order of the notebook.

    `purposes` says of a study what its forms are alternatives for, in words that may name keys: "attention over {nodes}
    nodes". Cells of one purpose are taken together; a study without one is no choice.

    Only forms count that ran in every cell and compute the same as the baseline (`SAME`). A gain is the geometric mean
    over the cells; it is named where its whole interval is one.
    """
    uses = []
    for study in dict.fromkeys(row.study for row in table if row.study in purposes):
        rows = [row for row in table.select(study) if row.form != CONTROL and row.ratio is not None]
        rows = [row for row in rows if row.parity_error is None or row.parity_error <= SAME]
        mine = own and study in OWN_STUDIES
        cells: dict[str, list[Row]] = {}
        for row in rows:
            purpose = ", ".join(map(str, row.keys.values())) if mine else purposes[study]
            with suppress(KeyError, IndexError, ValueError):  # as it is where a cell of the study has other keys
                purpose = purpose if mine else purpose.format(**row.keys)
            cells.setdefault(purpose, []).append(row)
        uses += [_use(study, purpose, of_cell, mine) for purpose, of_cell in cells.items()]
    return sorted(uses, key=lambda use: not use.yours)


def _use(study: str, purpose: str, rows: Sequence[Row], mine: bool) -> Use:
    gains = over_baseline(rows, everywhere=True)
    seen = {form: gain for form, gain in gains.items() if gain.low is not None and gain.low > NO_GAIN_BELOW}
    best = max(seen, key=lambda form: seen[form].value, default=None)
    return Use(purpose, study, best, rows[0].baseline, seen.get(best), mine)


def noise(result: ResultFile, table: Table) -> str | None:
    """Why the times of a run mislead: a machine that was busy, or forms that differ from themselves."""
    ended = result.environment.get("finished") or {}
    states = (("at its start", result.environment), ("at its end", ended))
    parts = [f"{when}, {busy}" for when, seen in states if (busy := machine.busy(seen))]
    off = [abs(row.ratio - 1) for row in table if row.form == CONTROL and row.ratio is not None]
    if off and median(off) > NOISY:
        parts.append(
            f"a form timed against itself (A/A) differs by {100 * median(off):.0f} %, the median of {len(off)}"
        )
    for row in table.select("noise_floor"):
        if row.value is not None and row.value > 100 * NOISY:
            parts.append(f"one in twenty comparisons of a form with itself (A/A) is off by {row.value:.0f} % or more")
    if not parts:
        return None
    return (
        f"Measured on a busy machine: {'; '.join(parts)}. Trust ratios more than times; run it again when it is quiet."
    )


# ---- the front page -------------------------------------------------------------------------------------------------


def surprise(row: Judged) -> float:
    """How far the interval lies from what was claimed: in logarithms of a ratio, else relative to the claim. 0 where it
    reaches into the claim, -1 without a number."""
    if row.value is None:
        return -1.0
    low, high = (row.value, row.value) if row.low is None else (row.low, row.high)
    least, most = row.claimed or (NO_GAIN_BELOW, None)
    if least is not None and high < least:
        near, claimed = high, least
    elif most is not None and low > most:
        near, claimed = low, most
    else:
        return 0.0
    if row.metric in RATIOS and near > 0 and claimed > 0:
        return abs(math.log(near / claimed))
    return math.log1p(abs(near - claimed) / (abs(claimed) or 1.0))


def by_surprise(rows: Iterable[Judged]) -> list[Judged]:
    """What differs most from its claim first, what has no number last."""
    return sorted(rows, key=lambda row: -surprise(row))


def headlines(rows: Sequence[Judged]) -> list[tuple[str, Judged]]:
    """The findings that matter, at most `HEADLINES`: (`FALSE`, `UNSURE`, `LESS` or `PAYS`, row), one of a study.

    First advice that is wrong here, by `surprise`, at most half of them if as much pays; then advice that pays, by its
    gain; then the lab's goals. At most two are of one document, unless there are no others. Claims of equality are
    left out.
    """
    effects = [row for row in rows if row.metric in RATIOS and row.low is not None and row.claimed != NO_EFFECT]
    advice = [row for row in effects if not row.is_goal]
    wrong = [row for row in by_surprise(advice) if row.verdict in (Verdict.REFUTED, Verdict.WEAKER)]
    gains = [row for row in effects if row.low > NO_GAIN_BELOW and row not in wrong]
    gains.sort(key=lambda row: (row.is_goal, -row.value))
    wrong, gains = _one_of_a_study(wrong), _one_of_a_study(gains)
    chosen = _varied(wrong, OF_A_DOCUMENT)[: max(HEADLINES // 2, HEADLINES - len(gains))]
    for most in (OF_A_DOCUMENT, HEADLINES):
        chosen = _varied([*chosen, *gains], most)[:HEADLINES]
    chosen.sort(key=lambda row: row.is_goal)  # what the documents say comes before what the lab aims at
    kinds = {row.id: UNSURE if row.high > NO_GAIN_BELOW else FALSE for row in wrong}  # true of its whole interval
    kinds |= {row.id: LESS for row in wrong if row.low > NO_GAIN_BELOW}
    return [(kinds.get(row.id, PAYS), row) for row in chosen]


def _one_of_a_study(rows: Iterable[Judged]) -> list[Judged]:
    first: dict[str, Judged] = {}
    for row in rows:
        first.setdefault(row.study, row)
    return list(first.values())


def _varied(rows: Iterable[Judged], most: int) -> list[Judged]:
    """Each row once, and at most so many of a document."""
    kept: list[Judged] = []
    for row in rows:
        of_document = [other for other in kept if other.source == row.source and not row.is_goal]
        if len(of_document) < most and row.id not in {other.id for other in kept}:
            kept.append(row)
    return kept
