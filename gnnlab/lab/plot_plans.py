"""Figures of plans: every plan of a machine in one picture, and what units do when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gnnlab.errors import GnnlabError

from . import plot_style as style
from .plot_style import GRID, HATCHES, INK, MUTED, STAR, SURFACE, styled
from .table import Origin

_NARROW = 0.018  # of the axis: a shorter bar has no number on it
_SHADES = (1.0, 0.62)  # graphs follow each other in two shades of their unit's colour


@styled
def space(plans: pd.DataFrame) -> Figure:
    """Plans from the best (top) to the worst: which unit runs which stage, and beside it time and interval.

    `plans`, best first: `blocks`, each (units, first and last stage); ms, ci_low, ci_high; `label`, "" for most, "best
    single unit" for what the title compares with. Units that share a block share the row. Raises `GnnlabError`.
    """
    style.check(plans, "blocks", "ms", "ci_low", "ci_high", "label")
    colours = _colours([unit for blocks in plans["blocks"] for units, *_ in blocks for unit in units])
    fig, (left, right) = style.new_figure(_spread(plans), 5.4, nrows=1, ncols=2, sharey=True, width_ratios=(1, 1.15))
    _tiles(left, list(plans["blocks"]), colours)
    place = np.arange(len(plans))
    right.fill_betweenx(place, plans["ci_low"], plans["ci_high"], color=GRID, lw=0, step="mid")
    right.plot(plans["ms"], place, color=INK, lw=1.4)
    style.scale(right.xaxis, True, plans[["ms", "ci_low", "ci_high"]].to_numpy(dtype=float))
    right.grid(axis="x", color=GRID, lw=0.6)
    right.set_xlabel("expected time a graph (ms)")
    for at, (ms, label) in enumerate(zip(plans["ms"], plans["label"], strict=True)):
        if label:
            right.plot(ms, at, marker="o", ms=6, color=SURFACE, mec=INK)  # no colour: those are of units
            style.note(right, label, (ms, at), (8, 0))
    handles = [Patch(label=str(name), facecolor=colour) for name, colour in colours.items()]
    band = Patch(label="90 % of the draws", facecolor=GRID)
    style.legend(fig, [*handles, Line2D([], [], label="expected time", color=INK, lw=1.4), band])
    return fig


def _spread(plans: pd.DataFrame) -> str:
    """How far the plans lie apart, and how many are expected to be faster than the best single unit."""
    most, single = plans["ms"].max() / plans["ms"].min(), plans[plans["label"].str.contains("best single unit")]
    slowest = f"the slowest takes {most:.3g} times as long as the fastest"
    if single.empty:
        return f"Of {len(plans)} plans, {slowest}"
    faster = int((plans["ms"] < single["ms"].iloc[0]).sum())
    return f"Of {len(plans)} plans, {faster} are expected to be faster than the best single unit; {slowest}"


def _colours(units: pd.Series | Sequence[str]) -> dict[str, str]:
    """A colour for each unit, the same in all figures of a study."""
    return {name: colour for name, (colour, *_) in style.looks(sorted(set(units))).items()}


def _tiles(ax: Axes, plans: Sequence[Sequence[tuple]], colours: Mapping[str, str]) -> None:
    """One picture element for a stage and unit: thousands of plans are still one small image."""
    rows = math.lcm(*(len(units) for blocks in plans for units, *_ in blocks))
    stages = max(last for blocks in plans for *_, last in blocks)
    image = np.ones((len(plans) * rows, stages, 3)) * to_rgb(SURFACE)
    for place, blocks in enumerate(plans):
        for units, first, last in blocks:
            height = rows // len(units)
            for part, unit in enumerate(units):
                start = place * rows + part * height
                image[start : start + height, first - 1 : last] = to_rgb(colours[unit])
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0.5, stages + 0.5, len(plans) - 0.5, -0.5))
    ax.set_xticks(range(1, stages + 1))
    ax.set(xlabel="stage", ylabel="plan, from the fastest")
    ax.tick_params(length=0)


@styled
def gantt(chart: pd.DataFrame, units: Sequence[str] = ()) -> Figure:
    """When each unit works on which graph: one panel above the other, bars with the number of the graph.

    `chart`: panel, unit, graph, start_ms, end_ms, origin. `units`: all of the study, so that each has its colour in
    `space`. What was not measured is hatched and its panel starred. Raises `GnnlabError`.
    """
    style.check(chart, "panel", "unit", "graph", "start_ms", "end_ms", "origin")
    if (chart["end_ms"] < chart["start_ms"]).any():
        raise GnnlabError("a bar ends before it starts; give start_ms and end_ms in that order")
    ends = chart.groupby("panel", sort=False)["end_ms"].max()
    title = f"{chart['graph'].nunique()} graphs: " + ", ".join(f"{name} {ms:.3g} ms" for name, ms in ends.items())
    panels, lanes = (list(dict.fromkeys(chart[name])) for name in ("panel", "unit"))
    colour_of, width = _colours([*lanes, *units]), float(chart["end_ms"].max())
    marked = chart.assign(origin=style.origins(chart))
    height = 1.7 + 0.34 * len(lanes) * len(panels)
    fig, grid = style.new_figure(title, height, nrows=len(panels), ncols=1, sharex=True, squeeze=False)
    for ax, name in zip(grid.ravel(), panels, strict=True):
        part = marked[marked["panel"] == name]
        for row in part.to_dict("records"):
            shade = _SHADES[int(row["graph"]) % 2]
            mixed = tuple(shade * np.array(to_rgb(colour_of[row["unit"]])) + (1 - shade) * np.array(to_rgb(SURFACE)))
            place, length = lanes.index(row["unit"]), row["end_ms"] - row["start_ms"]
            origin = Origin(row["origin"])  # pandas makes text of it
            filled = origin is Origin.MEASURED
            look = {"color": mixed, "edgecolor": SURFACE} if filled else {"color": SURFACE, "edgecolor": mixed}
            ax.barh(place, length, 0.74, left=row["start_ms"], lw=0.8, hatch=HATCHES.get(origin), **look)
            if length > _NARROW * width:
                box = {"boxstyle": "round,pad=0.12", "facecolor": SURFACE, "edgecolor": "none", "alpha": 0.8}
                middle = {"ha": "center", "va": "center", "fontsize": 6.5, "bbox": box}
                ax.text(row["start_ms"] + length / 2, place, str(row["graph"]), **middle)
        style.categories(ax, lanes)
        ax.set_xlim(0, width * 1.01)
        starred = (part["origin"] != Origin.MEASURED).any()
        ax.set_title(f"{name}{STAR * bool(starred)}", fontsize=8.5, loc="left", color=INK)
    ax.set_xlabel("time (ms)")
    kinds = [handle for handle in style.origin_handles(marked["origin"]) if handle.get_hatch()]
    style.legend(fig, [*kinds, Patch(facecolor=MUTED, label="a graph, by its number; shades alternate")])
    return fig
