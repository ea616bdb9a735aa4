"""`random:nodes=1000,edges=10000,degrees=powerlaw,seed=0`: graphs with an exact number of edges.

Edges are directed: distinct ordered pairs of different nodes. How likely a pair is makes the degree distribution:

- `uniform`: every pair alike (degrees gather round their mean).
- `powerlaw`: as the product of its nodes' weights, the k-th of which is k^(-1/(g-1)) with g = 2.5 (Chung & Lu 2002):
  few hubs, many leaves.

Features are standard normal, or, with `density=0.0127`, bags of words: 1 in that share of the places, else 0.

Node numbers are shuffled, so that memory locality is alike in both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, first_wrong
from gnnswap.errors import quoted

EXPONENT = 2.5
MOST_NUMBERS = 1_000_000_000  # nodes * features: 4 GB of float32
DENSE = 4  # above one pair in so many, all pairs are ranked; below, pairs are drawn until enough differ


class RandomSpec(BaseModel, extra="forbid"):
    nodes: int = Field(ge=2, le=10_000_000)
    edges: int = Field(ge=1, le=20_000_000)  # directed, exact
    degrees: Literal["uniform", "powerlaw"] = "uniform"
    seed: int = Field(0, ge=0, le=2**63 - 1)
    features: int = Field(16, ge=1, le=100_000)
    density: float = Field(1, gt=0, le=1, allow_inf_nan=False)  # below 1: share of features that are 1, the others 0

    @model_validator(mode="after")
    def _possible(self) -> RandomSpec:
        if self.edges > (most := self.nodes * (self.nodes - 1)):
            raise ValueError(f"{self.nodes} nodes have at most {most} directed edges, not {self.edges}")
        if self.nodes * self.features > MOST_NUMBERS:
            raise ValueError(f"{self.nodes} nodes * {self.features} features exceed {MOST_NUMBERS} numbers")
        return self


def generate(text: str) -> Data:
    """Of `nodes=...,edges=...` and the other fields of `RandomSpec`: `x` (N, features), `edge_index` (2, E) by source,
    then target; same text, same graph. Raises `GnnlabError` for anything else."""
    parts = (part.partition("=") for part in text.split(","))
    given = {name.strip(): value.strip() for name, _, value in parts}
    try:
        spec = RandomSpec.model_validate_strings(given)
    except ValidationError as error:
        name, wrong = first_wrong(error)
        allowed = ", ".join(f"{field}=" for field in RandomSpec.model_fields)
        at = f"{name}={quoted(given.get(name, ''))}: " if name else ""
        raise GnnlabError(f"random graph: {at}{wrong}; allowed are {allowed}") from None
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
