"""The cells that notebook 05 measured, each found to make sense, and which sizes lie between theirs.

cells = measured_cells(outputs / "stages")  # conditions are named as the fields of a row
time_rows(cells)                            # for `lab.record`: times with their samples
Hull(sizes_of(cells)).holds([(4000, 9000)]) # the convex hull of log N and log E
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import Delaunay

from gnnlab.campaign import checkpoints
from gnnlab.campaign import table as campaign_table
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.errors import GnnlabError
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONFIDENCE

AGAIN = "run notebooks 05 and 06 again"
CONDITIONS = ["device", "runtime", "precision", "threads"]
Size = tuple[int, int]  # nodes, edges
Span = tuple[int, int]  # first and last stage of a block
NODES, EDGES = 0, 1
_NEAR = 1e-6  # of the extent of a hull: how far points may lie off a line
_RIM = 1e-9


def measured_cells(folder: Path) -> pd.DataFrame:
    """The cells of a campaign: the columns of `campaign.table.table`, with runtime and graph.

    Raises:
        GnnlabError: no measurements, another schema, or a cell whose times are no times; one line.
    """
    path = folder / checkpoints.RAW
    found = checkpoints.raw(folder)
    if not isinstance(found, dict):
        raise GnnlabError(f"{path}: measurements are no table of cells; {AGAIN}")
    for key, row in found.items():
        try:
            _check(key, row)
        except GnnlabError as error:
            raise GnnlabError(f"{path}, cell {key}: {error}; {AGAIN}") from None
        except (KeyError, TypeError):
            raise GnnlabError(f"{path}, cell {key}: not as this version writes it; {AGAIN}") from None
    table = campaign_table.table(found)
    return table.assign(
        graph=[found[key]["cell"]["graph"] for key in table["key"]],
        device=table["processor"] + " " + table["device"],
        runtime=table["runtime_version"],
        threads=table["threads"].where(table["processor"] == "CPU", 0),
    )


def _check(key: str, row: Any) -> None:
    cell, outcome = Cell(**row["cell"]), CellResult.from_json(row["outcome"])
    row["host"]
    if cell.key != key:
        raise GnnlabError(f"says that it is {cell.key}")
    times = [outcome.median_ms, *(outcome.ci_ms or (None,))]
    good = all(times) and outcome.std_ms is not None
    if outcome.status in campaign_table.TIMED and not good:
        raise GnnlabError(f"times of {[*times, outcome.std_ms]} ms, where positive ones are needed")


def first_cell(folder: Path) -> Cell:
    """A cell of a campaign, for what all of them share: layer, features, precision and threads."""
    return Cell(**next(iter(checkpoints.raw(folder).values()))["cell"])


def need_times(stages: Path, skip: Callable[[str], None]) -> None:
    """Go on if notebook 05 has measured a cell; else `skip`, with what its units say. Raises as `measured_cells`."""
    cells = measured_cells(stages)
    if campaign_table.measured(cells).empty:
        skip(f"notebook 05 has measured nothing here: {campaign_table.reasons(cells)}")


def sizes_of(cells: pd.DataFrame) -> list[Size]:
    """Sizes at which anything has a time, each once."""
    return _pairs(cells[cells["ms"].notna()], "nodes", "edges")


def blocks_of(cells: pd.DataFrame) -> list[Span]:
    """First and last stage of every block that is there, each once."""
    return _pairs(cells, "first", "last")


def _pairs(cells: pd.DataFrame, one: str, other: str) -> list[tuple[int, int]]:
    return list(cells[[one, other]].drop_duplicates().itertuples(index=False, name=None))


def time_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """Measured times as the fields of rows, each with its samples.

    Samples of several visits share their moments: where the interval, which holds those of all visits, is wider than
    they say by themselves, it stands in their place.
    """
    owns = [estimates.summary(samples).interval for samples in cells["samples_ms"]]
    ends = zip(cells["ms_low"], cells["ms_high"], strict=True)
    alike = [own is None or np.allclose(own, held) for own, held in zip(owns, ends, strict=True)]
    fixed = {"origin": "measured", "unit": "ms", "better": "lower", "interval": CONFIDENCE}
    names = {"ms": "value", "ms_low": "low", "ms_high": "high"}
    return cells.drop(columns=["unit", "samples_ms"]).rename(columns=names).assign(
        **fixed,
        statistic=np.where(alike, "median", "estimate"),
        samples=[np.array(s) if own else () for s, own in zip(cells["samples_ms"], alike, strict=True)],
        notes=np.where(alike, "", "the interval holds those of all visits"),
    )  # fmt: skip


# ---- what lies between ----------------------------------------------------------------------------------------------


class Hull:
    """The convex hull of `sizes` (k) in log N and log E, of which only `coordinates` (0 nodes, 1 edges) are looked at.
    It may be flat."""

    def __init__(self, sizes: Sequence[Size], coordinates: Sequence[int] = (NODES, EDGES)) -> None:
        self.along = list(coordinates)
        self.logs = np.log(np.array(sizes, dtype=float)[:, self.along])
        self.centre = self.logs.mean(axis=0)
        _, lengths, self.axes = np.linalg.svd(self.logs - self.centre)  # those without any extent last
        self.near = _NEAR * max(1.0, lengths[0])
        self.rank = int((lengths > self.near).sum())
        self.mesh = Delaunay(self.logs) if self.rank == 2 else None

    @np.errstate(divide="ignore", invalid="ignore")
    def weights(self, sizes: Sequence[Size]) -> np.ndarray:
        """How much each size of the hull counts for the value at each of these, by linear interpolation over the
        triangles of the hull, or along it where it is a line, (n, k); NaN beyond it."""
        at = np.log(np.array(sizes, dtype=float).reshape(-1, 2)[:, self.along])
        if self.mesh is not None:
            simplex = self.mesh.find_simplex(at, tol=_RIM)  # LinearNDInterpolator loses some points of the rim
            transform = self.mesh.transform[simplex]  # (n, 3, 2)
            share = np.einsum("nij,nj->ni", transform[:, :2], at - transform[:, 2])
            share = np.clip(np.column_stack([share, 1 - share.sum(axis=1)]), 0, 1)
            found = np.zeros((len(at), len(self.logs)))
            np.put_along_axis(found, self.mesh.simplices[simplex], share / share.sum(axis=1, keepdims=True), axis=1)
            return np.where(simplex[:, None] >= 0, found, np.nan)
        placed = (at - self.centre) @ self.axes.T
        inside = (np.abs(placed[:, self.rank :]) <= self.near).all(axis=1)
        found = np.full((len(at), len(self.logs)), 1 / len(self.logs))
        if self.rank == 1:
            here, line = placed[:, 0], (self.logs - self.centre) @ self.axes[0]
            order = np.argsort(line)
            inside &= (here >= line.min() - self.near) & (here <= line.max() + self.near)
            found = np.column_stack([np.interp(here, line[order], one[order]) for one in np.eye(len(line))])
        return np.where(inside[:, None], found, np.nan)

    def holds(self, sizes: Sequence[Size]) -> np.ndarray:
        """Is each of these sizes a mean, with weights, of those of the hull? (sizes,)"""
        return np.isfinite(self.weights(sizes)).all(axis=1)


@lru_cache(maxsize=1024)
def _hull(sizes: frozenset[Size], coordinates: tuple[int, ...]) -> Hull:
    return Hull(sorted(sizes), coordinates)


def holds(sizes: Sequence[Size], size: Size, coordinates: Sequence[int] = (NODES, EDGES)) -> bool:
    """Does one size lie in the hull of `sizes`?"""
    return bool(_hull(frozenset(sizes), tuple(coordinates)).holds([size])[0])


def draw(sizes: Sequence[Size], count: int, seed: int) -> list[Size]:
    """`count` sizes at random inside the hull, none of them measured; fewer where the hull has no more of them.

    Uniform in log N and log E, or along the line where the hull is one.
    """
    random, hull = np.random.default_rng(seed), Hull(sizes)
    logs = np.log(np.array(sorted(set(sizes)), dtype=float))  # (sizes, 2)
    tries = 400 * max(count, 1)
    if hull.rank == 2:
        drawn = random.uniform(logs.min(axis=0), logs.max(axis=0), (tries, 2))
    else:
        drawn = random.dirichlet(np.ones(len(logs)), tries) @ logs
    rounded = np.rint(np.exp(drawn)).astype(int)
    inside = rounded[hull.holds(rounded)] if hull.rank == 2 else rounded
    found = dict.fromkeys(map(tuple, inside.tolist()))
    return [size for size in found if size not in set(sizes)][:count]
