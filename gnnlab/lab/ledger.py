"""The ledger: each claim's rule evaluated over the rows of a run, pooled over runs, and judged.

    judge(Path("outputs/quick"))        # every claim of the catalogue, from the result files alone

Nothing here measures: the same files give the same ledger on any machine (`gnnlab claims --recompute`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate

from . import results
from .claims import RATIOS, Claim, Rule, Verdict, catalogue, format_value, verdict
from .results import ResultFile
from .table import CONTROL, Interval, Row, Strict, Table

RECORD = "claims.json"


class Untestable(Exception):
    """There is no figure for a claim in these rows; the message says what it would need."""


@dataclass(frozen=True)
class Found:
    """What the rows of one run say of a claim: the figure, the rows that it rests on, and how it was had."""

    estimate: Estimate
    rows: Sequence[Row]
    how: str
    holds: bool | None = None  # of counts: are all as claimed?


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
    value: float | None
    low: float | None
    high: float | None
    n: int  # samples behind it
    runs: int  # processes behind it
    conditions: str  # device, runtime, precision, threads
    study: str
    why: str

    @property
    def is_goal(self) -> bool:
        return self.source == "goal"


@dataclass(frozen=True)
class Ledger:
    """Every claim that the runs of a folder say something of, in the catalogue's order; what has no run; what could not
    be read, a line each."""

    rows: list[Judged]
    missing: list[Claim]
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "claims": [row.model_dump(mode="json") for row in self.rows],
            "not_measured": [claim.id for claim in self.missing],
            "problems": self.problems,
        }


def judge(folder: Path) -> Ledger:
    """The ledger of the result files in `folder` and of their further runs (`runs/`)."""
    runs, problems = results.runs_of(folder)
    rows = {row.id: row for of_notebook in runs.values() for row in judge_runs(of_notebook)}
    known = catalogue()
    return Ledger(
        rows=[rows[id] for id in known if id in rows],
        missing=[claim for id, claim in known.items() if id not in rows],
        problems=problems,
    )


def judge_runs(runs: Sequence[tuple[ResultFile, Table]]) -> list[Judged]:
    """The claims of one notebook by its runs, each with its table."""
    number = runs[0][0].notebook[:2]
    tables = [table for result, table in runs if result.status is results.Status.PASSED]
    claims = [claim for claim in catalogue().values() if claim.notebook == number]
    if not tables:
        reason = runs[0][0].reason or f"the notebook {runs[0][0].status.value}"
        return [_untestable(claim, reason) for claim in claims]
    return [_judged(claim, tables) for claim in claims]


def _judged(claim: Claim, tables: Sequence[Table]) -> Judged:
    if claim.of.logic:
        try:
            found = [LOGIC[claim.of.logic](claim, tables)]
        except Untestable as reason:
            return _untestable(claim, str(reason))
        return _row(claim, found[0].estimate, found, runs=len(tables))
    found, reasons = [], []
    for table in tables:
        try:
            found.append(evaluate(claim, table))
        except Untestable as reason:
            reasons.append(str(reason))
    if not found:
        return _untestable(claim, reasons[0])
    log = claim.metric in RATIOS and all(f.estimate.value > 0 for f in found)
    log = log and all(f.estimate.low is None or f.estimate.low > 0 for f in found)
    return _row(claim, estimates.pooled([f.estimate for f in found], log=log), found, runs=len(found))


def _row(claim: Claim, figure: Estimate, found: Sequence[Found], runs: int) -> Judged:
    if claim.of.equals is not None:
        judged = Verdict.REPRODUCED if all(f.holds for f in found) else Verdict.REFUTED
        if claim.is_goal:
            judged = Verdict.MET if judged is Verdict.REPRODUCED else Verdict.MISSED
    else:
        judged = verdict(claim, figure.interval)
    return Judged(
        **_said(claim),
        verdict=judged,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        runs=runs,
        conditions=_conditions([row for f in found for row in f.rows]),
        why=_why(found, runs, figure),
    )


def _untestable(claim: Claim, reason: str) -> Judged:
    nothing = {"value": None, "low": None, "high": None, "n": 0, "runs": 0, "conditions": ""}
    return Judged(**_said(claim), verdict=Verdict.UNTESTABLE, **nothing, why=reason)


def _said(claim: Claim) -> dict[str, Any]:
    named = {name: getattr(claim, name) for name in ("id", "source", "notebook", "statement", "metric", "unit")}
    return {**named, "claimed": claim.bounds, "study": claim.of.study}


def _why(found: Sequence[Found], runs: int, figure: Estimate) -> str:
    """How the figure was had, in one line for every claim."""
    rows = [row for f in found for row in f.rows]
    parts = [found[0].how]
    errors = [row.parity_error for row in rows if row.parity_error is not None]
    if errors:
        parts.append(f"largest relative error {max(errors):.1e}")
    parts += dict.fromkeys(note for row in found[0].rows for note in row.notes if not _is_sampling_note(note))
    exact = all(row.interval is Interval.EXACT for row in rows)
    if figure.interval is None:
        parts.append(f"{figure.n} {'sample has' if figure.n == 1 else 'samples have'} no 95 % interval")
    if not exact:
        parts.append("one run: what differs between processes is not in it" if runs == 1 else f"{runs} runs")
    return "; ".join(part for part in parts if part)


def _is_sampling_note(note: str) -> bool:
    return note.startswith(("interval is", "noisy", "drift", "the hypervisor", "A/A"))


def _conditions(rows: Sequence[Row]) -> str:
    def one(values: Sequence[str]) -> str:
        several = list(dict.fromkeys(v for v in values if v))
        return " or ".join(several) if len(several) < 4 else f"{several[0]} and {len(several) - 1} others"

    threads = [f"{row.threads} thread{'s' * (row.threads != 1)}" for row in rows if row.threads]
    parts = [one([row.device for row in rows]), one([row.runtime for row in rows])]
    return ", ".join(p for p in [*parts, one([row.precision for row in rows]), one(threads)] if p)


# ---- one rule over one run ------------------------------------------------------------------------------------------


def evaluate(claim: Claim, table: Table) -> Found:
    """What `table` says of `claim` by its rule. Raises `Untestable` with what it would need."""
    rule = claim.of
    everywhere = table.select(rule.study, where=rule.where)
    rows = _of_device(everywhere, claim)
    if not rows:
        raise Untestable(_nothing(claim, table))
    if rule.equals is not None:
        return _counts(rule, rows)
    if rule.stat in ("ratio", "throughput", "worst ratio"):
        return _ratio(rule, rows, everywhere, table)
    chosen = _usable(rule, [row for row in rows if row.form == rule.form])
    if rule.stat == "value":
        if len(chosen) > 1:
            raise Untestable(f"its rule names {len(chosen)} rows of {rule.study}, not one")
        return Found(chosen[0].estimate, chosen, _sampled(chosen))
    _enough(rule, chosen)
    cells = [row.estimate for row in chosen]
    if rule.stat == "geomean":
        return Found(estimates.geometric_mean(cells), chosen, f"geometric mean over {_cells(chosen)}")
    if rule.stat == "median" and rule.cluster is None:
        return Found(estimates.middle(cells), chosen, f"median over {_cells(chosen)}")
    values = [row.value for row in chosen]
    clusters = [row.keys[rule.cluster] if rule.cluster else i for i, row in enumerate(chosen)]
    found = estimates.over_clusters(values, clusters, rule.stat, rule.within)
    what = f"share within {format_value(rule.within)}" if rule.stat == "share" and rule.within else rule.stat
    count = len(set(clusters))
    groups = f" in {count} cluster{'s' * (count != 1)} by {rule.cluster}" if rule.cluster else ""
    return Found(found, chosen, f"{what} of {len(values)} rows{groups}")


def _of_device(rows: list[Row], claim: Claim) -> list[Row]:
    return [row for row in rows if claim.device is None or row.device.startswith(claim.device)]


def _nothing(claim: Claim, table: Table) -> str:
    if claim.device and table.select(claim.of.study):
        return f"needs a {claim.device} device" + ("; params/gpu measures it there" if claim.device == "CUDA" else "")
    if claim.needs == "cuda":
        return "needs a CUDA device; params/gpu measures it there"
    if claim.needs:
        return f"needs {claim.needs}"
    return f"needs rows of {claim.of.study}, which these parameters leave out; params/full measures them"


def _usable(rule: Rule, rows: list[Row]) -> list[Row]:
    """The rows with a value; where there is none, the reason of one that failed."""
    usable = [row for row in rows if row.status == "ok"]
    if not usable:
        reasons = [f"{row.form}: {row.reason}" for row in rows]
        raise Untestable(reasons[0] if reasons else f"needs {rule.form} in {rule.study}; params/full measures it")
    return usable


def _enough(rule: Rule, cells: Sequence[Any]) -> None:
    if rule.cells is not None and len(cells) < rule.cells:
        raise Untestable(f"{len(cells)} of the {rule.cells} cells that it speaks of were measured; params/full has all")


def _counts(rule: Rule, rows: list[Row]) -> Found:
    by_form = {row.form: row for row in _usable(rule, rows)}
    lacking = [form for form in rule.equals if form not in by_form]
    if lacking:
        raise Untestable(f"needs the count of {', '.join(lacking)}")
    counted = {form: by_form[form].value for form in rule.equals}
    first = next(iter(counted.values()))
    how = "counted: " + ", ".join(f"{form} {format_value(value)}" for form, value in counted.items())
    holds = all(counted[form] == value for form, value in rule.equals.items())
    return Found(Estimate(first, first, first, 1), [by_form[form] for form in rule.equals], how, holds)


def _sampled(rows: Sequence[Row]) -> str:
    row = rows[0]
    if row.interval is Interval.EXACT:
        return row.origin.value
    return f"{row.statistic} of {row.n} samples" if row.n > 1 else row.origin.value


def _cells(rows: Sequence[Row]) -> str:
    """The cells in words: "3 sizes", "5 batches"."""
    keys = [key for key in rows[0].keys if len({row.keys.get(key) for row in rows}) > 1]
    if not keys:
        return "one cell"
    return f"{len(rows)} cells by {' and '.join(keys)}"


# ---- ratios of a race -----------------------------------------------------------------------------------------------


def _ratio(rule: Rule, rows: list[Row], everywhere: list[Row], table: Table) -> Found:
    """The form over its baseline in each cell, from the samples of each round.

    The form is one of `rows`; what it is compared with may have run on another device, as a GPU's with the CPU's.
    """
    forms, peers = _names(rule.form), _names(rule.over)
    usable = {row.id for row in rows if row.status == "ok"}
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in everywhere:
        cells.setdefault(tuple(sorted(row.keys.items())), {})[row.form] = row
    found, chosen, picks, split = [], [], [], False
    for cell in cells.values():
        ours = [cell[name] for name in forms if name in cell and cell[name].id in usable]
        if not ours:
            continue
        against = _baselines(rule, peers, cell, ours)
        split |= len(ours) > 1 or len(against) > 1
        estimate, form, peer = _cell_ratio(
            table, cell, ours, against, "mean" if rule.stat == "throughput" else "median"
        )
        found.append(estimate)
        chosen.append(form)
        picks.append((form.form, peer.form))
    if not found:
        reasons = [row.reason for row in rows if row.form in forms and row.reason]
        missing = f"needs {' or '.join(forms)} in {rule.study}; params/full measures it"
        raise Untestable(reasons[0] if reasons else missing)
    _enough(rule, found)
    figure = estimates.worst(found) if rule.stat == "worst ratio" else estimates.geometric_mean(found)
    n = min(estimate.n for estimate in found)
    return Found(figure, chosen, _compared(rule, chosen, picks, n, len(cells), split))


def _names(names: str | list[str] | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else names


def _baselines(rule: Rule, peers: list[str], cell: Mapping[str, Row], ours: Sequence[Row]) -> list[Row]:
    """The rows to compare with: the race's own baseline, or every named peer, none of which may be left out."""
    if not peers:
        return [cell[ours[0].baseline]]
    lacking = [name for name in peers if name not in cell]
    if lacking:
        raise Untestable(f"needs {', '.join(lacking)} in the same race ({rule.study}); params/full has all")
    usable = [cell[name] for name in peers if cell[name].status == "ok"]
    if not usable:
        raise Untestable(f"{peers[0]}: {cell[peers[0]].reason}")
    return usable


def _cell_ratio(
    table: Table, cell: Mapping[str, Row], forms: Sequence[Row], peers: Sequence[Row], of: str
) -> tuple[Estimate, Row, Row]:
    """One cell's ratio; where there is a choice, it is made on every other round and judged on the others."""
    control = cell.get(CONTROL)
    times = {row.form: table.samples_of(row) for row in (*forms, *peers)}
    if any(samples is None for samples in times.values()):
        raise Untestable(f"the samples of {forms[0].study} are not there")
    noise = None if control is None else table.samples_of(control)
    base = None if control is None else table.samples_of(cell[control.baseline])
    judged = slice(None)
    form, peer = forms[0], peers[0]
    if len(forms) > 1 or len(peers) > 1:
        form = min(forms, key=lambda row: float(np.median(times[row.form][::2])))
        peer = min(peers, key=lambda row: float(np.median(times[row.form][::2])))
        judged = slice(1, None, 2)
    found = estimates.ratio(times[peer.form][judged], times[form.form][judged], of=of)
    if noise is None or found.low is None or form.form == CONTROL:
        return found, form, peer
    floor = estimates.noise_floor(base, noise)
    return Estimate(found.value, found.low / floor, found.high * floor, found.n), form, peer


def _compared(
    rule: Rule, chosen: Sequence[Row], picks: Sequence[tuple[str, str]], n: int, cells: int, split: bool
) -> str:
    """How the figure of a race was had: what over what, in how many cells, chosen how, of how many rounds."""
    kind = {"ratio": "geometric mean", "throughput": "geometric mean of throughputs", "worst ratio": "worst"}[rule.stat]
    forms, peers = (list(dict.fromkeys(names)) for names in zip(*picks, strict=True))
    against = f"the fastest of {', '.join(_names(rule.over))}" if isinstance(rule.over, list) else peers[0]
    what = f"{' or '.join(forms)} over {against}"
    where = f", {kind} of {_cells(chosen)}" if len(chosen) > 1 else ""
    where += f", {len(chosen)} of {cells} cells" if len(chosen) < cells else ""
    chose = ", the fastest chosen on every other round and judged on the rest" if split else ""
    return f"{what}{where}{chose}; {n} rounds or more"


# ---- claims with a logic of their own -------------------------------------------------------------------------------


def _same_verdict(claim: Claim, tables: Sequence[Table]) -> Found:
    """The share of this notebook's rows whose verdict is the same in two runs, over all pairs of runs."""
    if len(tables) < 2:
        raise Untestable("needs two runs: gnnlab run 02 --runs 2")
    shares = []
    for other in catalogue().values():
        if other.notebook != claim.notebook or other.of.logic:
            continue
        verdicts = [_judged(other, [table]).verdict for table in tables]
        if any(v is not Verdict.UNTESTABLE for v in verdicts):
            shares.append(np.mean([a is b for a, b in itertools.combinations(verdicts, 2)]))
    pairs = math.comb(len(tables), 2)
    found = estimates.over_clusters(shares, range(len(shares)), "mean")
    low, high = (None, None) if found.low is None else (max(found.low, 0.0), min(found.high, 1.0))
    how = f"mean over {len(shares)} rows of the share of {pairs} pairs of runs that agree"
    return Found(Estimate(found.value, low, high, len(shares)), [], how)


LOGIC: dict[str, Callable[[Claim, Sequence[Table]], Found]] = {"same_verdict": _same_verdict}


# ---- computed again, and shown --------------------------------------------------------------------------------------


def recompute(folder: Path) -> list[str]:
    """What of the stored files does not follow from the samples and the rules: a line each, none if all does.

    Every row with samples is summarized again, every ratio of a race too, and the ledger is held against `claims.json`.
    """
    runs, problems = results.runs_of(folder)
    for of_notebook in runs.values():
        for result, table in of_notebook:
            problems += [f"{result.notebook}: {line}" for row in table for line in differences(row, table)]
    try:
        claims = json.loads((Path(folder) / RECORD).read_text(encoding="utf-8"))["claims"]
        stored = {row["id"]: row for row in claims}
    except (OSError, ValueError, KeyError, TypeError):
        return [*problems, f"{folder}/{RECORD} is missing or damaged; gnnlab report writes it"]
    now = {row.id: row.model_dump(mode="json") for row in judge(folder).rows}
    for id, row in stored.items():
        again = now.pop(id, None)
        if again != row:
            problems.append(f"{id}: stored {_short(row)}, computed again {_short(again)}")
    return problems + [f"{id}: not stored, computed again {row['verdict']}" for id, row in now.items()]


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
            ratio = _cell_ratio(table, cell, [row], [cell[row.baseline]], "median")[0]
            if not _same((row.ratio, row.ratio_low, row.ratio_high), (ratio.value, ratio.low, ratio.high)):
                lines.append(f"{row.label}: stored ratio {row.ratio}, from its samples {ratio.value}")
    return lines


def _short(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "nothing"
    return f"{row.get('verdict')} {row.get('value')} ({row.get('low')} to {row.get('high')})"


def _same(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(x is y or (None not in (x, y) and math.isclose(x, y, rel_tol=1e-9)) for x, y in pairs)
