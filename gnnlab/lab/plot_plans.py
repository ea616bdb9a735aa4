"""Figures of plans: every plan of a machine in one picture, and what units do when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import plot_axes as axes_of
from .plot_style import (
    GRID,
    HATCHES,
    INK,
    MUTED,
    STAR,
    SURFACE,
    Figure,
    PlotError,
    legend,
    looks,
    new_figure,
    origins,
    styled,
)
from .table import Origin

_LANE, _HEAD = 0.34, 1.7  # inches
_NARROW = 0.018  # of the axis: a shorter bar has no number on it
_SHADES = (1.0, 0.62)  # graphs follow each other in two shades of their unit's colour


@styled
def space(
    tiles: pd.DataFrame, times: pd.DataFrame, *, unit: str, time_label: str, title: str, marked: Sequence[str] = ()
) -> Figure:
    """Plans from the best (top) to the worst: which unit runs which stage, and beside it time and interval.

    `tiles`: place (0 is the best), first, last, `unit`, part (its place among those that share these stages), parts.
    `times`: place, ms, ci_low, ci_high, and `label` for the plans in `marked` ("" for others). Raises `PlotError`.
    """
    axes_of.check(tiles, ["place", "first", "last", unit, "part", "parts"], numeric=["place", "first", "last"])
    axes_of.check(
        times, ["place", "ms", "ci_low", "ci_high", "label"], numeric=["ms", "ci_low", "ci_high"], positive=True
    )
    look_of = looks(sorted(dict.fromkeys(tiles[unit])))
    fig, first = new_figure(title, 5.4)
    first.remove()
    left, right = fig.subplots(1, 2, sharey=True, width_ratios=(1, 1.15))
    _tiles(left, tiles, unit, look_of, len(times))
    _times(right, times.sort_values("place"), marked)
    right.set_xlabel(time_label)
    handles = [Patch(label=str(name), facecolor=colour) for name, (colour, *_) in look_of.items()]
    band = Patch(label="95 % interval", facecolor=GRID)
    legend(fig, [*handles, Line2D([], [], label="expected time", color=INK, lw=1.4), band])
    return fig


def _tiles(ax: Axes, tiles: pd.DataFrame, unit: str, look_of: dict, plans: int) -> None:
    """One picture element for a stage and unit: thousands of plans are still one small image."""
    rows = math.lcm(*(int(parts) for parts in tiles["parts"]))
    stages = int(tiles["last"].max())
    image = np.ones((plans * rows, stages, 3)) * to_rgb(SURFACE)
    for tile in tiles.itertuples():
        height = rows // int(tile.parts)
        start = int(tile.place) * rows + int(tile.part) * height
        image[start : start + height, int(tile.first) - 1 : int(tile.last)] = to_rgb(look_of[getattr(tile, unit)][0])
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0.5, stages + 0.5, plans - 0.5, -0.5))
    ax.set_xticks(range(1, stages + 1))
    ax.set(xlabel="stage", ylabel="plan, from the fastest")
    ax.tick_params(length=0)


def _times(ax: Axes, times: pd.DataFrame, marked: Sequence[str]) -> None:
    place = times["place"].to_numpy(dtype=float)
    ax.fill_betweenx(place, times["ci_low"], times["ci_high"], color=GRID, lw=0, step="mid")
    ax.plot(times["ms"], place, color=INK, lw=1.4)
    axes_of.scale(ax.xaxis, True, times[["ms", "ci_low", "ci_high"]].to_numpy(dtype=float))
    ax.grid(axis="x", color=GRID, lw=0.6)
    for row in times[times["label"].isin(marked)].itertuples():
        marker = "osD^"[list(marked).index(row.label) % 4]
        ax.plot(row.ms, row.place, marker=marker, ms=6, color=SURFACE, mec=INK)  # no colour: those are of units
        axes_of.note(ax, row.label, (row.ms, row.place), (8, 0))


@styled
def gantt(
    frame: pd.DataFrame,
    *,
    panel: str,
    lane: str,
    start: str,
    end: str,
    number: str,
    origin: str,
    x_label: str,
    title: str,
    colours: Sequence[str] = (),
) -> Figure:
    """Bars from `start` to `end` on the line of each `lane`, the `number` on them; one panel above the other, one axis.

    `colours`: all lanes of the study, so that a lane has the colour that it has in `space`. What was not
    measured is hatched and its panel starred. Raises `PlotError`.
    """
    axes_of.check(frame, [panel, lane, start, end, number, origin], numeric=[start, end])
    if (frame[end] < frame[start]).any():
        raise PlotError("a bar ends before it starts; give start and end in that order")
    panels, lanes = (list(dict.fromkeys(frame[name])) for name in (panel, lane))
    look_of, sources = looks(sorted({*lanes, *colours})), origins(frame, origin)
    fig, first = new_figure(title, _HEAD + _LANE * len(lanes) * len(panels))
    first.remove()
    grid = fig.subplots(len(panels), 1, sharex=True, squeeze=False).ravel()
    marked = frame.assign(_origin=sources)
    for ax, name in zip(grid, panels, strict=True):
        part = marked[marked[panel] == name]
        _lanes(ax, part, lanes, look_of, (lane, start, end, number), float(frame[end].max()))
        starred = (part["_origin"] != Origin.MEASURED).any()
        ax.set_title(f"{name}{STAR * bool(starred)}", fontsize=8.5, loc="left", color=INK)
    grid[-1].set_xlabel(x_label)
    kinds = [o for o in Origin if o is not Origin.MEASURED and o in set(sources)]
    handles: list[Any] = [Patch(facecolor=SURFACE, edgecolor=INK, hatch=HATCHES[o], label=f"{o}{STAR}") for o in kinds]
    legend(fig, [*handles, Patch(facecolor=MUTED, label="a graph, by its number; shades alternate")])
    return fig


def _lanes(ax: Axes, part: pd.DataFrame, lanes: list, look_of: dict, columns: tuple[str, ...], width: float) -> None:
    lane, start, end, number = columns
    for row in part.to_dict("records"):
        place, colour = lanes.index(row[lane]), look_of[row[lane]][0]
        kind = Origin(row["_origin"])
        measured = kind is Origin.MEASURED
        shade = _mixed(colour, _SHADES[int(row[number]) % 2])
        face, edge = (shade, SURFACE) if measured else (SURFACE, shade)
        hatch = None if measured else HATCHES[kind]
        length = row[end] - row[start]
        ax.barh(place, length, 0.74, left=row[start], color=face, edgecolor=edge, lw=0.8, hatch=hatch)
        if length > _NARROW * width:
            box = {"boxstyle": "round,pad=0.12", "facecolor": SURFACE, "edgecolor": "none", "alpha": 0.8}
            middle = row[start] + length / 2
            ax.text(middle, place, str(row[number]), ha="center", va="center", fontsize=6.5, color=INK, bbox=box)
    axes_of.categories(ax, [str(name) for name in lanes])
    ax.set_xlim(0, width * 1.01)


def _mixed(colour: str, share: float) -> tuple[float, ...]:
    """A colour thinned with the background."""
    return tuple(share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(SURFACE)))
