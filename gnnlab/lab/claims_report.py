"""The claims report: each claim's rule evaluated over the rows of a run, pooled over runs, and judged.

    judged = judge(Path("outputs/quick"))   # every claim of the catalogue, from the result files alone
    judged.rows[0].measured                 # as a reader sees it: "1.42×"

Nothing here measures: the same files give the same report on any machine (`gnnlab claims --recompute`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ValidationError

from gnnlab.errors import GnnlabError, Untestable, first_wrong
from gnnlab.files import read_json
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate
from gnnswap.errors import one_line

from . import ratios, results
from .claims import RATIOS, Claim, Evidence, Verdict, catalogue, documents, evaluate, verdict
from .results import ResultFile, Status
from .table import Row, Strict, Table
from .text import claimed_text, error_text, with_unit

RECORD = "claims.json"
Runs = Sequence[tuple[ResultFile, Table]]  # of one notebook, the latest first


class Badge(NamedTuple):
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


class ClaimResult(Strict):
    """One row of the report. `value` is None where the claim cannot be tested here, and `why` says what it needs."""

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
        unseen = self.interval and self.unit == "x" and not self.is_goal and self.low <= 1 <= self.high
        return self.measured + f" ({self.interval})" * bool(self.interval) + ", no difference seen" * bool(unseen)

    @property
    def _texts(self) -> tuple[str, str]:
        if self.value is None:
            return "", ""
        return with_unit(Estimate(self.value, self.low, self.high, self.n), self.unit)


@dataclass(frozen=True)
class ClaimsReport:
    """Every claim that the runs of a folder say something of, in the catalogue's order; what has no run; what could not
    be read, a line each."""

    rows: list[ClaimResult]
    missing: list[Claim]
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: claims and goals with every field, what was not measured, and what could not be read."""
        return {
            "claims": [row.model_dump(mode="json") for row in self.rows],
            "not_measured": [claim.id for claim in self.missing],
            "problems": self.problems,
        }


def judge(folder: Path) -> ClaimsReport:
    """What the runs in `folder` say of the claims."""
    runs, problems = results.runs_of(folder)
    rows, every = _rows(runs), catalogue()
    missing = [claim for id, claim in every.items() if id not in rows]
    return ClaimsReport([rows[id] for id in every if id in rows], missing, problems)


def _rows(runs: Mapping[str, Runs]) -> dict[str, ClaimResult]:
    return {row.id: row for of_notebook in runs.values() for row in judge_runs(of_notebook)}


def judge_runs(runs: Runs) -> list[ClaimResult]:
    """The claims of one notebook by its runs, each with its table."""
    latest, tables = runs[0][0], [table for result, table in runs if result.status is Status.PASSED]
    claims = [claim for claim in catalogue().values() if claim.notebook == latest.notebook[:2]]
    if not tables:
        reason = latest.reason or f"the notebook {latest.status.value}"
        return [_row(claim, Verdict.UNTESTABLE, why=reason) for claim in claims]
    if latest.reason:  # a part of the notebook was asked for
        claims = [claim for claim in claims if any(table.select(claim.of.study) for table in tables)]
    return [_judged(claim, tables) for claim in claims]


def _judged(claim: Claim, tables: Sequence[Table]) -> ClaimResult:
    """A claim by every table that says something of it, a table a run."""
    between, evidence, reasons = claim.of.stat == "same verdict", [], []
    for of_run in [tables] if between else [[table] for table in tables]:
        try:
            evidence.append(_same_verdict(claim, of_run) if between else evaluate(claim, *of_run))
        except Untestable as reason:
            reasons.append(str(reason))
    if not evidence:
        return _row(claim, Verdict.UNTESTABLE, why=reasons[0])
    figures, rows = [one.estimate for one in evidence], [row for one in evidence for row in one.rows]
    log = claim.metric in RATIOS and all(one.value > 0 and (one.low is None or one.low > 0) for one in figures)
    figure = estimates.combine_runs(figures, log=log)
    judged = verdict(claim, figure.interval)
    if claim.of.equals is not None:
        judged = Verdict.REPRODUCED if all(one.holds for one in evidence) else Verdict.REFUTED
    errors = [row.parity_error for row in rows if row.parity_error is not None]
    parts = [evidence[0].how, *([error_text(max(errors))] if errors else []), *ratios.notes_of(evidence[0].rows)]
    runs = len(tables) if between else len(evidence)
    parts += [f"no 95 % interval of n = {figure.n} in {runs} run{'s' * (runs != 1)}"] * (figure.interval is None)
    return _row(claim, judged, **asdict(figure), runs=runs, conditions=_conditions(rows), why="; ".join(parts))


def _row(claim: Claim, judged: Verdict, **fields: Any) -> ClaimResult:
    named = claim.model_dump(include={"id", "source", "notebook", "statement", "metric"})
    return ClaimResult(**named, unit=claim.unit, claimed=claim.bounds, study=claim.of.study, verdict=judged, **fields)


def _conditions(rows: Sequence[Row]) -> str:
    """Device, runtime, precision and threads of rows: "CPU AMD EPYC, torch 2.13.0, float32, 2 threads"."""
    fields = [[getattr(row, name) for row in rows] for name in ("device", "runtime", "precision")]
    fields.append([f"{row.threads} threads" for row in rows if row.threads])
    return ", ".join(" or ".join(dict.fromkeys(filter(None, values))) for values in fields if any(values))


def _same_verdict(claim: Claim, tables: Sequence[Table]) -> Evidence:
    """The share of this notebook's claims whose verdict is the same in two runs, over all pairs of runs."""
    if len(tables) < 2:
        raise Untestable("needs two runs: gnnlab run 02 --runs 2")
    shares = []
    for other in [one for one in catalogue().values() if one.notebook == claim.notebook and one is not claim]:
        judged = [_judged(other, [table]) for table in tables]
        exact = all(row.value is not None and row.low == row.high for row in judged)  # a count is the same in every run
        if not exact and any(row.verdict is not Verdict.UNTESTABLE for row in judged):
            shares.append(np.mean([a.verdict is b.verdict for a, b in itertools.combinations(judged, 2)]))
    agree = estimates.cluster_bootstrap(shares, range(len(shares)), "share")
    return Evidence(agree, [], f"mean over {len(shares)} claims of the pairs of {len(tables)} runs that agree")


# ---- computed again -------------------------------------------------------------------------------------------------


def recompute(folder: Path) -> tuple[bool, list[str]]:
    """Whether the stored files follow from the samples and the rules; a line for each that does not, or one that says
    how many do.

    Every row with samples and every summary is computed again, every ratio of a race too, and the verdicts are compared
    with `claims.json`. What cannot be read is a line, too. Raises `GnnlabError` where there is no `claims.json`.
    """
    runs, problems = results.runs_of(folder)
    rows = [(result, row, table) for of_notebook in runs.values() for result, table in of_notebook for row in table]
    problems += [f"{result.notebook}: {line}" for result, row, table in rows for line in differences(row, table)]
    now = _rows(runs)
    try:
        stored = _stored(Path(folder) / RECORD)
    except GnnlabError as error:
        if not (Path(folder) / RECORD).exists():
            raise
        stored, problems = now, [*problems, str(error)]
    for id in dict.fromkeys([*stored, *now]):
        one, other = stored.get(id), now.get(id)
        if not (one and other and one.verdict is other.verdict and _same(one.numbers, other.numbers)):
            words = [r and f"{r.verdict.value} {r.value} ({r.low} to {r.high})" for r in (one, other)]
            problems.append(f"{id}: stored {words[0]}, computed again {words[1]}")
    again = sum(table.samples_of(row) is not None or row.study.endswith(ratios.SUMMARY) for _, row, table in rows)
    summary = f"rows computed again from their samples: {again} of {len(rows)}, the others have none"
    return not problems, problems or [f"{summary}; claims and goals judged again: {len(now)}; all is as stored"]


class _Record(BaseModel):
    claims: list[ClaimResult]


def _stored(path: Path) -> dict[str, ClaimResult]:
    """The claims of a file that `ClaimsReport.to_dict` gave. Raises `GnnlabError`: there is none, or it is damaged."""
    remedy = "gnnlab report writes it"
    try:
        return {row.id: row for row in _Record.model_validate(read_json(path, remedy)).claims}
    except ValidationError as error:
        wrong = ": ".join(filter(None, first_wrong(error)))
        raise GnnlabError(f"{path} is not a claims report of this version: {wrong}; {remedy}") from None


def differences(row: Row, table: Table) -> list[str]:
    """What of a row does not follow from its samples or, of a summary, from its rows; a line each."""
    try:
        unlike = [(stored, again) for stored, again in _pairs(row, table) if not _same(astuple(stored), astuple(again))]
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # of keys that say no summary, for one
        return [f"{row.label}: cannot be computed again: {one_line(error)}"]
    return [f"{row.label}: stored {stored}, computed again {again}" for stored, again in unlike]


def _pairs(row: Row, table: Table) -> list[tuple[Estimate, Estimate]]:
    """What was stored of a row, and what it comes from."""
    samples, pairs = table.samples_of(row), []
    if row.status != "ok":
        return pairs
    if row.study.endswith(ratios.SUMMARY):
        again = ratios.summarized(table, row.study.removesuffix(ratios.SUMMARY), row.variant, **row.keys)
        pairs.append((row.estimate, again.estimate))
    elif samples is not None and row.statistic in estimates.STATISTICS:
        pairs.append((row.estimate, estimates.summary(samples, row.statistic)))
        baseline = table.select(row.study, row.baseline, row.keys) if row.gain else []
        if row.gain and not (baseline and table.samples_of(baseline[0]) is None):  # then its ratio has none
            cells = ratios.of_cells(table, [row], table.select(row.study))
            pairs += [(row.gain, cell.ratio) for cell in cells]
    return pairs


def _same(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return np.allclose(*(np.array(each, dtype=float) for each in (a, b)), rtol=1e-9, atol=0, equal_nan=True)
