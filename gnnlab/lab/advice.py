"""What to do, by the rows: the opening of a report and the top of the front page. Every sentence is computed.

uses(table, purposes)        # for each choice: the fastest form that computes the same, or that nothing is faster
headlines(rows)              # of a ledger: which advice pays on this machine, and which is wrong
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gnnlab import machine
from gnnlab.profiling.estimates import CONTROL, Estimate

from .claims import NO_GAIN_BELOW, RATIOS, Verdict
from .ledger import Judged
from .results import ResultFile
from .table import Row, Table, over_baseline
from .text import with_unit

HEADLINES = 6
SAME = 1e-4  # largest relative error of a form that is called equal
NOISY = 0.03  # median difference of A/A controls from which a report warns
YOURS = ("models", "model", "graphs", "graph", "table")  # parameters that name what is the reader's
NO_EFFECT = (1.0, 1.0)  # claimed of a ratio
OWN_STUDY = "your_model"  # its cells are models: a line for each
WHOLE_MODELS = "whole_models"  # study of notebook 09
FALSE, LESS, UNSURE = "Does not pay here", "Pays less here", "Pays less here, if at all"
PAYS = "Pays here"


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
        return "" if self.gain is None else with_unit(self.gain, "x")[0]

    @property
    def interval(self) -> str:
        return "" if self.gain is None else with_unit(self.gain, "x")[1]


def yours(parameters: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """The parameters by which the reader named something of their own; `declared` are those of the notebook."""
    named = [name for name in YOURS if name in declared and name in parameters]
    return [name for name in named if _is_new(parameters[name], declared[name].default)]


def _is_new(value: Any, default: Any) -> bool:
    """Does a parameter name anything that its default does not?"""
    return bool(set(value) - set(default)) if isinstance(value, list) else value != default


# ---- a report -------------------------------------------------------------------------------------------------------


def uses(table: Table, purposes: Mapping[str, str], own: bool = False) -> list[Use]:
    """For each choice between forms what to use: the reader's own (`own`) first, what has no faster form last.

    `purposes` says of a study what its forms are alternatives for, in words that may name keys: "attention over {nodes}
    nodes". Cells of one purpose are taken together, and purposes of one study that have one answer; a study without a
    purpose is no choice.

    Only forms count that ran in every cell and compute the same as the baseline (`SAME`). A gain is the geometric mean
    over the cells; it is named where its whole interval is one.
    """
    uses = []
    for study in dict.fromkeys(row.study for row in table if row.study in purposes):
        rows = [row for row in table.select(study) if row.form != CONTROL and row.ratio is not None]
        rows = [row for row in rows if row.parity_error is None or row.parity_error <= SAME]
        yours = own and study == OWN_STUDY
        words = ", ".join(f"{{{key}}}" for key in rows[0].keys) if yours and rows else purposes[study]
        cells: dict[str, list[Row]] = {}
        for row in rows:
            cells.setdefault(_named(words, [row]), []).append(row)
        of_study = [_use(study, purpose, of_cell, yours) for purpose, of_cell in cells.items()]
        if not yours and len(of_study) > 1 and len({use.form for use in of_study}) == 1:
            of_study = [_use(study, _named(words, rows), rows)]
        uses += of_study
    return sorted(uses, key=lambda use: (not use.yours, use.form is None))


def _named(purpose: str, rows: Sequence[Row]) -> str:
    """The purpose of these rows: "attention over 10 or 50 nodes"; as it is where a row lacks a key that it names."""
    values = {key: " or ".join(dict.fromkeys(str(row.keys.get(key)) for row in rows)) for key in rows[0].keys}
    try:
        return purpose.format(**values)
    except (KeyError, IndexError, ValueError):
        return purpose


def _use(study: str, purpose: str, rows: Sequence[Row], yours: bool = False) -> Use:
    gains = over_baseline(rows, everywhere=True)
    faster = {form: gain for form, gain in gains.items() if gain.low is not None and gain.low > NO_GAIN_BELOW}
    best = max(faster, key=lambda form: faster[form].value, default=None)
    return Use(purpose, study, best, rows[0].baseline, faster.get(best), yours)


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
    near, claimed = 1.0, 1.0
    if least is not None and high < least:
        near, claimed = high, least
    elif most is not None and low > most:
        near, claimed = low, most
    if row.metric in RATIOS and near > 0 and claimed > 0:
        return abs(math.log(near / claimed))
    return math.log1p(abs(near - claimed) / (abs(claimed) or 1.0))


def by_surprise(rows: Iterable[Judged]) -> list[Judged]:
    """What differs most from its claim first, what has no number last."""
    return sorted(rows, key=lambda row: -surprise(row))


def parts(rows: Iterable[Judged]) -> list[tuple[str, str, list[Judged]]]:
    """Claims and goals apart, where there are any, by surprise: (anchor, heading, rows)."""
    rows = by_surprise(rows)
    claims, goals = ([row for row in rows if row.is_goal is is_goal] for is_goal in (False, True))
    both = [("claims", "Claims of the documents", claims), ("goals", "Goals of the lab", goals)]
    return [part for part in both if part[2]]


def headlines(rows: Sequence[Judged]) -> list[tuple[str, Judged]]:
    """What of the documents' advice matters: (`FALSE`, `UNSURE`, `LESS` or `PAYS`, row), one of a study.

    First advice that is wrong on this machine, by `surprise`, at most half of `HEADLINES` if as much pays; then advice
    that pays, by its gain. Goals of the lab and claims of equality are left out.
    """
    advice = [row for row in rows if row.metric in RATIOS and row.low is not None and row.claimed != NO_EFFECT]
    advice = [row for row in advice if not row.is_goal]
    short = [row for row in advice if row.verdict in (Verdict.REFUTED, Verdict.WEAKER)]
    wrong = _one_of_a_study(by_surprise(short))
    pays = [row for row in advice if row.low > NO_GAIN_BELOW and row not in short]
    pays = _one_of_a_study(sorted(pays, key=lambda row: -row.value))
    wrong = wrong[: max(HEADLINES // 2, HEADLINES - len(pays))]
    return [*((_word(row), row) for row in wrong), *((PAYS, row) for row in pays[: HEADLINES - len(wrong)])]


def gains(rows: Sequence[Judged]) -> list[Judged]:
    """The goals of the lab that are gains, whole models first, then by gain; one of a study, at most half of
    `HEADLINES`."""
    goals = [row for row in rows if row.is_goal and row.metric in RATIOS and (row.low or 0) > NO_GAIN_BELOW]
    goals.sort(key=lambda row: (row.study != WHOLE_MODELS, -row.value))
    return _one_of_a_study(goals)[: HEADLINES // 2]


def _word(row: Judged) -> str:
    """What is true of the whole interval of advice that falls short."""
    if row.low > NO_GAIN_BELOW:
        return LESS
    return UNSURE if row.high > NO_GAIN_BELOW else FALSE


def _one_of_a_study(rows: Iterable[Judged]) -> list[Judged]:
    first: dict[str, Judged] = {}
    for row in rows:
        first.setdefault(row.study, row)
    return list(first.values())
