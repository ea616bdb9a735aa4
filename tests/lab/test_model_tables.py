"""Tables of whole models follow from the samples of all runs, and leave out what was not compared with every peer."""

import numpy as np
import pytest
from table_rows import TORCH, put

from gnnlab.lab import claims, model_tables
from gnnlab.lab.table import Table, row

PEERS = {name: 5.0 for name in claims.catalogue()[model_tables.GOAL].of.over if name != "PyG"} | {"torch.compile": 2.0}
KEYS = {"model": "GCN 16", "graph": "dense features", "pass": "forward"}


def run(gnnlab=1.0, leave_out=(), peak=2048.0):
    """One run: a whole model of which PyG takes 8 ms, and two cells of growth."""
    table, rng = Table(), np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.01, 40))
    put(table, model_tables.RACED, KEYS, "PyG", 8 * noise)
    for form, ms in (PEERS | {"gnnlab": gnnlab}).items():
        if form not in leave_out:
            put(table, model_tables.RACED, KEYS, form, ms * noise, ("PyG", 8 * noise))
    for layer, ms in (("GCN", 2.0), ("GAT", 4.0)):
        put(table, model_tables.NEW, {"layer": layer, "graph": "digits"}, "PyG", 8 * noise)
        put(table, model_tables.NEW, {"layer": layer, "graph": "digits"}, "gnnlab", ms * noise, ("PyG", 8 * noise))
    cell = {"nodes": 100, "edges": 2_000_000}
    single = {**TORCH, "study": model_tables.GROWN, "n": 1, "better": "lower", "statistic": "single"}
    for phase, quantity, unit, values in (
        ("forward", "time", "ms", (4000.0, 500.0)),
        ("training step", "peak memory", "MiB", (None, peak)),
        ("forward", "first call over a later one", "x", (1.0, 2.5)),
    ):
        for form, value in zip(("GCN, PyG", "GCN, gnnlab"), values, strict=True):
            lost = {"status": "failed", "reason": "used 9 GB"} if value is None else {"interval": "none"}
            keys = {**cell, "phase": phase, "quantity": quantity}
            table.put(row(**single, keys=keys, form=form, unit=unit, origin="measured", value=value, **lost))
    return table


def test_the_best_peer_and_pyg_of_all_runs():
    (gain,) = model_tables.figures_of([run(1.0), run(1.21)])[model_tables.RACED]
    assert gain["over_pyg"] == pytest.approx(8 / 1.1, rel=0.01) and gain["over_best"] == pytest.approx(
        2 / 1.1, rel=0.01
    )
    figures = model_tables.figures_of([run()])
    other = {**figures, model_tables.RACED: [{**figures[model_tables.RACED][0], "pass": "training", "over_best": 3.0}]}
    text = "\n".join(model_tables.lines({"a-chip": figures, "another": other}))
    assert "forward: 2 to 4, geometric mean 2.83 (a-chip)" in text
    assert "2 threads, a-chip / another" in text and "| dense features, forward | dense features, training |" in text
    assert "| GCN 16 | 2.0 / – | – / 3.0 |" in text and "PyG's usual form | 8.0 / – | – / 8.0 |" in text


def test_without_every_peer_there_is_no_row():
    assert model_tables.figures_of([run(leave_out=["torch.compile"])])[model_tables.RACED] == []
    assert model_tables.lines({}) == []


def test_growth_says_what_does_not_fit():
    figures = model_tables.figures_of([run(), run(peak=3072.0)])
    text = "\n".join(model_tables.lines({"a-chip": figures}))
    assert "On 2,000,000 edges" in text and "| GCN | a-chip | 4 → 0.5 |  | does not fit → 2.5 | 2.5 |" in text
