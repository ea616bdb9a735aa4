"""What to do, by the rows: the opening of a report and the top of the front page. Every sentence is computed.

uses(table, purposes)        # for each choice: the fastest form that computes the same, or that nothing is faster
headlines(rows)              # of a ledger: which advice pays on this machine, and which is wrong
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from string import Formatter
from typing import Any

from gnnlab import machine
from gnnlab.measure.estimates import CONTROL, Estimate

from .claims import NO_GAIN_BELOW, RATIOS, Verdict
from .ledger import Judged
from .results import ResultFile
from .table import Row, Table, over_baseline
from .text import with_unit

HEADLINES = 6
SAME = 1e-4  # largest relative error of a form that is called equal
ANSWER_KNOWN = " is known"  # a note that ends so: the form was timed on cached answers alone
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
    def texts(self) -> tuple[str, str]:
        """The gain and its interval as a reader sees them: ("4.00×", "3.95 to 4.05×")."""
        return ("", "") if self.gain is None else with_unit(self.gain, "x")


def yours(parameters: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """The parameters by which the reader named something that is not among the defaults; `declared` are those of the
    notebook."""
    own = []
    for name in YOURS:
        if name in declared and name in parameters:
            value, default = parameters[name], declared[name].default
            if set(value) - set(default) if isinstance(value, list) else value != default:
                own.append(name)
    return own


# ---- a report -------------------------------------------------------------------------------------------------------


def uses(table: Table, purposes: Mapping[str, str], own: bool = False) -> list[Use]:
    """For each choice between forms what to use: the reader's own models (`own`) first, a line for each; what has no
    faster form last.

    `purposes` says of a study what its forms are alternatives for, in words that may name keys: "attention over {nodes}
    nodes". Purposes of one study that have one answer are taken together where no combination of their keys has
    another. A study without a purpose is no choice.

    Only forms count that ran in every cell and compute the same as the baseline (`SAME`), by more than looking up a
    known answer. Rows over different baselines are different choices. A gain is the geometric mean over the cells; it
    is named where its whole interval is one.
    """
    uses = []
    for study, words in purposes.items():
        rows = [row for row in table.select(study) if row.form != CONTROL and row.ratio is not None]
        rows = [row for row in rows if not answer_known(row)]
        by_purpose, by_answer = defaultdict(list), defaultdict(list)
        for row in rows:
            if row.parity_error is None or row.parity_error <= SAME:
                by_purpose[_named(words, [row]), row.baseline].append(row)
        for cells in by_purpose.values():
            form, over, _ = _fastest(cells)
            by_answer[form, over].append(cells)
        is_own = own and study == OWN_STUDY
        for groups in by_answer.values():
            together = list(chain(*groups))
            # one name for several groups must not name what has another answer
            one = len(groups) > 1 and not is_own and _combinations(words, together) == len(groups)
            for cells in [together] if one else groups:
                uses.append(Use(_named(words, cells), study, *_fastest(cells), is_own))
    return sorted(uses, key=lambda use: (not use.yours, use.form is None))


def answer_known(row: Row) -> bool:
    """Does a note of the row limit its time to answers that a cache has? Then it is not the fastest in general."""
    return any(note.endswith(ANSWER_KNOWN) for note in row.notes)


def _named(purpose: str, rows: Sequence[Row]) -> str:
    """The purpose of these rows: "attention over 10 or 50 nodes"; as it is where a row lacks a key that it names."""
    values = {key: list(dict.fromkeys(str(row.keys.get(key)) for row in rows)) for key in rows[0].keys}
    texts = {key: " or ".join(filter(None, (", ".join(of[:-1]), of[-1]))) for key, of in values.items()}
    try:
        return purpose.format(**texts)
    except (KeyError, IndexError, ValueError):
        return purpose


def _combinations(purpose: str, rows: Sequence[Row]) -> int:
    """How many combinations there are of the values of the keys that a purpose names."""
    names = filter(None, (name for _, name, *_ in Formatter().parse(purpose)))
    return math.prod(len({row.keys.get(name) for row in rows}) for name in names)


def _fastest(rows: Sequence[Row]) -> tuple[str | None, str, Estimate | None]:
    """The form that is faster than the baseline by most, the baseline, and by how much."""
    gains = over_baseline(rows, everywhere=True)
    faster = {form: gain for form, gain in gains.items() if gain.low is not None and gain.low > NO_GAIN_BELOW}
    best = max(faster, key=lambda form: faster[form].value, default=None)
    return best, rows[0].baseline, faster.get(best)


def noise(result: ResultFile) -> str | None:
    """Why the times of a run mislead: a machine that was busy, or forms that differ from themselves."""
    states = (("at its start", result.environment), ("at its end", result.environment.get("finished") or {}))
    parts = [f"{when}, {busy}" for when, seen in states if (busy := machine.busy(seen))]
    off = [abs(row.ratio - 1) for row in result.rows if row.form == CONTROL and row.ratio is not None]
    if off and median(off) > NOISY:
        percent = f"{100 * median(off):.0f} %"
        parts.append(f"a form timed against itself (A/A) differs by {percent}, the median of {len(off)}")
    advice = "Trust ratios more than times; run it again when it is quiet."
    return f"Measured on a busy machine: {'; '.join(parts)}. {advice}" if parts else None


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


def parts(rows: Iterable[Judged]) -> list[tuple[str, str, list[Judged]]]:
    """Claims and goals apart, where there are any: (anchor, heading, rows); what differs most from its claim first,
    what has no number last."""
    rows = sorted(rows, key=lambda row: -surprise(row))
    claims, goals = ([row for row in rows if row.is_goal is is_goal] for is_goal in (False, True))
    both = [("claims", "Claims of the documents", claims), ("goals", "Goals of the lab", goals)]
    return [part for part in both if part[2]]


def headlines(rows: Sequence[Judged]) -> list[tuple[str, Judged]]:
    """What of the documents' advice matters: (`FALSE`, `UNSURE`, `LESS` or `PAYS`, row), one of a study.

    First advice that is wrong on this machine, by `surprise`, at most half of `HEADLINES` if as much pays; then advice
    that pays, by its gain. Goals of the lab and claims of equality are left out.
    """
    rows = [row for row in rows if row.metric in RATIOS and row.low is not None and not row.is_goal]
    rows = [row for row in rows if row.claimed != NO_EFFECT]
    short = [row for row in rows if row.verdict in (Verdict.REFUTED, Verdict.WEAKER)]
    pays = [row for row in rows if row.low > NO_GAIN_BELOW and row not in short]
    wrong = _one_of_a_study(sorted(short, key=surprise, reverse=True))
    pays = _one_of_a_study(sorted(pays, key=lambda row: row.value, reverse=True))
    lines = [(_word(row), row) for row in wrong[: max(HEADLINES // 2, HEADLINES - len(pays))]]
    return lines + [(PAYS, row) for row in pays[: HEADLINES - len(lines)]]


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


def _one_of_a_study(rows: Sequence[Judged]) -> list[Judged]:
    first: dict[str, Judged] = {}
    for row in rows:
        first.setdefault(row.study, row)
    return list(first.values())
