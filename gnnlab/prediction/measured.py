"""The cells that notebook 05 measured, and which sizes lie between theirs.

cells = measured_cells(outputs / "stages")  # conditions are named as the fields of a row
time_rows(cells)                            # for `lab.record`: times with their samples
inside_hull(sizes_of(cells), [(4000, 9000)])   # the convex hull of log N and log E
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial import Delaunay, QhullError

from gnnlab.campaign import checkpoints
from gnnlab.campaign import table as campaign_table
from gnnlab.campaign.cells import Cell
from gnnlab.profiling.estimates import CONFIDENCE

AGAIN = "run notebooks 05 and 06 again"
CONDITIONS = ["device", "runtime", "precision", "threads"]
Size = tuple[int, int]  # nodes, edges
Span = tuple[int, int]  # first and last stage of a block
NODES, EDGES = 0, 1
_RIM = 1e-9  # how far beyond the hull, in logarithms, still counts as inside


def measured_cells(folder: Path) -> pd.DataFrame:
    """The cells of a campaign: the columns of `campaign.table.table`, with runtime and graph.

    Raises:
        GnnlabError: there are no measurements, or they are of another version; one line.
    """
    found = checkpoints.raw(folder)
    table = campaign_table.table(found)
    return table.assign(
        graph=[found[key]["cell"]["graph"] for key in table["key"]],
        device=table["processor"] + " " + table["device"],
        runtime=table["runtime_version"],
        threads=table["threads"].where(table["processor"] == "CPU", 0),
    )


def first_cell(folder: Path) -> Cell:
    """A cell of a campaign, for what all of them share: layer, features, precision and threads."""
    return Cell(**next(iter(checkpoints.raw(folder).values()))["cell"])


def need_times(stages: Path, skip: Callable[[str], None]) -> None:
    """Call `skip` with the reasons of the units where notebook 05 measured no cell. Raises as `measured_cells`."""
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
    """Measured times as the fields of rows, each with its samples."""
    fixed = {"origin": "measured", "unit": "ms", "better": "lower", "statistic": "median", "interval": CONFIDENCE}
    names = {"ms": "value", "ms_low": "low", "ms_high": "high", "samples_ms": "samples"}
    return cells.drop(columns="unit").rename(columns=names).assign(**fixed)


# ---- what lies between ----------------------------------------------------------------------------------------------


def inside_hull(
    known: Sequence[Size], sizes: Sequence[Size], coordinates: Sequence[int] = (NODES, EDGES)
) -> np.ndarray:
    """Which of `sizes` lie in the convex hull of the `known` ones in log N and log E, of which only `coordinates` (0
    nodes, 1 edges) are looked at, (sizes,). Where the hull is flat, which lie in the box around it."""
    with np.errstate(divide="ignore"):
        at = np.log(np.array(sizes, dtype=float).reshape(-1, 2)[:, list(coordinates)])
    points, mesh = _hull(frozenset(map(tuple, np.array(known).tolist())), tuple(coordinates))
    if mesh is not None:
        return mesh.find_simplex(at, tol=_RIM) >= 0
    return ((at >= points.min(axis=0) - _RIM) & (at <= points.max(axis=0) + _RIM)).all(axis=1)


@lru_cache(maxsize=1024)
def _hull(known: frozenset[Size], coordinates: tuple[int, ...]) -> tuple[np.ndarray, Delaunay | None]:
    """The logarithms of the known sizes (k, coordinates), and their triangles where they span some."""
    points = np.log(np.array(sorted(known), dtype=float)[:, list(coordinates)])
    try:
        return points, Delaunay(points)
    except (QhullError, ValueError):  # all on a line, or a single coordinate
        return points, None


def draw(sizes: Sequence[Size], count: int, seed: int) -> list[Size]:
    """`count` sizes at random inside the hull, none of them measured; fewer where the hull has no more of them.

    Uniform in log N and log E.
    """
    logs = np.log(np.array(sorted(set(sizes)), dtype=float))  # (sizes, 2)
    drawn = np.random.default_rng(seed).uniform(logs.min(axis=0), logs.max(axis=0), (400 * max(count, 1), 2))
    rounded = np.rint(np.exp(drawn)).astype(int)
    found = dict.fromkeys(map(tuple, rounded[inside_hull(sizes, rounded)].tolist()))
    return [size for size in found if size not in set(sizes)][:count]
