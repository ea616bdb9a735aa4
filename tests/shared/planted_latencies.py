"""Latencies of the stages of a layer on a made-up machine, as the table of a campaign has them."""

from itertools import product

import numpy as np
import pandas as pd

from gnnlab.prediction.planted_truth import noisy

PLANTED = "planted"  # the unit


def latencies(layer, sizes, truth, *, noise, seed, moved=None):
    """Each stage at each size: unit, first, last, nodes, edges, ms, ms_low, ms_high, n.

    `moved(stage, nodes, edges)`: bytes that go over the bandwidth, by default those that a stage reads and writes.
    """
    random, rows, bytes_of = np.random.default_rng(seed), [], moved or layer.bytes_moved
    for stage, (nodes, edges) in product(layer.numbers, sizes):
        true_ms = truth.compute_ms(layer.flops(stage, stage, nodes, edges))
        true_ms += truth.moving_ms(bytes_of(stage, nodes, edges))
        at = {"unit": PLANTED, "first": stage, "last": stage, "nodes": nodes, "edges": edges}
        rows.append({**at, **noisy(random, true_ms, noise)})
    return pd.DataFrame(rows)
