"""Rows of the lab's one table: from frames as `Lab.record` makes them, from samples as a race does, and exact ones."""

import numpy as np
from one_table import Recorder

from gnnlab.lab.table import Table, of_estimate, row
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL

TORCH = {"device": "CPU chip", "runtime": "torch 1", "precision": "float32", "threads": 2}


def as_rows(frame, *keys, **constant):
    """A row for each row of `frame`; conditions that neither it nor `constant` names are those of torch."""
    return Recorder().record("s", frame, keys=keys, **TORCH | constant).rows


def put(table, study, keys, variant, samples, baseline=None, control=None, **fields):
    """Add a row that follows from its samples; `baseline`: the name and the samples of what it is compared with."""
    over = {}
    if baseline is not None:
        ratio = estimates.ratio(*baseline[1:], samples, *([] if control is None else [control]))
        over = {"baseline": baseline[0], "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
    ends = of_estimate(estimates.summary(samples))
    named = {"study": study, "keys": keys, "variant": variant, "origin": "measured", "statistic": "median"}
    table.put(row(**{**TORCH, "unit": "ms", "better": "lower", **named, **ends, **over, **fields}), samples)


def raced(gains, *, cells=("a",), rounds=40, noise=0.02, seed=0, study="s", device="CPU chip"):
    """A table with one race: `gains` maps each variant to how much faster than the baseline it is."""
    table, rng = Table(), np.random.default_rng(seed)
    for cell in cells:
        base, control = (np.exp(rng.normal(0, noise, rounds)) for _ in range(2))
        put(table, study, {"size": cell}, "PyG", base, device=device)
        put(table, study, {"size": cell}, CONTROL, control, ("PyG", base), device=device)
        for variant, gain in gains.items():
            samples = np.exp(rng.normal(0, noise, rounds)) / gain
            put(table, study, {"size": cell}, variant, samples, ("PyG", base), control, device=device)
    return table


def counted(study="s", **values):
    """An exact row for each variant."""
    exact = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1, "unit": "count", "better": "lower"}
    return [row(study=study, variant=variant, value=value, **TORCH, **exact) for variant, value in values.items()]
