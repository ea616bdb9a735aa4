"""A claim's rule evaluated over the rows of one run: which rows decide, and by what statistic.

    found = evaluate(catalogue()["gat.compile"], table)      # found.estimate, with its interval; found.how, in words

Raises `Untestable` where the rows give no figure, with what it would need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnlab.errors import Untestable
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONTROL, Estimate

from .claims import Claim, Rule
from .table import Interval, Row, Table
from .text import format_value


@dataclass(frozen=True)
class Found:
    """What the rows of one run say of a claim: the figure, the rows that it rests on, and how it was had."""

    estimate: Estimate
    rows: Sequence[Row]
    how: str
    holds: bool | None = None  # of counts: are all as claimed?


def evaluate(claim: Claim, table: Table) -> Found:
    """What `table` says of `claim` by its rule. Raises `Untestable` with what it would need."""
    rule = claim.of
    everywhere = table.select(rule.study, where=rule.where)
    rows = [row for row in everywhere if claim.device is None or row.device.startswith(claim.device)]
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


def _nothing(claim: Claim, table: Table) -> str:
    if claim.device and table.select(claim.of.study):
        return f"needs a {claim.device} device" + ("; params/gpu measures it there" if claim.device == "CUDA" else "")
    if claim.needs == "cuda":
        return "needs a CUDA device; params/gpu measures it there"
    if claim.needs:
        return f"needs {claim.needs}"
    if claim.of.where and table.select(claim.of.study):
        wanted = " and ".join(f"{key} {value}" for key, value in claim.of.where.items())
        return f"no row of {claim.of.study} here has {wanted}"
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
        estimate, form, peer = cell_ratio(table, cell, ours, against, "mean" if rule.stat == "throughput" else "median")
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
    failed = [f"{name}: {cell[name].reason}" for name in peers if cell[name].status != "ok"]
    if failed:
        raise Untestable(f"a peer is not there to compare with; {failed[0]}")
    return [cell[name] for name in peers]


def cell_ratio(
    table: Table, cell: Mapping[str, Row], forms: Sequence[Row], peers: Sequence[Row], of: str
) -> tuple[Estimate, Row, Row]:
    """One cell's ratio; where there is a choice, it is made on every other round and judged on the others."""
    control = cell.get(CONTROL)
    times = {row.form: table.samples_of(row) for row in (*forms, *peers)}
    if any(samples is None for samples in times.values()):
        raise Untestable(f"the samples of {forms[0].study} are not there")
    if len({len(samples) for samples in times.values()}) > 1:
        raise Untestable(f"forms of {forms[0].study} have different numbers of rounds")
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
