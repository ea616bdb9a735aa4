"""Which sizes lie between those that were measured: the convex hull of log N and log E."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import nnls

Size = tuple[int, int]  # nodes, edges
NODES, EDGES = 0, 1
_NEAR = 1e-9


def holds(sizes: Sequence[Size], size: Size, coordinates: Sequence[int] = (NODES, EDGES)) -> bool:
    """Is a size a mean, with weights, of those measured? Only `coordinates` (0 nodes, 1 edges) are looked at.

    A hull of one size, or of sizes in a line, is that point or that line.
    """
    return _holds(frozenset(tuple(s[c] for c in coordinates) for s in sizes), tuple(size[c] for c in coordinates))


@lru_cache(maxsize=65536)
def _holds(points: frozenset[tuple[int, ...]], point: tuple[int, ...]) -> bool:
    if point in points or not point:
        return bool(points)
    if not points or min(point) < 1:
        return False
    corners = np.log(np.array(sorted(points), dtype=float)).T  # (coordinates, sizes)
    wanted = np.log(np.array(point, dtype=float))
    centre = corners.mean(axis=1, keepdims=True)
    system = np.vstack([corners - centre, np.ones(corners.shape[1])])
    _, far = nnls(system, np.append(wanted - centre[:, 0], 1.0))
    return bool(far <= _NEAR * max(1.0, np.abs(system).max()) + _NEAR)


def draw(sizes: Sequence[Size], count: int, seed: int) -> list[Size]:
    """`count` sizes at random inside the hull, uniform in log N and log E, none of them measured; fewer where the hull
    has no more of them."""
    random, measured = np.random.default_rng(seed), set(sizes)
    logs = np.log(np.array(sorted(measured), dtype=float))  # (sizes, 2)
    found: list[Size] = []
    for _ in range(400 * max(count, 1)):
        if len(found) >= count:
            break
        # a mixture first makes sure that a hull without an area, a line, is hit at all
        mixed = np.exp(random.dirichlet(np.ones(len(logs))) @ logs) if _flat(logs) else None
        uniform = np.exp(random.uniform(logs.min(axis=0), logs.max(axis=0)))
        size = tuple(round(v) for v in (uniform if mixed is None else mixed))
        if size not in measured and size not in found and (mixed is not None or holds(list(measured), size)):
            found.append(size)
    return found


def _flat(logs: np.ndarray) -> bool:
    return bool(np.linalg.matrix_rank(logs - logs[0], tol=1e-6) < 2)
