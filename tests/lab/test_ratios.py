"""Ratios come from the samples of interleaved rounds; what was chosen by its samples is judged on others."""

import numpy as np
import pytest
from table_rows import TORCH, put, raced

from gnnlab.errors import Untestable
from gnnlab.lab import ratios
from gnnlab.lab.table import Table, row
from gnnlab.measure.estimates import CONTROL

MS = {"unit": "ms", "better": "lower", "origin": "measured"}


def ratio(table, variant="fast", over=()):
    rows = [each for each in table.select("s") if each.variant in variant]
    return ratios.of_cells(table, rows, table.select("s"), over)[0].ratio


def test_the_fastest_of_equal_variants_is_not_judged_by_the_samples_that_chose_it():
    names = [f"variant {i}" for i in range(10)]
    tables = [raced(dict.fromkeys(names, 1.0), rounds=24, noise=0.2, seed=seed) for seed in range(15)]
    assert abs(np.mean([np.log(ratio(table, names).value) for table in tables])) < 0.06


def test_the_fastest_variant_and_the_fastest_baseline_count_and_none_may_be_left_out():
    table = raced({"slow": 1.0, "fast": 3.0, "EdgeIndex": 2.0, "CSR": 1.5})
    (cell,) = ratios.of_cells(table, [*table.select("s", "slow"), *table.select("s", "fast")], table.select("s"))
    assert (cell.variant.variant, cell.baseline.variant, cell.ratio.n) == ("fast", "PyG", 20)
    assert ratio(table, over=["EdgeIndex", "CSR"]).value == pytest.approx(1.5, rel=0.05)
    for over in (["EdgeIndex", "torch.compile"], ["torch.compile"]):
        with pytest.raises(Untestable, match=r"needs torch\.compile in the same race"):
            ratio(table, over=over)
    with pytest.raises(Untestable, match="needs PyG in the same race"):
        ratio(Table(each for each in table if each.variant != "PyG"))


@pytest.mark.parametrize("status", ["failed", "unavailable"])
def test_a_baseline_that_computes_something_else_is_none_and_one_that_is_not_here_is_missed(status):
    table = raced({"fast": 3.0, "EdgeIndex": 2.0})
    table.put(row(**TORCH, study="s", keys={"size": "a"}, variant="CSR", status=status, reason="other result", **MS))
    if status == "failed":
        assert ratio(table, over=["EdgeIndex", "CSR"]).value == pytest.approx(1.5, rel=0.05)
    with pytest.raises(Untestable, match="CSR: other result"):
        ratio(table, over=["CSR"] if status == "failed" else ["EdgeIndex", "CSR"])


def test_what_a_control_shows_is_in_every_ratio():
    quiet, loud = raced({"fast": 2.0}, noise=0.001), Table()
    base, control, fast = (quiet.samples_of(quiet.select("s", variant)[0]) for variant in ("PyG", CONTROL, "fast"))
    put(loud, "s", {"size": "a"}, "PyG", base)
    put(loud, "s", {"size": "a"}, CONTROL, control * 1.1, ("PyG", base))
    put(loud, "s", {"size": "a"}, "fast", fast, ("PyG", base), control * 1.1)
    narrow, wide = ratio(quiet), ratio(loud)
    assert wide.low < narrow.low / 1.05 and wide.high > narrow.high * 1.05


# ---- what all cells come to


@pytest.mark.parametrize(
    ("gain", "noise", "within", "ends"),
    [(1.5, 0.02, 0.05, (1, 1)), (0.8, 0.02, 0.05, (0, 0)), (0.95, 0.2, 0.05, (0, 1)), (0.98, 0.001, 0.05, (1, 1)),
     (0.98, 0.001, 0, (0, 0))],
)  # fmt: skip
def test_a_cell_whose_interval_reaches_both_sides_leaves_the_share_that_is_not_slower_open(gain, noise, within, ends):
    table = raced({"fast": gain}, cells=("a", "b"), noise=noise)
    made = ratios.summarized(table, "s", "fast", how="not slower", over="PyG; A/A", within=within)
    assert (made.low, made.high, made.unit, made.n) == (*ends, "share", 2) and made.low <= made.value <= made.high


def test_the_worst_cell_counts_of_those_that_are_asked_for_and_all_have_to_be_there():
    table = raced({"fast": 2.0}, cells=("a", "b"))
    slow = table.samples_of(table.select("s", "PyG", {"size": "a"})[0])
    put(table, "s", {"size": "a"}, "fast", slow / 1.5, ("PyG", slow))
    made = ratios.summarized(table, "s", "fast", how="worst", cells=2)
    assert (made.study, made.keys, made.notes) == ("s_summary", {"how": "worst", "cells": 2}, ["worst of 2 cells"])
    assert made.value == pytest.approx(1.5) and made.unit == "x" and made.low <= made.value <= made.high
    assert ratios.summarized(table, "s", "fast", how="worst", size="b; c").value == pytest.approx(2, rel=0.02)
    with pytest.raises(Untestable, match="2 of the 15 cells of fast that it needs"):
        ratios.summarized(table, "s", "fast", how="worst", cells=15)


def test_clusters_are_resampled_and_two_of_them_have_no_interval():
    exact = {**TORCH, **MS, "variant": "predicted", "statistic": "single", "interval": "none", "n": 2}
    rows = [
        row(study="s", keys={"size": size, "at": at}, value=value, **exact)
        for size, values in (("a", (1, 2, 30)), ("b", (2, 4)), ("c", (4,)))
        for at, value in enumerate(values)
    ]
    share = {"how": "share", "within": 10, "cluster": "size"}
    made = ratios.summarized(Table(rows), "s", "predicted", **share)
    assert made.value == pytest.approx(5 / 6) and made.low < made.value < made.high
    assert ratios.summarized(Table(rows), "s", "predicted", **share, size="a; b").low is None
    assert ratios.summarized(Table(rows), "s", "predicted", how="median", cluster="size").value == 3
    assert ratios.summarized(Table(rows), "s", "predicted", how="median").value == 3  # of ratios, without a cluster
