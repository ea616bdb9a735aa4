"""Figures of the lab: one style, an interval on every value, its origin visible, a title that states the finding.

    figure = plots.bars(table, x="share", y="operator", ci_low="low", ci_high="high", unit="%", title=finding)
    record = plots.save(figure, "operators", title=finding, alt="Horizontal bars ...", folder=output_dir)

Every plot function takes a tidy frame and returns a `Figure` that knows how to show itself in a notebook. None of them
touches pyplot or a global setting: a notebook may draw beside them as it likes. Colours are seaborn's colour-blind
palette, and each comes with a marker or a hatch of its own. Measured values are solid; interpolated, extrapolated and
simulated ones are hatched or hollow and starred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gnnlab.profiling.intervals import median_interval
from gnnlab.profiling.roofline import Ceilings

from . import plot_axes as axes_of
from .plot_style import (
    CLAIMED,
    COLOURS,
    GRID,
    HATCHES,
    INK,
    MARKERS,
    MUTED,
    STAR,
    SURFACE,
    Figure,
    PlotError,
    legend,
    looks,
    new_figure,
    origin_handles,
    origins,
    save,
    styled,
)
from .table import Origin

__all__ = ["Figure", "PlotError", "bars", "intervals", "lines", "roofline", "samples", "save"]


@styled
def bars(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    unit: str,
    title: str,
    hue: str | None = None,
    ci_low: str | None = None,
    ci_high: str | None = None,
    origin: str | None = None,
    x_label: str | None = None,
    log: bool = False,
) -> Figure:
    """Horizontal bars of column `x` (in `unit`) by the labels in column `y`, first row on top, with 95 % intervals.

    `hue` groups the bars, `ci_low` and `ci_high` name the columns of the interval's ends, `origin` the column of
    origins. A missing value (NaN) is shown as "no value", never as a bar of length 0. On a logarithmic axis, which has
    no 0, ratios (unit "x") are bars from 1 in both directions, and anything else is points. Raises `PlotError`.
    Columns named ci_low and ci_high are the interval unless others are named.
    """
    ci_low, ci_high = (
        name or (end if end in frame else None) for name, end in ((ci_low, "ci_low"), (ci_high, "ci_high"))
    )
    axes_of.check(frame, [x, y, hue, ci_low, ci_high, origin], numeric=[x, ci_low, ci_high], positive=log)
    labels, groups = list(dict.fromkeys(frame[y])), list(dict.fromkeys(frame[hue])) if hue else [None]
    look_of, sources = looks(groups), origins(frame, origin)
    if frame.duplicated([y, hue] if hue else [y]).any():
        raise PlotError(f"column {y!r} names a bar twice; one row for each bar, or a hue that tells them apart")
    ranks = {label: [g for g in groups if g in members] for label, members in _members(frame, y, hue).items()}
    starts, centres, units = axes_of.stacked(labels, [len(ranks[label]) for label in labels])
    fig, ax = new_figure(title, max(2.2, 1.5 + units * (0.2 if hue else 0.27)))
    base = 1.0 if log and unit == "x" else 0.0
    if base:
        ax.axvline(base, color=MUTED, lw=0.8)
    for (_, row), source in zip(frame.iterrows(), sources, strict=True):
        group = row[hue] if hue else None
        place = starts[labels.index(row[y])] + ranks[row[y]].index(group)
        colour, marker, hatch = look_of[group]
        if pd.isna(row[x]):
            axes_of.note(ax, "no value", (0, place), (4, 0), xycoords=ax.get_yaxis_transform(), color=MUTED)
            continue
        measured = source is Origin.MEASURED
        face = colour if measured else SURFACE
        edge = SURFACE if measured else colour
        if log and not base:
            ax.plot(row[x], place, ls="none", marker=marker, ms=6, mfc=face, mec=colour)
        else:
            span = {"left": base, "color": face, "edgecolor": edge, "lw": 0.8, "hatch": HATCHES.get(source, hatch)}
            ax.barh(place, row[x] - base, 0.92, **span)
        end = max(axes_of.whisker(ax, row, x, ci_low, ci_high, place), base)
        star = "" if measured else STAR
        axes_of.note(ax, axes_of.number(row[x]) + star, (end, place), (4, 0))
    axes_of.categories(ax, labels, centres, units)
    axes_of.scale(ax.xaxis, log, frame[[c for c in (x, ci_low, ci_high) if c]].to_numpy(dtype=float))
    ax.set_xlabel(axes_of.label(x_label or x, unit))
    ax.margins(x=0.12)
    points = log and not base
    handles = [_handle(str(group), *look, points) for group, look in look_of.items() if hue]
    legend(fig, handles + origin_handles(sources, line=points))
    return fig


def _handle(name: str, colour: str, marker: str, hatch: str, point: bool) -> Patch | Line2D:
    if point:
        return Line2D([], [], ls="none", label=name, color=colour, marker=marker, ms=6)
    return Patch(label=name, facecolor=colour, hatch=hatch, edgecolor=SURFACE)


def _members(frame: pd.DataFrame, y: str, hue: str | None) -> dict[str, set[str | None]]:
    """Which groups have a bar at each label; the only group of a plain bar chart is None."""
    found: dict[str, set[str | None]] = {}
    for label, group in zip(frame[y], frame[hue] if hue else [None] * len(frame), strict=True):
        found.setdefault(label, set()).add(group)
    return found


@styled
def lines(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    x_label: str,
    y_label: str,
    title: str,
    hue: str = "workload",
    ci_low: str = "ci_low",
    ci_high: str = "ci_high",
    origin: str | None = None,
    logx: bool = False,
    logy: bool = False,
    band: pd.DataFrame | None = None,
) -> Figure:
    """Column `y` over column `x`, one line for each value of `hue`, every point with its 95 % interval.

    `band` is a fitted curve: a frame with the same columns (no origin), drawn dashed with its interval as a band in
    the colour of its `hue`, which may be one that has no points. Axis labels carry their units. Raises `PlotError`.
    """
    columns = [x, y, hue, ci_low, ci_high]
    axes_of.check(frame, [*columns, origin], numeric=[x, y, ci_low, ci_high], positive=[x] * logx + [y] * logy)
    names = list(dict.fromkeys(frame[hue]))
    if band is not None:
        axes_of.check(band, columns, numeric=[x, y, ci_low, ci_high], positive=[x] * logx + [y] * logy)
        names = list(dict.fromkeys([*names, *band[hue]]))
    look_of, sources = looks(names), origins(frame, origin)
    fig, ax = new_figure(title)
    for name, curve in band.groupby(hue, sort=False) if band is not None else ():
        curve, colour = curve.sort_values(x), look_of[name][0]
        ax.fill_between(curve[x], curve[ci_low], curve[ci_high], color=colour, alpha=0.16, lw=0)
        ax.plot(curve[x], curve[y], color=colour, lw=1.1, ls=(0, (4, 2)))
    marked = frame.assign(_measured=[o is Origin.MEASURED for o in sources])
    for name, series in marked.groupby(hue, sort=False):
        axes_of.series(ax, series.sort_values(x), (x, y, ci_low, ci_high), *look_of[name][:2], joined=band is None)
    axes_of.scale(ax.xaxis, logx, frame[x].to_numpy(dtype=float))
    axes_of.scale(ax.yaxis, logy, frame[[y, ci_low, ci_high]].to_numpy(dtype=float))
    ax.grid(axis="y", color=GRID, lw=0.7)
    ax.set(xlabel=x_label, ylabel=y_label)
    handles, drawn = [], set(frame[hue])
    for name, (colour, marker, _) in look_of.items():
        mark = {"marker": marker, "ms": 5, "lw": 1.3} if name in drawn else {"lw": 1.1, "ls": (0, (4, 2))}
        handles.append(Line2D([], [], label=str(name), color=colour, **mark))
    if band is not None and drawn & set(band[hue]):
        handles.append(Line2D([], [], label="fit, its interval as a band", color=MUTED, lw=1.1, ls=(0, (4, 2))))
    legend(fig, handles + origin_handles(sources, line=True))
    return fig


@styled
def samples(
    timings: Mapping[str, Sequence[float]],
    *,
    title: str,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    x_label: str = "time",
    unit: str = "ms",
) -> Figure:
    """Every sample of each form as a dot, and over them the median with its 95 % interval.

    `timings` maps a form to its samples in `unit`; `intervals` gives the interval of each median where the caller has
    it, else it is computed. Samples far out (six quartile ranges above the third quartile) are drawn at the edge and
    counted there.
    """
    if not timings or any(len(values) == 0 for values in timings.values()):
        raise PlotError("samples needs at least one form, each with at least one sample")
    data = {str(name): np.asarray(values, dtype=float) for name, values in timings.items()}
    if not all(np.isfinite(values).all() for values in data.values()):
        raise PlotError("samples: a time is NaN or infinite; leave it out and say so")
    look_of, spread = looks(list(data)), np.random.default_rng(0)
    edge = max(axes_of.upper_fence(values) for values in data.values())
    fig, ax = new_figure(title, max(2.2, 1.5 + 0.62 * len(data)))
    for place, (name, values) in enumerate(data.items()):
        colour, marker, _ = look_of[name]
        inside = values[values <= edge]
        jitter = place + spread.uniform(-0.24, 0.24, inside.size)
        ax.plot(inside, jitter, ls="none", marker=marker, ms=3.2, mew=0, color=colour, alpha=0.45)
        middle = float(np.median(values))
        low, high = intervals[name] if intervals and name in intervals else median_interval(values)
        ends, heavy = (
            [[max(0, middle - low)], [max(0, high - middle)]],
            {"mew": 1.8, "elinewidth": 1.8, "capthick": 1.4},
        )
        ax.errorbar(middle, place, xerr=ends, color=INK, marker="|", ms=15, capsize=4, **heavy)
        if beyond := values.size - inside.size:
            ax.plot(edge, place, marker=">", ms=6, color=colour, clip_on=False)
            words = f"{beyond} beyond, up to {axes_of.number(values.max())}"
            axes_of.note(ax, words, (edge, place - 0.4), (4, 0), ha="right", color=MUTED)
    names = [f"{name}\nn = {len(values)}" for name, values in data.items()]
    axes_of.categories(ax, names)
    ax.set_xlabel(axes_of.label(x_label, unit))
    legend(fig, [Line2D([], [], label="median and its 95 % interval", color=INK, marker="|", ms=9, mew=1.8, lw=1.8)])
    return fig


@styled
def intervals(
    frame: pd.DataFrame,
    *,
    y: str,
    value: str,
    low: str,
    high: str,
    x_label: str,
    title: str,
    claimed_low: str | None = None,
    claimed_high: str | None = None,
    origin: str | None = None,
    reference: float | None = 1.0,
    log: bool | None = None,
) -> Figure:
    """Measured values with their 95 % intervals, each before the band of what was claimed for it.

    A missing end of a claimed range (None, NaN) is open on that side; a row with neither end has no band. `reference`
    is the value that means "no effect". The axis is logarithmic as `log` says, or when all numbers are positive and
    span more than a factor of 4.
    """
    numeric = [value, low, high, claimed_low, claimed_high]
    axes_of.check(frame, [y, origin, *numeric], numeric=numeric, positive=bool(log))
    spans = frame[[*filter(None, numeric)]].astype(float)
    numbers = np.append(spans.to_numpy(), np.nan if reference is None else reference)
    if log is None:
        log = bool(np.nanmin(numbers) > 0 and np.nanmax(numbers) / np.nanmin(numbers) > 4)
    fig, ax = new_figure(title, max(2.4, 1.6 + 0.36 * len(frame)))
    sources, colour = origins(frame, origin), COLOURS[0]
    axes_of.scale(ax.xaxis, log, numbers, pad=0.06)
    if reference is not None:
        ax.axvline(reference, color=MUTED, lw=1, ls=(0, (2, 2)), zorder=0)
    for place, (_, row) in enumerate(spans.iterrows()):
        if claimed_low and claimed_high:
            axes_of.claimed_band(ax, row[claimed_low], row[claimed_high], place, CLAIMED)
        measured = sources[place] is Origin.MEASURED
        axes_of.interval(ax, row[value], row[low], row[high], place, colour, measured)
    axes_of.categories(ax, [str(text) for text in frame[y]])
    ax.set_xlabel(x_label)
    handles = [Line2D([], [], label="measured, 95 % interval", color=colour, marker="o", ms=5, lw=1.6)]
    if claimed_low and claimed_high:
        handles.append(Patch(label="claimed", facecolor=CLAIMED))
    if reference is not None:
        handles.append(Line2D([], [], label=f"no effect ({reference:g})", color=MUTED, lw=1, ls=(0, (2, 2))))
    legend(fig, handles + [h for h in origin_handles(sources, line=True) if h.get_label() != "measured"])
    return fig


@styled
def roofline(points: pd.DataFrame, ceilings: Ceilings, *, title: str) -> Figure:
    """Reached GFLOP/s over FLOPs per byte, under this machine's measured ceilings; both axes logarithmic.

    `points` has the columns label, flops_per_byte, gflop_s, and where known ci_low, ci_high (GFLOP/s) and origin.
    """
    interval = [c for c in ("ci_low", "ci_high") if c in points]
    origin = "origin" if "origin" in points else None
    numeric = ["flops_per_byte", "gflop_s", *interval]
    axes_of.check(points, ["label", *numeric], numeric=numeric, positive=True)
    bandwidths = ceilings.named_bandwidths()
    if min(ceilings.gemm_gflop_s, *(gb_s for _, gb_s in bandwidths)) <= 0:
        raise PlotError("roofline needs a positive peak in GFLOP/s and positive bandwidths in GB/s")
    fig, ax = new_figure(title, 4.4)
    axes_of.roofs(ax, points, ceilings.gemm_gflop_s, bandwidths)
    look_of, sources = list(zip(COLOURS, MARKERS, strict=True)), origins(points, origin)
    for place, ((_, row), source) in enumerate(zip(points.iterrows(), sources, strict=True)):
        colour, marker = look_of[place % len(look_of)]
        ends = None
        if len(interval) == 2:
            ends = [[max(0.0, row.gflop_s - row.ci_low)], [max(0.0, row.ci_high - row.gflop_s)]]
        measured = source is Origin.MEASURED
        look = {"marker": marker, "ms": 6, "mfc": colour} if measured else {"marker": "*", "ms": 10, "mfc": SURFACE}
        ax.errorbar(row.flops_per_byte, row.gflop_s, yerr=ends, color=colour, capsize=2.5, zorder=3, **look)
    ax.set(xlabel="arithmetic intensity (FLOPs per byte moved)", ylabel="throughput (GFLOP/s)")
    legend(fig, origin_handles(sources, line=True))
    axes_of.place_labels(fig, ax, points["flops_per_byte"], points["gflop_s"], [str(t) for t in points["label"]])
    return fig
