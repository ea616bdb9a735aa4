"""The lab's figures: an interval on every value, its origin visible, a title that states the finding.

    figure = plots.bars(frame, y="variant", label="time", unit="ms", title=finding)

Every function takes a tidy frame and returns a matplotlib figure. The frame has the columns `value`, `low` and `high`
(the ends of its interval, which may be missing) and `origin` (measured, where there is none). No function touches
pyplot or a global setting. Notebooks draw through the methods of `Study`.
"""

from __future__ import annotations

import math
import textwrap
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, LogNorm
from matplotlib.figure import Figure

from gnnlab.errors import GnnlabError
from gnnlab.profile.roofline import Ceilings

from . import plot_style as style
from .plot_style import INK, MUTED, STAR, SURFACE, styled
from .table import Origin
from .text import axis_label, number, plain

LINE_INCHES, LABEL_LETTERS = 0.15, 32  # of a line of a label
DASHES = ("-", "--", "-.", ":")


@styled
def bars(
    frame: pd.DataFrame, *, y: str, label: str, unit: str, title: str, hue: str | None = None, log: bool = False
) -> Figure:
    """Horizontal bars by the labels in column `y`, first row on top, grouped by column `hue`.

    On a logarithmic axis, which has no 0, ratios (unit "x") are bars from 1 in both directions, anything else is
    points, and a 0 stands at the edge.
    """
    sizes, base = log and unit == "MiB", float(log and unit == "x")
    points = log and not base
    frame = style.prepared(frame, hue)
    look_of = style.looks(frame["_series"])
    frame = frame.iloc[np.lexsort([frame[column].factorize()[0] for column in ("_series", y)])]
    frame = frame.assign(place=np.arange(len(frame)) + style.GAP * frame[y].factorize()[0])
    centres, least = frame.groupby(y, sort=False)["place"].mean(), frame.groupby(y).size().min()
    labels = [textwrap.fill(name, LABEL_LETTERS) for name in centres.index]
    lines = 1 + max(label.count("\n") for label in labels)
    step = max(0.2 if hue else 0.27, LINE_INCHES * lines / (least + style.GAP))
    fig, ax = style.new_figure(title, max(2.2, 1.5 + step * (frame["place"].max() + 1)))
    if base:
        ax.axvline(base, color=MUTED, lw=0.8)
    zero = log & (frame["value"] == 0)
    for place in frame["place"][zero]:
        style.note(ax, "0", (0, place), 4, xycoords=ax.get_yaxis_transform(), color=MUTED)
    for (name, origin), part in frame[~zero].groupby(["_series", "_origin"], sort=False):
        colour, marker, hatch = look_of[name]
        values, places, reach = part["value"].to_numpy(float), part["place"].to_numpy(), style.ends(part)
        drawn = {"xerr": reach, "label": style.label(name, origin)}
        if points:
            ax.errorbar(values, places, **drawn, **style.point(colour, marker, origin) | style.WHISKERS)
        else:
            look = style.bar(colour, origin, hatch) | {"error_kw": style.WHISKERS}
            ax.barh(places, values - base, 0.92, left=base, **drawn, **look)
        far = np.maximum(values + np.nan_to_num(reach[1]), base)
        for words, *at in zip(style.numbers(part, sizes), far, places, strict=True):
            style.note(ax, words, at, 7 if points else 4)
    style.categories(ax, labels, centres, frame["place"].max())
    ends = frame.filter(["value", "low", "high"]).to_numpy(float).ravel()
    style.scale(ax.xaxis, log, ends, sizes)
    ax.set_xlabel(label if sizes else axis_label(label, unit))
    ax.margins(x=0.16 if sizes else 0.12)
    style.legend(fig)
    return fig


@styled
def points(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    x_label: str,
    y_label: str,
    title: str,
    hue: str | None = None,
    joined: bool = False,
    log: bool | None = None,
) -> Figure:
    """Points of column `y` over column `x`; columns named as `measured_low` hold the ends of their intervals.

    `joined` draws a line through the points of each `hue`. An axis is logarithmic if its numbers are positive and span
    more than a factor of 5; `log` decides it for the y axis.
    """
    frame = style.prepared(frame, hue)
    looks = style.looks(frame["_series"])
    fig, ax = style.new_figure(title)
    dashes, large = cycle(DASHES), iter(np.linspace(5 + 4 * (len(looks) > 1) * joined, 5, len(looks)))
    for name, series in frame.groupby("_series", sort=False):
        (colour, marker, _), dots = looks[name], next(large)
        if joined:  # each on top of the last is thinner and broken, so that a curve under another shows
            line = {"color": colour, "lw": dots / 4, "ls": next(dashes)}
            ax.plot(*series.sort_values(x)[[x, y]].to_numpy(float).T, **line)
        for origin, part in series.groupby("_origin", sort=False):
            reach = {"xerr": style.ends(part, x), "yerr": style.ends(part, y), "label": style.label(name, origin)}
            ax.errorbar(part[x], part[y], **reach, **style.point(colour, marker, origin, dots), zorder=3)
    for axis, column, given in ((ax.xaxis, x, None), (ax.yaxis, y, log)):
        values = frame[column].to_numpy(float)
        ends = values + np.nan_to_num(style.ends(frame, column)) * [[-1], [1]]
        style.scale(axis, style.is_wide(values) if given is None else given, ends)
    ax.grid(axis="y" if joined else "both")
    ax.set(xlabel=x_label, ylabel=y_label)
    style.legend(fig)
    return fig


@styled
def roofline(reached: pd.DataFrame, ceilings: Ceilings, *, title: str) -> Figure:
    """Reached GFLOP/s over FLOPs per byte, under this machine's measured ceilings; both axes logarithmic.

    `reached` has the columns label, flops_per_byte, gflop_s, and where known low, high (GFLOP/s) and origin.
    """
    names = {"x_label": "arithmetic intensity (FLOPs per byte moved)", "y_label": "throughput (GFLOP/s)"}
    frame = reached.rename(columns={"low": "gflop_s_low", "high": "gflop_s_high"})
    fig = points(frame, x="flops_per_byte", y="gflop_s", hue="label", title=title, **names)
    peak, bandwidths = ceilings.gemm_gflop_s, sorted(ceilings.named_bandwidths(), key=lambda pair: -pair[1])
    intensity, gflop_s, slowest = reached["flops_per_byte"], reached["gflop_s"], bandwidths[-1][1]
    left, right = intensity.min() / 2.5, max(intensity.max() * 4, 6 * peak / slowest)
    bottom, top = min(gflop_s.min() / 3, left * slowest), max(gflop_s.max(), peak) * 2.6
    ax, grid = fig.axes[0], np.geomspace(left, right, 200)
    lines = []
    for (name, gb_s), dashes in zip(bandwidths, cycle(DASHES), strict=False):
        look = {"color": MUTED, "lw": 1.3, "ls": dashes, "zorder": 1, "label": f"{name}: {number(gb_s)} GB/s"}
        lines += ax.plot(grid, np.minimum(peak, gb_s * grid), **look)
    ax.legend(handles=lines, loc="lower right", handlelength=2.6)
    style.note(ax, f"peak {number(peak)} GFLOP/s", (right, 1.12 * peak), -2, ha="right", va="bottom", color=MUTED)
    style.scale(ax.xaxis, True, np.array([left, right]))
    style.scale(ax.yaxis, True, np.array([bottom, top]))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    return fig


# ---- rows by columns ------------------------------------------------------------------------------------------------

MOST_NUMBERS = 6  # columns of a panel that still have room for numbers
EMPTY = "#e3e5e9"  # a field without a number
SHADES = LinearSegmentedColormap.from_list("shades", ["#fcf6d6", "#a5d8b9", "#4aa3dc"])  # dark letters are legible
STATUSES = {  # from the best to the worst: the word of a field and its colour
    "ok": ("✓", "#9fcbe8"),
    "unavailable": ("not here", "#e3e5e9"),
    "timeout": ("time-out", "#f2cd74"),
    "failed": ("fails", "#f3a36f"),
}


@styled
def heat(frame: pd.DataFrame, *, row: str, column: str, panel: str, label: str, title: str) -> Figure:
    """Values by `row` and `column`, a panel for each value of `panel`; darker is more, within a row.

    Colours are logarithmic over the least measured value of a row in all panels, so that they compare what is
    comparable. Numbers stand in the fields where there is room for them. What was not measured has a star and no
    colour; a missing value (NaN) is an empty grey field. Raises `GnnlabError`.
    """
    rows, columns, panels = (list(frame[name].unique()) for name in (row, column, panel))
    frame, fields = style.prepared(frame.dropna(subset="value")), len(rows) * len(columns) * len(panels)
    if frame.empty or not (frame["value"] > 0).all():
        raise GnnlabError("a heat map needs a positive number, and none that is not: the scale is logarithmic")
    real, room = frame["_origin"] == Origin.MEASURED, len(columns) <= MOST_NUMBERS
    measured = frame["value"].astype(float).where(real | ~real.any())
    shade = (measured / measured.groupby(frame[row]).transform("min")).fillna(0.1)  # below the scale: no colour
    words = [text.replace(" ", "") if room else "★" * (STAR in text) for text in style.numbers(frame)]
    frame = frame.assign(_shade=shade, _text=words)
    across = min(len(panels), max(1, 7 // len(columns)) if room else 2)
    down = math.ceil(len(panels) / across)
    height = 1.6 + down * (len(rows) * 0.27 + (1.05 if len(columns) <= 3 else 1.35))
    fig, grid = style.new_figure(title, height, nrows=down, ncols=across, sharey=True, squeeze=False)
    limits = {"vmin": 1.0, "vmax": max(shade.max(), 1.01)}
    axes, look = list(grid.flat), {"cmap": SHADES.with_extremes(under=SURFACE), "norm": LogNorm(**limits), **limits}
    for ax, name in zip(axes, panels, strict=False):
        part = frame[frame[panel] == name]
        drawn = _fields(ax, *(_matrix(part, row, column, of, rows, columns) for of in ("_shade", "_text")), **look)
        room_for, longest = 57 / across, max(len(str(value)) for value in columns)  # letters
        upright = sum(len(str(value)) for value in columns) > room_for
        turned = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if longest * len(columns) > room_for else {}
        ax.set_xticks(ax.get_xticks(), columns, **{"rotation": 90} if upright else turned)
        ax.set(xlabel=plain(column), ylabel=plain(row) * (ax in grid[:, 0]))
        star = STAR * (not real[part.index].all())
        ax.set_title(textwrap.fill(str(name), 60 // across) + star, fontsize=8, loc="left")
    for ax in axes[len(panels) :]:
        ax.remove()
    below = {"location": "bottom", "fraction": 0.03, "pad": 0.02, "aspect": 60}
    bar = fig.colorbar(drawn, ax=axes[: len(panels)], **below)
    bar.outline.set_visible(False)
    style.scale(bar.ax.xaxis, True, np.array([*limits.values()]))
    bar.set_label("times the least measured of the row", fontsize=8.5)
    others = dict.fromkeys(style.label("", origin) for origin in frame["_origin"][~real])
    grey = ["grey: no value"] * (len(frame) < fields)
    fig.supxlabel("; ".join([label, *others, *grey]), x=0.012, ha="left", fontsize=8.5)
    return fig


@styled
def marks(frame: pd.DataFrame, *, row: str, column: str, title: str) -> Figure:
    """A field for each `row` and `column`, its colour and word by the column `status`; empty where there is no row."""
    rows, columns = (list(frame[name].unique()) for name in (row, column))
    statuses = _matrix(frame, row, column, "status", rows, columns)
    codes = statuses.map([*STATUSES].index, na_action="ignore").astype(float)
    words = statuses.map(lambda status: STATUSES[status][0], na_action="ignore")
    fig, ax = style.new_figure(title, 1.9 + 0.3 * len(rows))
    colours = {"cmap": ListedColormap([colour for _, colour in STATUSES.values()]), "vmin": 0, "vmax": len(STATUSES)}
    _fields(ax, codes + 0.5, words, **colours)
    ax.set_xticks(ax.get_xticks(), columns, rotation=30, ha="right", rotation_mode="anchor")
    return fig


def _matrix(frame: pd.DataFrame, row: str, column: str, values: str, rows: list, columns: list) -> pd.DataFrame:
    return frame.pivot(index=row, columns=column, values=values).reindex(index=rows, columns=columns)


def _fields(ax: Axes, shades: pd.DataFrame, words: pd.DataFrame, **look: Any) -> Any:
    """Coloured fields with words in them, grey where there is no word; gives what a colour bar takes."""
    import seaborn  # takes a second to load, which notebooks without such figures need not wait for

    lines, numbers = {"linewidths": 1, "linecolor": SURFACE}, {"fontsize": 7, "color": INK}
    seaborn.heatmap(shades, annot=words.fillna(""), fmt="", cbar=False, annot_kws=numbers, ax=ax, **lines, **look)
    ax.set(facecolor=EMPTY, xlabel="", ylabel="")
    ax.set_yticks(ax.get_yticks(), [textwrap.fill(str(name), LABEL_LETTERS) for name in words.index], rotation=0)
    ax.tick_params(length=0, labelsize=7.5)
    ax.spines[:].set_visible(False)
    return ax.collections[0]
