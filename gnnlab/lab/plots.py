"""The lab's figures: an interval on every value, its origin visible, a title that states the finding.

    figure = plots.bars(frame, y="form", label="time", unit="ms", title=finding)

Every function takes a tidy frame and returns a figure that knows how to show itself in a notebook. The frame has the
columns `value`, `low` and `high` (the ends of its interval, which may be missing) and `origin` (measured, where there
is none). No function touches pyplot or a global setting. Notebooks draw through the methods of `Study`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from gnnlab.errors import GnnlabError
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.roofline import Ceilings

from . import plot_style as style
from .plot_style import COLOURS, GRID, HATCHES, INK, MARKERS, MUTED, STAR, SURFACE, styled
from .table import Origin, number

GAP = "–"


@styled
def bars(
    frame: pd.DataFrame,
    *,
    y: str,
    label: str,
    unit: str,
    title: str,
    hue: str | None = None,
    log: bool = False,
) -> Figure:
    """Horizontal bars by the labels in column `y`, first row on top, grouped by column `hue`.

    A missing value (NaN) is shown as "no value", never as a bar of length 0. On a logarithmic axis, which has no 0,
    ratios (unit "x") are bars from 1 in both directions, anything else is points, and a 0 stands at the edge. Raises
    `GnnlabError`.
    """
    style.check(frame, "value", once=[y, hue] if hue else [y])
    labels, groups = list(dict.fromkeys(frame[y])), list(dict.fromkeys(frame[hue])) if hue else [None]
    there = set(zip(frame[y], frame[hue] if hue else [None] * len(frame), strict=True))
    members = {name: [group for group in groups if (name, group) in there] for name in labels}
    look_of, sources = style.looks(groups), style.origins(frame)
    starts, centres, units = _stacked(labels, [len(members[name]) for name in labels])
    fig, ax = style.new_figure(title, max(2.2, 1.5 + units * (0.2 if hue else 0.27)))
    base = 1.0 if log and unit == "x" else 0.0
    points, sizes = log and not base, log and unit == "MiB"
    if base:
        ax.axvline(base, color=MUTED, lw=0.8)
    reach = style.ends(frame)
    for i, (row, source) in enumerate(zip(frame.to_dict("records"), sources, strict=True)):
        group, value = row[hue] if hue else None, row["value"]
        place = starts[labels.index(row[y])] + members[row[y]].index(group)
        colour, marker, hatch = look_of[group]
        if pd.isna(value) or (log and value == 0):
            word = "no value" if pd.isna(value) else "0"
            style.note(ax, word, (0, place), (4, 0), xycoords=ax.get_yaxis_transform(), color=MUTED)
            continue
        measured = source is Origin.MEASURED
        if points:
            ax.plot(value, place, ls="none", **style.point(colour, marker, measured))
        else:
            face, edge = (colour, SURFACE) if measured else (SURFACE, colour)
            span = {"left": base, "color": face, "edgecolor": edge, "lw": 0.8, "hatch": HATCHES.get(source, hatch)}
            ax.barh(place, value - base, 0.92, **span)
        if reach[:, i].any():
            ax.errorbar(value, place, xerr=reach[:, [i]], color=INK, elinewidth=1.1, capsize=2.5, fmt="none")
        end = max(value + reach[1, i], base)
        told = style.size(value) if sizes else number(value)
        style.note(ax, told + STAR * (not measured), (end, place), (7 if points else 4, 0))
    style.categories(ax, labels, centres, units)
    style.scale(ax.xaxis, log, frame.filter(["value", "low", "high"]).to_numpy(dtype=float), sizes=sizes)
    ax.set_xlabel(label if sizes else style.axis_label(label, unit))
    ax.margins(x=0.16 if sizes else 0.12)
    handles = [
        Line2D([], [], ls="none", label=str(group), **style.point(colour, marker))
        if points
        else Patch(label=str(group), facecolor=colour, hatch=hatch, edgecolor=SURFACE)
        for group, (colour, marker, hatch) in look_of.items()
        if hue
    ]
    style.legend(fig, handles + style.origin_handles(sources, line=points))
    return fig


def _stacked(labels: Sequence[str], counts: Sequence[int]) -> tuple[list[float], list[float], float]:
    """Room for `counts` bars at each label and for the label itself, one unit a bar.

    Returns where the first bar of each label lies, the middle of each label, and the units needed in all.
    """
    heights = [
        max(count, 0.75 * (style.wrapped(text).count("\n") + 1)) + 0.45
        for text, count in zip(labels, counts, strict=True)
    ]
    centres = [sum(heights[:i]) + height / 2 - 0.5 for i, height in enumerate(heights)]
    return [centre - (count - 1) / 2 for centre, count in zip(centres, counts, strict=True)], centres, sum(heights)


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
    equal: bool = False,
    log: bool | None = None,
) -> Figure:
    """Points of column `y` over column `x`; columns named as `measured_low` hold the ends of their intervals.

    `joined` draws a line through the points of each `hue`, dotted towards what was not measured; `equal` the line on
    which both are the same, on axes of one scale. An axis is logarithmic where all its numbers are positive and span
    more than a factor of 5, that of `y` by `log` where it is given. Raises `GnnlabError`.
    """
    style.check(frame, x, y, hue)
    frame = frame.assign(_series=frame[hue] if hue else "", _origin=style.origins(frame))
    look_of = style.looks(list(dict.fromkeys(frame["_series"])))
    fig, ax = style.new_figure(title)
    for name, series in frame.groupby("_series", sort=False):
        series, (colour, marker, _) = series.sort_values(x), look_of[name]
        xs, ys, solid = series[x].to_numpy(), series[y].to_numpy(), (series["_origin"] == Origin.MEASURED).to_numpy()
        right, up = style.ends(series, x), style.ends(series, y)
        for i in range(len(series) - 1 if joined else 0):
            ax.plot(xs[i : i + 2], ys[i : i + 2], color=colour, lw=1.3, ls="-" if solid[i : i + 2].all() else ":")
        for chosen, measured in ((solid, True), (~solid, False)):
            bars = {"xerr": right[:, chosen] if right.any() else None, "yerr": up[:, chosen]}
            ax.errorbar(xs[chosen], ys[chosen], **bars, ls="none", capsize=2.5, **style.point(colour, marker, measured))
    for axis, column, given in ((ax.xaxis, x, None), (ax.yaxis, y, log)):
        values = frame[[x, y] if equal else column].to_numpy(dtype=float)
        style.scale(axis, style.wide(values) if given is None else given, values)
    line = {"lw": 1.3} if joined else {"ls": "none"}
    handles = [Line2D([], [], label=str(name), **line, **style.point(*look_of[name][:2])) for name in look_of if hue]
    if equal:
        both, dashed = frame[[x, y]].to_numpy(dtype=float), {"color": MUTED, "lw": 1.1, "ls": (0, (4, 2))}
        ax.axline((both.min(),) * 2, (both.max() * 1.001,) * 2, zorder=0, **dashed)
        handles.append(Line2D([], [], label="both are equal", **dashed))
    ax.grid(axis="y" if joined else "both", color=GRID, lw=0.7)
    ax.set(xlabel=x_label, ylabel=y_label)
    style.legend(fig, handles + style.origin_handles(frame["_origin"], line=True))
    return fig


@styled
def samples(
    taken: Mapping[str, tuple[Sequence[float], Estimate]], *, title: str, label: str, unit: str, statistic: str
) -> Figure:
    """Every sample of each form (in `unit`) as a dot, and over them the `statistic` of them with its 95 % interval.

    Samples far out (six quartile ranges above the third quartile) are drawn at the edge and counted there.
    """
    if not taken or any(len(values) == 0 for values, _ in taken.values()):
        raise GnnlabError("samples needs at least one form, each with at least one sample")
    data = {name: np.asarray(values, dtype=float) for name, (values, _) in taken.items()}
    look_of, spread = style.looks(list(data)), np.random.default_rng(0)
    edge = max(_upper_fence(values) for values in data.values())
    fig, ax = style.new_figure(title, max(2.2, 1.5 + 0.62 * len(data)))
    for place, (name, values) in enumerate(data.items()):
        colour, marker, _ = look_of[name]
        inside = values[values <= edge]
        jitter = place + spread.uniform(-0.24, 0.24, inside.size)
        ax.plot(inside, jitter, ls="none", marker=marker, ms=3.2, mew=0, color=colour, alpha=0.45)
        found, heavy = taken[name][1], {"mew": 1.8, "elinewidth": 1.8, "capthick": 1.4}
        reach = style.ends(pd.DataFrame([{"value": found.value, "low": found.low, "high": found.high}]))
        ax.errorbar(found.value, place, xerr=reach, color=INK, marker="|", ms=15, capsize=4, **heavy)
        if beyond := values.size - inside.size:
            ax.plot(edge, place, marker=">", ms=6, color=colour, clip_on=False)
            words = f"{beyond} beyond, up to {number(values.max())}"
            style.note(ax, words, (edge, place - 0.4), (4, 0), ha="right", color=MUTED)
    style.categories(ax, [f"{name}\nn = {len(values)}" for name, values in data.items()])
    ax.set_xlabel(style.axis_label(label, unit))
    handle = Line2D([], [], label=f"{statistic} and its 95 % interval", color=INK, marker="|", ms=9, mew=1.8, lw=1.8)
    style.legend(fig, [handle])
    return fig


def _upper_fence(values: np.ndarray) -> float:
    first, third = np.percentile(values, [25, 75])
    return float(min(values.max(), third + 6 * (third - first))) if third > first else float(values.max())


@styled
def roofline(points: pd.DataFrame, ceilings: Ceilings, *, title: str) -> Figure:
    """Reached GFLOP/s over FLOPs per byte, under this machine's measured ceilings; both axes logarithmic.

    `points` has the columns label, flops_per_byte, gflop_s, and where known low, high (GFLOP/s) and origin.
    """
    style.check(points, "label", "flops_per_byte", "gflop_s")
    bandwidths = ceilings.named_bandwidths()
    if min(ceilings.gemm_gflop_s, *(gb_s for _, gb_s in bandwidths)) <= 0:
        raise GnnlabError("roofline needs a positive peak in GFLOP/s and positive bandwidths in GB/s")
    fig, ax = style.new_figure(title, 4.4)
    _roofs(ax, points, ceilings.gemm_gflop_s, bandwidths)
    sources, reach = style.origins(points), style.ends(points.assign(value=points["gflop_s"]))
    for i, (row, source) in enumerate(zip(points.itertuples(), sources, strict=True)):
        look = style.point(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], source is Origin.MEASURED)
        ax.errorbar(row.flops_per_byte, row.gflop_s, reach[:, [i]], capsize=2.5, zorder=3, **look)
    ax.set(xlabel="arithmetic intensity (FLOPs per byte moved)", ylabel="throughput (GFLOP/s)")
    style.legend(fig, style.origin_handles(sources, line=True))
    fig.draw_without_rendering()  # settles the layout, so that the places of labels mean something
    fig.set_layout_engine("none")
    texts = [
        ax.text(row.flops_per_byte, row.gflop_s, style.wrapped(row.label), fontsize=8) for row in points.itertuples()
    ]
    lead = {"arrowstyle": "-", "color": MUTED, "lw": 0.6}
    room = {"expand": (1.2, 1.7), "force_static": (0.3, 0.6), "iter_lim": 500}
    adjust_text(texts, ax=ax, objects=[ax.get_legend()], arrowprops=lead, **room)
    return fig


def _roofs(ax: Axes, points: pd.DataFrame, peak: float, bandwidths: Sequence[tuple[str, float]]) -> None:
    """The measured ceilings, each with its name and number on it, on logarithmic axes that hold every point."""
    intensity, reached = points["flops_per_byte"].to_numpy(dtype=float), points["gflop_s"].to_numpy(dtype=float)
    slowest, fastest = min(g for _, g in bandwidths), max(g for _, g in bandwidths)
    left, right = intensity.min() / 2.5, max(intensity.max() * 4, 6 * peak / slowest)
    bottom, top = min(reached.min() / 3, left * slowest), max(reached.max(), peak) * 2.6
    grid = np.geomspace(left, right, 200)
    style.scale(ax.xaxis, True, np.array([left, right]))
    style.scale(ax.yaxis, True, np.array([bottom, top]))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    for place, (name, gb_s) in enumerate(sorted(bandwidths, key=lambda pair: -pair[1])):
        look = {"color": MUTED, "lw": 1.3, "ls": ["-", "--", "-.", ":"][place % 4], "zorder": 1}
        ax.plot(grid, np.minimum(peak, gb_s * grid), label=f"{name}: {number(gb_s)} GB/s", **look)
    style.note(ax, f"peak {number(peak)} GFLOP/s", (right, peak), (-2, 7), ha="right", color=MUTED)
    ax.legend(loc="lower right", title=None, handlelength=2.6)
    ax.fill_between(grid, np.minimum(peak, fastest * grid), top, color="#eceef1", zorder=0, lw=0)


# ---- rows by columns ------------------------------------------------------------------------------------------------

MOST_NUMBERS = 6  # columns of a panel that still have room for numbers
ROOMY = 3  # columns with room for three digits; more have two
BAD = {"failed": "fails", "timeout": "time-out"}  # status -> the word in its field
STATUS_LOOKS = {"ok": (COLOURS[0], "o"), "unavailable": (MUTED, "X"), "failed": (COLOURS[3], "s")}
STATUS_LOOKS["timeout"] = COLOURS[1], "s"


@styled
def heat(frame: pd.DataFrame, *, row: str, column: str, panel: str, label: str, title: str) -> Figure:
    """Values by `row` and `column`, a panel for each value of `panel`; darker is more, within a row.

    Colours are logarithmic over the least value of a row in all panels, so that they compare what is comparable.
    Numbers stand in the fields where there is room for them. A missing value (NaN) is a dash, never a colour; what was
    not measured is hatched, and its panel starred. Raises `GnnlabError`.
    """
    style.check(frame, "value", once=[row, column, panel])
    if not (frame["value"].dropna() > 0).all() or frame["value"].isna().all():
        raise GnnlabError("a heat map needs a positive number, and none that is not: the scale is logarithmic")
    least = frame.groupby(row)["value"].transform("min")
    frame = frame.assign(_origin=style.origins(frame), _shade=(frame["value"] / least).astype(float))
    rows, columns, panels = (list(dict.fromkeys(frame[name])) for name in (row, column, panel))
    across = min(len(panels), 3 if len(columns) <= MOST_NUMBERS else 2)
    down = math.ceil(len(panels) / across)
    height = 0.75 + down * (len(rows) * 0.235 + (0.83 if len(columns) <= 3 else 1.13))
    fig, grid = style.new_figure(title, height, nrows=down, ncols=across, sharey=True, squeeze=False)
    norm, palette = LogNorm(1, max(frame["_shade"].max(), 1.01)), seaborn.color_palette("YlGnBu", as_cmap=True)
    for ax, name in zip(grid.ravel(), panels, strict=False):
        part = frame[frame[panel] == name].set_index([row, column])
        numbers, shades, kinds = (
            part[c].unstack().reindex(index=rows, columns=columns) for c in ("value", "_shade", "_origin")
        )
        _shade(ax, shades, norm, palette)
        _write_in(ax, numbers.to_numpy(float), shades.to_numpy(float), kinds.to_numpy(), norm, palette)
        ax.set(xlabel=_named_axis(column, columns), ylabel=_named_axis(row, rows) if ax in grid[:, 0] else "")
        ax.tick_params(length=0, labelsize=7)
        ax.tick_params(axis="x", rotation=90 if len(columns) > 2 else 0)
        ax.tick_params(axis="y", rotation=0)
        style.panel_title(ax, name, part["_origin"])
    for ax in grid.ravel()[len(panels) :]:
        ax.remove()
    shaded = list(grid.ravel()[: len(panels)])
    bar = fig.colorbar(ScalarMappable(norm, palette), ax=shaded, fraction=0.03, pad=0.01, aspect=30)
    bar.set_label("times the row's least", fontsize=8.5)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    bar.ax.tick_params(labelsize=7.5)
    gaps = frame["value"].notna().sum() < len(rows) * len(columns) * len(panels)
    gap = [Line2D([], [], ls="none", marker="_", color=MUTED, label="no value")] * bool(gaps)
    gap = [Line2D([], [], ls="none", marker="$1.2$", ms=13, mew=0, color=INK, label=f"number: {label}"), *gap]
    style.legend(fig, gap + [h for h in style.origin_handles(frame["_origin"]) if h.get_hatch()])
    return fig


def _named_axis(name: str, values: Sequence[Any]) -> str:
    """A name for an axis of numbers; texts speak for themselves."""
    return name.replace("_", " ") if all(isinstance(value, int | float) for value in values) else ""


def _shade(ax: Axes, shades: pd.DataFrame, norm: LogNorm, palette) -> None:
    """A coloured field for each number, the first row on top. seaborn's heatmap would draw the whole figure for each
    panel, to see whether labels overlap, which are turned here in any case."""
    ax.pcolormesh(np.ma.masked_invalid(shades.to_numpy(float)), norm=norm, cmap=palette)
    ax.set(xlim=(0, shades.shape[1]), ylim=(shades.shape[0], 0))
    ax.set_xticks(np.arange(shades.shape[1]) + 0.5, shades.columns)
    ax.set_yticks(np.arange(shades.shape[0]) + 0.5, shades.index)
    ax.spines[:].set_visible(False)


def _write_in(ax: Axes, numbers: np.ndarray, shades: np.ndarray, kinds: np.ndarray, norm: LogNorm, palette) -> None:
    """Dashes, hatches and numbers into the fields of a map; a number lies on plain ground, clear of the hatch."""
    for (y, x), found in np.ndenumerate(numbers):
        at = {"x": x + 0.5, "y": y + 0.5, "ha": "center", "va": "center", "fontsize": 7}
        if np.isnan(found):
            ax.text(s=GAP, color=MUTED, **at)
            continue
        ground, ink = palette(norm(shades[y, x])), SURFACE if norm(shades[y, x]) > 0.55 else INK
        if (kind := Origin(kinds[y, x])) is not Origin.MEASURED:
            look = {"facecolor": "none", "edgecolor": ink, "linewidth": 0, "alpha": 0.45, "hatch": HATCHES[kind]}
            ax.add_patch(Rectangle((x, y), 1, 1, **look))
        if numbers.shape[1] <= MOST_NUMBERS:
            box = {"boxstyle": "round,pad=0.12", "facecolor": ground, "edgecolor": "none"}
            ax.text(s=number(found if numbers.shape[1] <= ROOMY else float(f"{found:.2g}")), color=ink, bbox=box, **at)


@styled
def marks(frame: pd.DataFrame, *, row: str, column: str, title: str) -> Figure:
    """One mark for each `row` and `column`, its shape and colour by the column `status`; a dash where there is no row.

    What failed or ran out of time says so in a word. Raises `GnnlabError`.
    """
    style.check(frame, "status", once=[row, column])
    rows, columns = (list(dict.fromkeys(frame[name])) for name in (row, column))
    look_of = {name: style.point(*look) for name, look in STATUS_LOOKS.items() if name in set(frame["status"])}
    fig, ax = style.new_figure(title, 1.9 + 0.32 * len(rows))
    statuses = frame.set_index([row, column])["status"].unstack().reindex(index=rows, columns=columns)
    for (y, x), name in np.ndenumerate(statuses.to_numpy(dtype=object)):
        middle = {"ha": "center", "va": "center"}
        if pd.isna(name):
            ax.text(x, y, GAP, color=MUTED, **middle)
        elif name in BAD:
            box = {"boxstyle": "round,pad=0.25", "facecolor": look_of[name]["color"], "edgecolor": INK, "lw": 0.8}
            ax.text(x, y, BAD[name], fontsize=7.5, fontweight="bold", bbox=box, **middle)
        else:
            ax.plot(x, y, **look_of[name])
    style.categories(ax, rows)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
    ax.grid(axis="y", color=GRID, lw=0.7)
    ax.tick_params(length=0)
    handles = [Line2D([], [], ls="none", label=name, **look) for name, look in look_of.items()]
    style.legend(fig, [*handles, Line2D([], [], ls="none", label="no row", marker="_", ms=7, mec=MUTED)])
    return fig


# ---- plans ----------------------------------------------------------------------------------------------------------

_NARROW = 0.018  # of the axis: a shorter bar has no number on it


@styled
def gantt(chart: pd.DataFrame) -> Figure:
    """When each unit works on which graph: one panel above the other, bars with the number of the graph.

    `chart`: panel, unit, graph, start_ms, end_ms, origin. What was not measured is hatched and its panel starred.
    Raises `GnnlabError`.
    """
    style.check(chart, "panel", "unit", "graph", "start_ms", "end_ms", "origin")
    ends = chart.groupby("panel", sort=False)["end_ms"].max()
    title = f"{chart['graph'].nunique()} graphs: " + ", ".join(f"{name} {ms:.3g} ms" for name, ms in ends.items())
    panels, lanes = (list(dict.fromkeys(chart[name])) for name in ("panel", "unit"))
    look_of, width = style.looks(sorted(lanes)), float(chart["end_ms"].max())
    marked = chart.assign(origin=style.origins(chart))
    height = 1.7 + 0.34 * len(lanes) * len(panels)
    fig, grid = style.new_figure(title, height, nrows=len(panels), ncols=1, sharex=True, squeeze=False)
    for ax, name in zip(grid.ravel(), panels, strict=True):
        part = marked[marked["panel"] == name]
        origin = Origin(part["origin"].iloc[0])
        for place, unit in enumerate(lanes):
            of = part[part["unit"] == unit]
            spans, colour = list(zip(of["start_ms"], of["end_ms"] - of["start_ms"], strict=True)), look_of[unit][0]
            face, edge = (colour, SURFACE) if origin is Origin.MEASURED else (SURFACE, colour)
            look = {"facecolor": face, "edgecolor": edge, "lw": 0.8, "hatch": HATCHES.get(origin)}
            ax.broken_barh(spans, (place - 0.37, 0.74), **look)
            for (start, length), graph in zip(spans, of["graph"], strict=True):
                if length > _NARROW * width:
                    box = {"boxstyle": "round,pad=0.12", "facecolor": SURFACE, "edgecolor": "none", "alpha": 0.8}
                    middle = {"ha": "center", "va": "center", "fontsize": 6.5, "bbox": box}
                    ax.text(start + length / 2, place, str(graph), **middle)
        style.categories(ax, lanes)
        ax.set_xlim(0, width * 1.01)
        style.panel_title(ax, name, part["origin"])
    ax.set_xlabel("time (ms)")
    kinds = [handle for handle in style.origin_handles(marked["origin"]) if handle.get_hatch()]
    style.legend(fig, [*kinds, Patch(facecolor=MUTED, label="a graph, by its number")])
    return fig
