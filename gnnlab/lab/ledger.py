"""The ledger: each claim's rule evaluated over the rows of a run, pooled over runs, and judged.

    judged = judge(Path("outputs/quick"))   # every claim of the catalogue, from the result files alone
    judged.rows[0].measured                 # as a reader sees it: "1.42×"

Nothing here measures: the same files give the same ledger on any machine (`gnnlab claims --recompute`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnnlab.errors import Untestable
from gnnlab.files import read_json
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate

from . import results
from .claims import RATIOS, Claim, Evidence, Verdict, catalogue, cell_ratio, documents, evaluate, verdict
from .results import ResultFile
from .table import Row, Strict, Table
from .text import claimed_text, error_text, with_unit

RECORD = "claims.json"
SAMPLING_NOTES = ("interval is", "noisy", "drift", "the hypervisor", "A/A")  # of a row: its interval says as much


@dataclass(frozen=True)
class Badge:
    """Word, symbol and CSS class of a verdict or a status: colour alone never carries it."""

    word: str
    symbol: str
    css: str


VERDICTS = {
    Verdict.REPRODUCED: Badge("reproduced", "✓", "good"),
    Verdict.EXCEEDED: Badge("exceeded", "▲", "best"),
    Verdict.WEAKER: Badge("weaker", "▽", "fair"),
    Verdict.REFUTED: Badge("refuted", "✕", "bad"),
    Verdict.INCONCLUSIVE: Badge("inconclusive", "≈", "open"),
    Verdict.UNTESTABLE: Badge("untestable here", "○", "none"),
    Verdict.MET: Badge("met", "✓", "good"),
    Verdict.MISSED: Badge("missed", "✕", "bad"),
    Verdict.OPEN: Badge("open", "≈", "open"),
}


class Judged(Strict):
    """One row of the ledger. `value` is None where the claim cannot be tested here, and `why` says what it needs."""

    id: str
    source: str
    notebook: str
    statement: str
    metric: str
    unit: str
    claimed: tuple[float | None, float | None] | None
    verdict: Verdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0  # samples behind it
    runs: int = 0  # processes behind it
    conditions: str = ""  # device, runtime, precision, threads
    study: str
    why: str  # how the figure was computed, or why there is none

    @property
    def is_goal(self) -> bool:
        return self.source == "goal"

    @property
    def of(self) -> str:
        """Whose it is: "S4", "lab" or, of the lab's goals, "goal"."""
        return documents().get(self.source, {"name": self.source})["name"]

    @property
    def numbers(self) -> tuple[float | None, ...]:
        return self.value, self.low, self.high, self.n, self.runs

    @property
    def badge(self) -> Badge:
        return VERDICTS[self.verdict]

    @property
    def claimed_text(self) -> str:
        """ "1.41 to 1.45×", "at least 5×", "some gain"."""
        return claimed_text(self.claimed, self.unit)

    @property
    def measured(self) -> str:
        """ "1.42×", or "" without a number."""
        return self._texts[0]

    @property
    def interval(self) -> str:
        """ "1.40 to 1.45×", or "" without one."""
        return self._texts[1]

    @property
    def text(self) -> str:
        """The number with its interval, and whether that holds 1: "1.42× (1.40 to 1.45×)"."""
        if not self.interval:
            return self.measured
        unseen = self.unit == "x" and not self.is_goal and self.low <= 1 <= self.high
        return f"{self.measured} ({self.interval})" + ", no difference seen" * unseen

    @property
    def _texts(self) -> tuple[str, str]:
        if self.value is None:
            return "", ""
        return with_unit(Estimate(self.value, self.low, self.high, self.n), self.unit)


@dataclass(frozen=True)
class Ledger:
    """Every claim that the runs of a folder say something of, in the catalogue's order; what has no run; what could not
    be read, a line each."""

    rows: list[Judged]
    missing: list[Claim]
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: claims and goals with every field, what was not measured, and what could not be read."""
        return {
            "claims": [row.model_dump(mode="json") for row in self.rows],
            "not_measured": [claim.id for claim in self.missing],
            "problems": self.problems,
        }


def judge(folder: Path) -> Ledger:
    """The ledger of the runs in `folder`."""
    runs, problems = results.runs_of(folder)
    rows = {row.id: row for of_notebook in runs.values() for row in judge_runs(of_notebook)}
    every = catalogue()
    return Ledger(
        rows=[rows[id] for id in every if id in rows],
        missing=[claim for id, claim in every.items() if id not in rows],
        problems=problems,
    )


def judge_runs(runs: Sequence[tuple[ResultFile, Table]]) -> list[Judged]:
    """The claims of one notebook by its runs, each with its table."""
    number = runs[0][0].notebook[:2]
    tables = [table for result, table in runs if result.status is results.Status.PASSED]
    claims = [claim for claim in catalogue().values() if claim.notebook == number]
    if not tables:
        reason = runs[0][0].reason or f"the notebook {runs[0][0].status.value}"
        return [_row(claim, Verdict.UNTESTABLE, why=reason) for claim in claims]
    if runs[0][0].reason:  # a part of the notebook was asked for
        claims = [claim for claim in claims if any(table.select(claim.of.study) for table in tables)]
    return [_judged(claim, tables) for claim in claims]


def _judged(claim: Claim, tables: Sequence[Table]) -> Judged:
    """A claim by every table that says something of it, a table a run."""
    evidence, reasons = [], []
    for of_run in [tables] if claim.of.logic else [[table] for table in tables]:
        try:
            evidence.append(_same_verdict(claim, of_run) if claim.of.logic else evaluate(claim, *of_run))
        except Untestable as reason:
            reasons.append(str(reason))
    if not evidence:
        return _row(claim, Verdict.UNTESTABLE, why=reasons[0])
    runs, figures = len(tables) if claim.of.logic else len(evidence), [one.estimate for one in evidence]
    log = claim.metric in RATIOS and all(one.value > 0 and (one.low is None or one.low > 0) for one in figures)
    figure = estimates.combine_runs(figures, log=log)
    judged = verdict(claim, figure.interval)
    if claim.of.equals is not None:
        words = (Verdict.MISSED, Verdict.MET) if claim.is_goal else (Verdict.REFUTED, Verdict.REPRODUCED)
        judged = words[all(one.holds for one in evidence)]
    numbers = {"value": figure.value, "low": figure.low, "high": figure.high, "n": figure.n, "runs": runs}
    conditions = _conditions([row for one in evidence for row in one.rows])
    return _row(claim, judged, **numbers, conditions=conditions, why=_why(evidence, figure))


def _row(claim: Claim, judged: Verdict, **fields: Any) -> Judged:
    names = ("id", "source", "notebook", "statement", "metric", "unit")
    named = {name: getattr(claim, name) for name in names} | {"claimed": claim.bounds, "study": claim.of.study}
    return Judged(**named, verdict=judged, **fields)


def _why(of_runs: Sequence[Evidence], figure: Estimate) -> str:
    """How the figure was computed, in one line for every claim."""
    parts = [of_runs[0].how]
    if errors := [row.parity_error for one in of_runs for row in one.rows if row.parity_error is not None]:
        parts.append(error_text(max(errors)))
    parts += dict.fromkeys(n for row in of_runs[0].rows for n in row.notes if not n.startswith(SAMPLING_NOTES))
    if figure.interval is None and len(of_runs) == 2:
        parts.append("two runs have no 95 % interval, three have")
    elif figure.interval is None:
        parts.append(f"{figure.n} {'sample has' if figure.n == 1 else 'samples have'} no 95 % interval")
    return "; ".join(filter(None, parts))


def _conditions(rows: Sequence[Row]) -> str:
    """Device, runtime, precision and threads of rows, the first of several named: "CPU AMD EPYC, torch 2.13.0"."""
    threads = [f"{row.threads} thread{'s' * (row.threads != 1)}" for row in rows if row.threads]
    fields = [[getattr(row, name) for row in rows] for name in ("device", "runtime", "precision")]
    parts = []
    for values in (list(dict.fromkeys(filter(None, each))) for each in [*fields, threads]):
        parts.append(" or ".join(values) if len(values) < 4 else f"{values[0]} and {len(values) - 1} others")
    return ", ".join(filter(None, parts))


# ---- claims with a logic of their own -------------------------------------------------------------------------------


def _same_verdict(claim: Claim, tables: Sequence[Table]) -> Evidence:
    """The share of this notebook's rows whose verdict is the same in two runs, over all pairs of runs."""
    if len(tables) < 2:
        raise Untestable("needs two runs: gnnlab run 02 --runs 2")
    shares = []
    for other in [one for one in catalogue().values() if one.notebook == claim.notebook and not one.of.logic]:
        judged = [_judged(other, [table]) for table in tables]
        exact = all(row.value is not None and row.low == row.high for row in judged)  # a count is the same in every run
        if not exact and any(row.verdict is not Verdict.UNTESTABLE for row in judged):
            shares.append(np.mean([a.verdict is b.verdict for a, b in itertools.combinations(judged, 2)]))
    how = f"mean over {len(shares)} rows of the share of {math.comb(len(tables), 2)} pairs of runs that agree"
    return Evidence(estimates.cluster_bootstrap(shares, range(len(shares)), "share"), [], how)


# ---- computed again, and shown --------------------------------------------------------------------------------------


def recompute(folder: Path) -> tuple[bool, list[str]]:
    """Whether the stored files follow from the samples and the rules; a line for each that does not, or one that says
    how many do.

    Every row with samples is summarized again, every ratio of a race too, and the ledger is held against `claims.json`.
    Raises `GnnlabError` where that is missing.
    """
    runs, problems = results.runs_of(folder)
    rows = [(result, row, table) for of_notebook in runs.values() for result, table in of_notebook for row in table]
    problems += [f"{result.notebook}: {line}" for result, row, table in rows for line in differences(row, table)]
    claims = read_json(Path(folder) / RECORD, "gnnlab report writes it")["claims"]
    now = {row.id: row for of_notebook in runs.values() for row in judge_runs(of_notebook)}
    stored = {row["id"]: Judged(**row) for row in claims}
    for id in dict.fromkeys([*stored, *now]):
        one, other = stored.get(id), now.get(id)
        if not (one and other and one.verdict is other.verdict and _same(one.numbers, other.numbers)):
            words = [r and f"{r.verdict.value} {r.value} ({r.low} to {r.high})" for r in (one, other)]
            problems.append(f"{id}: stored {words[0]}, computed again {words[1]}")
    sampled = sum(table.samples_of(row) is not None for _, row, table in rows)
    summary = f"rows computed again from their samples: {sampled} of {len(rows)}, the others have none"
    return not problems, problems or [f"{summary}; claims and goals judged again: {len(now)}; all is as stored"]


def differences(row: Row, table: Table) -> list[str]:
    """What of a row does not follow from its samples, a line each."""
    samples = table.samples_of(row)
    if samples is None or row.statistic not in estimates.STATISTICS:
        return []
    again = estimates.summary(samples, row.statistic)
    lines = []
    if not _same((row.value, row.low, row.high), (again.value, again.low, again.high)):
        lines.append(f"{row.label}: stored {row.value} ({row.low} to {row.high}), from its samples {again}")
    if row.ratio is not None:
        cell = {other.form: other for other in table.select(row.study) if other.keys == row.keys}
        if row.baseline in cell and table.samples_of(cell[row.baseline]) is not None:
            ratio = cell_ratio(table, cell, [row], [cell[row.baseline]], "median")[0]
            if not _same((row.ratio, row.ratio_low, row.ratio_high), (ratio.value, ratio.low, ratio.high)):
                lines.append(f"{row.label}: stored ratio {row.ratio}, from its samples {ratio.value}")
    return lines


def _same(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return np.allclose(*(np.array(each, dtype=float) for each in (a, b)), rtol=1e-9, atol=0, equal_nan=True)
