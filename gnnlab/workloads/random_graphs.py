"""`random:nodes=1000,edges=10000,degrees=powerlaw,seed=0`: graphs with an exact number of edges.

Edges are directed: distinct ordered pairs of different nodes. How likely a pair is makes the degree distribution:

- `uniform`: every pair alike (degrees gather round their mean).
- `powerlaw`: as the product of its nodes' weights, the k-th of which is k^(-1/(g-1)) with g = 2.5 (Chung & Lu 2002):
  few hubs, many leaves.

Features are standard normal, or, with `density=0.0127`, bags of words: 1 in that share of the places, else 0.

Node numbers are shuffled, so that memory locality is alike in both.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

EXPONENT = 2.5
MOST_NUMBERS = 1_000_000_000  # nodes * features: 4 GB of float32
DENSE = 4  # above one pair in so many, all pairs are ranked; below, pairs are drawn until enough differ
DEGREES = ("uniform", "powerlaw")
FIELDS = {  # type, least and most of a number, default
    "nodes": (int, 2, 10_000_000, None),
    "edges": (int, 1, 20_000_000, None),
    "degrees": (str, "", "", "uniform"),
    "seed": (int, 0, 2**63 - 1, 0),
    "features": (int, 1, 100_000, 16),
    "density": (float, 1e-9, 1, 1.0),
}


def _read(name: str, text: str) -> int | float | str:
    """The value of a field; raises `ValueError`, which says what is wanted."""
    if name not in FIELDS:
        raise ValueError("there is no such field")
    kind, least, most, _ = FIELDS[name]
    if name == "degrees":
        if text in DEGREES:
            return text
        raise ValueError(f"{' or '.join(DEGREES)} is wanted")
    with suppress(ValueError):
        if least <= (value := kind(text)) <= most:
            return value
    raise ValueError(f"a number from {least:,} to {most:,} is wanted")


def generate(text: str) -> Data:
    """Of `nodes=...,edges=...` and perhaps the other `FIELDS`: `x` (N, features), `edge_index` (2, E) by
    source, then target; same text, same graph. Raises `GnnlabError` for anything else."""
    values = {name: default for name, (*_, default) in FIELDS.items()}
    allowed = f"allowed are {', '.join(f'{name}=' for name in FIELDS)}"
    for part in filter(None, text.split(",")):
        name, _, given = (piece.strip() for piece in part.partition("="))
        try:
            values[name] = _read(name, given)
        except ValueError as error:
            raise GnnlabError(f"random graph: {name}={quoted(given)}: {error}; {allowed}") from None
    nodes, edges, degrees, seed, features, density = values.values()
    if None in (nodes, edges):
        raise GnnlabError(f"random graph: {'nodes' if nodes is None else 'edges'}= is needed; {allowed}")
    if edges > nodes * (nodes - 1):
        raise GnnlabError(f"random graph: {nodes} nodes have at most {nodes * (nodes - 1)} directed edges, not {edges}")
    if nodes * features > MOST_NUMBERS:
        raise GnnlabError(
            f"random graph: {nodes} nodes * {features} features exceed {MOST_NUMBERS} numbers; ask for fewer"
        )
    rng = np.random.default_rng(seed)
    power = 1 / (EXPONENT - 1) if degrees == "powerlaw" else 0.0
    weight = np.arange(1, nodes + 1, dtype=np.float64) ** -power
    source, target = _weighted_pairs(weight, edges, rng)
    shuffled = rng.permutation(nodes)
    source, target = shuffled[source], shuffled[target]
    order = np.lexsort((target, source))
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    if density < 1:
        x = (rng.random(x.shape, dtype=np.float32) < density).astype(np.float32)
    return Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(np.stack([source[order], target[order]])))


def _weighted_pairs(weight: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pairs, drawn one after the other with chances proportional to the product of their nodes' weights."""
    n = len(weight)
    if count * DENSE >= n * (n - 1):
        # the same draw by ranking all pairs by exponential clocks (Efraimidis & Spirakis 2006)
        source, target = np.divmod(np.flatnonzero(~np.eye(n, dtype=bool)), n)
        clock = rng.exponential(size=len(source)) / (weight[source] * weight[target])
        first = np.argpartition(clock, count - 1)[:count]
        return source[first], target[first]
    ladder = np.cumsum(weight)

    def draw(size: int) -> np.ndarray:
        ends = np.searchsorted(ladder, rng.random((2, size)) * ladder[-1], side="right").clip(max=n - 1)
        return (ends[0] * n + ends[1])[ends[0] != ends[1]]

    drawn = np.empty(0, dtype=np.int64)  # the first `count` different ones
    while len(drawn) < count:
        drawn = np.concatenate([drawn, draw(count - len(drawn) + 16)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return np.divmod(drawn[:count], n)
