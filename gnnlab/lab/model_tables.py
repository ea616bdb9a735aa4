"""Two tables of notebook 09 for README: whole models against every peer, and how they grow; from all runs of a folder.

kept = figures_of(tables)        # what a machine's ledger keeps of its runs, for JSON
lines(kept, "AMD EPYC, 2 cores") # as Markdown, nothing where nothing was measured
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from gnnlab.errors import Untestable
from gnnlab.profiling import estimates

from .claims import Claim, catalogue, evaluate
from .table import Table, number

RACED, GROWN = "whole_models", "growth"
GOAL = "goal.whole_model_forward"  # whose rule names the peers
LEAST_EDGES = 1_000_000  # of the table of growth
MIB_PER_GIB = 1024
Kept = dict[str, list[dict[str, Any]]]


def figures_of(tables: Sequence[Table]) -> Kept:
    """Of each whole model, graph and pass the gain over PyG and over the best peer; of each grown cell its number. Each
    is pooled over the runs, of which there is a table each."""
    return {RACED: _gains(tables), GROWN: _grown(tables)}


def _gains(tables: Sequence[Table]) -> list[dict[str, Any]]:
    goal, gains = catalogue()[GOAL], []
    for keys in _distinct(row.keys for table in tables for row in table.select(RACED)):
        rule = goal.of.model_copy(update={"where": keys, "cells": None})
        over_best = _pooled(goal.model_copy(update={"of": rule}), tables)
        over_pyg = _pooled(goal.model_copy(update={"of": rule.model_copy(update={"over": None})}), tables)
        if over_best and over_pyg:
            rows = [row for row in tables[0].select(RACED, goal.of.form, keys) if row.status == "ok"]
            gains.append({**keys, "over_pyg": over_pyg, "over_best": over_best, "threads": rows[0].threads})
    return gains


def _pooled(claim: Claim, tables: Sequence[Table]) -> float | None:
    """What all runs say of a claim; None where one of them cannot be judged."""
    try:
        return estimates.pooled([evaluate(claim, table).estimate for table in tables], log=True).value
    except Untestable:
        return None


def _grown(tables: Sequence[Table]) -> list[dict[str, Any]]:
    rows = [row for table in tables for row in table.select(GROWN) if row.keys["edges"] >= LEAST_EDGES]
    cells = []
    for cell in _distinct({**row.keys, "form": row.form} for row in rows):
        of_cell = [row.value for row in rows if {**row.keys, "form": row.form} == cell and row.value is not None]
        if of_cell:
            cells.append({**cell, "value": statistics.median(of_cell)})
    return cells


def _distinct(keys: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(one) for one in dict.fromkeys(tuple(each.items()) for each in keys)]


# ---- as Markdown ----------------------------------------------------------------------------------------------------


def lines(kept: Kept, machine: str) -> list[str]:
    """Both tables, each under a line that says what it shows and on which machine."""
    return [*_gain_lines(kept.get(RACED, []), machine), *_growth_lines(kept.get(GROWN, []), machine)]


def _gain_lines(gains: Sequence[dict[str, Any]], machine: str) -> list[str]:
    if not gains:
        return []
    columns = _distinct({"graph": one["graph"], "pass": one["pass"]} for one in gains)
    cells = {
        (one["model"], one["graph"], one["pass"]): f"{number(one['over_pyg'])} / {number(one['over_best'])}"
        for one in gains
    }
    rows = [
        (model, *(cells.get((model, *column.values()), "") for column in columns))
        for model in dict.fromkeys(one["model"] for one in gains)
    ]
    threads = gains[0]["threads"]
    return [
        "",
        "`swap` on whole models of two layers, times as fast as PyG / as the best of PyG with its cache, a sparse CSR "
        f"adjacency, sparse features, `EdgeIndex` and torch.compile ({machine}, {threads} threads):",
        "",
        *_markdown(("", *(", ".join(column.values()) for column in columns)), rows),
    ]


def _growth_lines(grown: Sequence[dict[str, Any]], machine: str) -> list[str]:
    if not grown:
        return []
    known = {(one["edges"], one["form"], one["phase"], one["quantity"]): one["value"] for one in grown}

    def both(edges: int, model: str, phase: str, quantity: str, per: float) -> str:
        values = [known.get((edges, f"{model}, {form}", phase, quantity)) for form in ("PyG", "gnnlab")]
        texts = ["does not fit" if value is None else number(value / per) for value in values]
        return "" if values == [None, None] else " → ".join(texts)

    rows = []
    for edges, model in dict.fromkeys((one["edges"], one["form"].partition(",")[0]) for one in grown):
        times = [both(edges, model, phase, "time", 1000) for phase in ("forward", "training step")]
        peak = both(edges, model, "training step", "peak memory", MIB_PER_GIB)
        first = known.get((edges, f"{model}, gnnlab", "forward", "first call over a later one"))
        rows.append((f"{edges:,}", model, *times, peak, "" if first is None else number(first)))
    header = ("edges", "model", "forward, s", "training step, s", "its peak memory, GiB", "first call over a later one")
    title = f"How they grow, PyG → `swap`, 100 features, two layers of 64 channels ({machine}):"
    return ["", title, "", *_markdown(header, rows)]


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
