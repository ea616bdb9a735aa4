"""What README shows of notebook 09, from all runs of a folder: whole models against every peer, layers on graphs that
are new in each call, and how models grow.

figures = figures_of(tables)        # what a machine's ledger keeps of its runs, for JSON
lines({"amd-epyc": figures})        # as Markdown, nothing where nothing was measured
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
from scipy.stats import gmean

from gnnlab.errors import Untestable
from gnnlab.measure import estimates

from .claims import catalogue, evaluate
from .table import Table
from .text import markdown, number

RACED, GROWN, NEW = "whole_models", "growth", "new_graph"
GOAL = "goal.whole_model_forward"  # whose rule names the peers
LEAST_EDGES = 1_000_000  # of the table of growth
MIB_PER_GIB = 1024
GROWN_COLUMNS = {  # heading: phase, quantity, and how much of its unit is one of the heading's
    "forward, s": ("forward", "time", 1000),
    "training step, s": ("training step", "time", 1000),
    "its peak memory, GiB": ("training step", "peak memory", MIB_PER_GIB),
}
FIRST_CALL = "first call over a later one"
Figures = dict[str, list[dict[str, Any]]]


def figures_of(tables: Sequence[Table]) -> Figures:
    """Of each whole model, graph and pass the gain over PyG and over the best peer; of each layer on graphs that are
    new in each call the gain over PyG; of each grown cell its number. Each is pooled over the runs, of which there is a
    table each."""
    return {RACED: _gains(tables), GROWN: _grown(tables), NEW: _of_new_graphs(tables)}


def _gains(tables: Sequence[Table]) -> list[dict[str, Any]]:
    goal, gains = catalogue()[GOAL], []
    rows = {row.id: row for table in tables for row in table.select(RACED, goal.of.form) if row.status == "ok"}
    for row in rows.values():
        gain = {**row.keys}
        with suppress(Untestable):  # in one of the runs
            for name, over in (("over_pyg", None), ("over_best", goal.of.over)):
                rule = goal.of.model_copy(update={"where": row.keys, "cells": None, "over": over})
                claim = goal.model_copy(update={"of": rule})
                runs = [evaluate(claim, table).estimate for table in tables]
                gain[name] = estimates.combine_runs(runs, log=True).value
            gains.append(gain | {"threads": row.threads})
    return gains


def _of_new_graphs(tables: Sequence[Table]) -> list[dict[str, Any]]:
    rows = [row for table in tables for row in table.select(NEW, "gnnlab") if row.ratio is not None]
    frame = pd.DataFrame([{**row.keys, "over_pyg": row.ratio} for row in rows])
    return frame.groupby(["layer", "graph"], sort=False, as_index=False).median().to_dict("records") if rows else []


def _grown(tables: Sequence[Table]) -> list[dict[str, Any]]:
    rows = [row for table in tables for row in table.select(GROWN) if row.keys["edges"] >= LEAST_EDGES]
    if not rows:
        return []
    frame = pd.DataFrame([{**row.keys, "form": row.form, "value": row.value} for row in rows]).dropna(subset="value")
    keys = [name for name in frame if name != "value"]
    return frame.groupby(keys, sort=False, as_index=False)["value"].median().to_dict("records")


# ---- as Markdown ----------------------------------------------------------------------------------------------------


def lines(by_machine: Mapping[str, Figures]) -> list[str]:
    """What was measured, each with a line that says what it shows: a table of whole models, a sentence for each machine
    of layers on new graphs, a table of growth at the most edges."""
    lines = []
    if not (raced := _frame(by_machine, RACED)).empty:
        title = (
            "`swap` on whole models of two layers, times as fast as the best of PyG, PyG with its cache, a sparse CSR "
            "adjacency, sparse features, `EdgeIndex` and torch.compile, chosen in half of the rounds and timed "
            f"in the others; {raced['threads'][0]} threads, {' / '.join(raced['machine'].unique())}:"
        )
        raced["column"] = raced["graph"] + ", " + raced["pass"]
        means = raced.groupby(["column", "machine"], sort=False)[["over_best", "over_pyg"]].agg(gmean).reset_index()
        mean = means.assign(model="geometric mean")
        over_pyg = means.assign(model="the same over PyG's usual form", over_best=means["over_pyg"])
        cells = pd.concat([raced, mean, over_pyg]).set_index(["model", "column", "machine"])["over_best"]
        text = cells.map("{:.1f}".format).unstack(sort=False).fillna("–").agg(" / ".join, axis=1).unstack(sort=False)
        lines += ["", title, "", *markdown(("", *text.columns), text.fillna("").itertuples())]
    if not (new := _frame(by_machine, NEW)).empty:
        spans = []
        for machine, gains in new.groupby("machine", sort=False)["over_pyg"]:
            span = f"{number(gains.min())} to {number(gains.max())}, geometric mean {number(gmean(gains))}"
            spans.append(f"{span} ({machine})")
        lines += [
            "",
            f"Layers on a graph that is new in each call, as sampled batches are, forward: {'; '.join(spans)}.",
        ]
    if not (grown := _frame(by_machine, GROWN)).empty:
        edges, rows = grown["edges"].max(), []
        grown = grown[grown["edges"] == edges]
        grown[["model", "form"]] = grown["form"].str.split(", ", n=1, expand=True)
        for (machine, model), cells in grown.groupby(["machine", "model"], sort=False):
            values = cells.set_index(["phase", "quantity", "form"])["value"]
            both = [_before_and_after(values, *column) for column in GROWN_COLUMNS.values()]
            first = values.get(("forward", FIRST_CALL, "gnnlab"))
            rows.append((model, machine, *both, "" if first is None else number(first)))
        title = f"On {edges:,} edges, PyG → `swap`, 100 features, two layers of 64 channels:"
        lines += ["", title, "", *markdown(("model", "machine", *GROWN_COLUMNS, FIRST_CALL), rows)]
    return lines


def _frame(by_machine: Mapping[str, Figures], study: str) -> pd.DataFrame:
    rows = [
        {**row, "machine": machine.removesuffix("-processor")}
        for machine, figures in by_machine.items()
        for row in figures.get(study, [])
    ]
    return pd.DataFrame(rows)


def _before_and_after(values: pd.Series, phase: str, quantity: str, per: float) -> str:
    """ "4 → 0.5", "does not fit → 2.5"; nothing where neither was measured."""
    pair = [values.get((phase, quantity, form)) for form in ("PyG", "gnnlab")]
    return "" if pair == [None, None] else " → ".join("does not fit" if v is None else number(v / per) for v in pair)
