"""`random:nodes=1000,edges=10000,degrees=powerlaw,seed=0`: graphs with an exact number of edges.

Edges are directed: distinct ordered pairs of different nodes. How likely a pair is makes the degree distribution:

- `uniform`: every pair alike (degrees gather round their mean).
- `powerlaw`: as the product of its nodes' weights, the k-th of which is k^(-1/(g-1)) with g = 2.5 (Chung & Lu 2002):
  few hubs, many leaves.

Features are standard normal, or, with `density=0.0127`, bags of words: 1 in that share of the places, else 0.

Node numbers are shuffled, so that memory locality is alike in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields

import numpy as np
import torch
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

EXPONENT = 2.5
MOST_NUMBERS = 1_000_000_000  # nodes * features: 4 GB of float32
DENSE = 4  # above one pair in so many, all pairs are ranked; below, pairs are drawn until enough differ
DEGREES = ("uniform", "powerlaw")


def _within(kind: type, least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """Reads a number from `least`, or `above` it, to `most`; raises `ValueError` for another."""

    def read(text: str) -> float:
        value = kind(text)
        if not (least < value if above else least <= value) or not value <= most:
            raise ValueError
        return value

    read.wanted = f"a number {'above' if above else 'from'} {least:,} to {most:,}"
    return read


def _degrees(text: str) -> str:
    return DEGREES[DEGREES.index(text)]


_degrees.wanted = " or ".join(DEGREES)
_READ = {
    "nodes": _within(int, 2, 10_000_000),
    "edges": _within(int, 1, 20_000_000),
    "degrees": _degrees,
    "seed": _within(int, 0, 2**63 - 1),
    "features": _within(int, 1, 100_000),
    "density": _within(float, 0, 1, above=True),
}


@dataclass(frozen=True)
class RandomSpec:
    """`edges` are directed, and exact; `density` below 1: share of features that are 1, the others 0."""

    nodes: int
    edges: int
    degrees: str = "uniform"
    seed: int = 0
    features: int = 16
    density: float = 1.0

    @classmethod
    def read(cls, given: Mapping[str, str]) -> RandomSpec:
        """Of the texts of its fields. Raises `ValueError`, which says what is wrong."""
        for field in fields(cls):
            if field.default is MISSING and field.name not in given:
                raise ValueError(f"{field.name}={quoted('')}: Field required")
        values = {}
        for name, text in given.items():
            if name not in _READ:
                raise ValueError(f"{name}={quoted(text)}: there is no such field")
            try:
                values[name] = _READ[name](text)
            except ValueError:
                raise ValueError(f"{name}={quoted(text)}: {_READ[name].wanted} is wanted") from None
        spec = cls(**values)
        if spec.edges > (most := spec.nodes * (spec.nodes - 1)):
            raise ValueError(f"{spec.nodes} nodes have at most {most} directed edges, not {spec.edges}")
        if spec.nodes * spec.features > MOST_NUMBERS:
            raise ValueError(f"{spec.nodes} nodes * {spec.features} features exceed {MOST_NUMBERS} numbers")
        return spec


def generate(text: str) -> Data:
    """Of `nodes=...,edges=...` and the other fields of `RandomSpec`: `x` (N, features), `edge_index` (2, E) by source,
    then target; same text, same graph. Raises `GnnlabError` for anything else."""
    parts = (part.partition("=") for part in text.split(",") if part)
    given = {name.strip(): value.strip() for name, _, value in parts}
    try:
        spec = RandomSpec.read(given)
    except ValueError as error:
        allowed = ", ".join(f"{field}=" for field in _READ)
        raise GnnlabError(f"random graph: {error}; allowed are {allowed}") from None
    rng = np.random.default_rng(spec.seed)
    power = 1 / (EXPONENT - 1) if spec.degrees == "powerlaw" else 0.0
    weight = np.arange(1, spec.nodes + 1, dtype=np.float64) ** -power
    source, target = _weighted_pairs(weight, spec.edges, rng)
    shuffled = rng.permutation(spec.nodes)
    source, target = shuffled[source], shuffled[target]
    order = np.lexsort((target, source))
    x = rng.standard_normal((spec.nodes, spec.features), dtype=np.float32)
    if spec.density < 1:
        x = (rng.random(x.shape, dtype=np.float32) < spec.density).astype(np.float32)
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
