"""What the figures of `gnnlab.lab.plots` are drawn from: checked columns, scales, whiskers, bands, labels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from .plot_style import GRID, INK, MUTED, SURFACE, PlotError

LABEL_CHARACTERS = 34  # of a category, before it is wrapped


def check(
    frame: pd.DataFrame,
    columns: Iterable[str | None],
    *,
    numeric: Iterable[str | None] = (),
    positive: bool | Iterable[str] = False,
) -> None:
    """Refuse an empty frame, a missing column, text or infinity for a number, half an interval, zero on a log axis.

    `positive` is True for all numeric columns, or names those that a logarithmic axis shows.
    """
    if len(frame) == 0:
        raise PlotError("the table is empty: there is nothing to draw")
    missing = [c for c in columns if c is not None and c not in frame]
    if missing:
        raise PlotError(f"no column {missing[0]!r}; the table has {', '.join(map(str, frame.columns))}")
    numeric = list(numeric)
    if numeric.count(None) % 2:
        raise PlotError("an interval needs both ends; give both columns or none")
    wanted = set(numeric) if positive is True else set(positive or ())
    for column in filter(None, numeric):
        try:
            values = frame[column].to_numpy(dtype=float)
        except (TypeError, ValueError):
            raise PlotError(f"column {column!r} holds something that is no number; give floats") from None
        if np.isinf(values).any():
            raise PlotError(f"column {column!r} holds an infinite value; leave the row out and say so")
        if column in wanted and (values <= 0).any():
            raise PlotError(f"column {column!r} holds {np.nanmin(values):g}: a logarithmic axis needs positive values")


def number(value: float) -> str:
    """A number as a reader writes it: three digits, thousands separated, no exponent between 0.001 and 1e9."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}"


def label(name: str, unit: str) -> str:
    name = name.replace("_", " ")
    return f"{name} ({unit})" if unit else name


def scale(axis: Axis, log: bool, values: np.ndarray, pad: float | None = None) -> None:
    """Linear or logarithmic scale with plain numbers on it; `pad` sets the limits to the values and that share more."""
    ax, is_x = axis.axes, axis.axis_name == "x"
    low, high = np.nanmin(values), np.nanmax(values)
    if log:
        (ax.set_xscale if is_x else ax.set_yscale)("log")
        decades = math.log10(high / low) if low > 0 else 0
        axis.set_major_locator(LogLocator(subs=(1,) if decades > 2.5 else (1, 2, 5), numticks=12))
        axis.set_minor_locator(NullLocator())
        if decades < 0.7:  # too narrow for powers and halves: a few even steps
            axis.set_major_locator(MaxNLocator(5))
    else:
        axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if pad is not None and low < high:
        if log:
            low, high = low / (high / low) ** pad, high * (high / low) ** pad
        else:
            low, high = low - pad * (high - low), high + pad * (high - low)
        (ax.set_xlim if is_x else ax.set_ylim)(low, high)


def stacked(labels: Sequence[str], counts: Sequence[int]) -> tuple[list[float], list[float], float]:
    """Room for `counts` bars at each label and for the label itself, one unit a bar.

    Returns where the first bar of each label lies, the middle of each label, and the units needed in all.
    """
    starts, centres, top = [], [], 0.0
    for text, count in zip(labels, counts, strict=True):
        height = max(count, 0.75 * (wrapped(text).count("\n") + 1)) + 0.45
        centres.append(top + height / 2 - 0.5)
        starts.append(centres[-1] - (count - 1) / 2)
        top += height
    return starts, centres, top


def wrapped(text: str) -> str:
    """`text` in lines short enough for a label; its own line breaks stay."""
    return "\n".join(textwrap.fill(part, LABEL_CHARACTERS) for part in str(text).split("\n"))


def categories(ax: Axes, labels: Sequence[str], at: Sequence[float] | None = None, units: float | None = None) -> None:
    """Labels down the y axis, the first on top, long ones wrapped; `at` their places, one apart unless given."""
    ax.set_yticks(range(len(labels)) if at is None else at, [wrapped(text) for text in labels])
    ax.set_ylim((len(labels) if units is None else units) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=GRID, lw=0.7)
    ax.set_axisbelow(True)


def whisker(ax: Axes, row: pd.Series, x: str, low: str | None, high: str | None, place: float) -> float:
    """Draw the interval of a bar; returns where it ends, for the label behind it."""
    if low is None or high is None or pd.isna(row[low]) or pd.isna(row[high]):
        return row[x]
    ends = [[max(0.0, row[x] - row[low])], [max(0.0, row[high] - row[x])]]
    ax.errorbar(row[x], place, xerr=ends, color=INK, elinewidth=1.1, capsize=2.5, capthick=1.1, fmt="none")
    return max(row[x], row[high])


def note(ax: Axes, text: str, at: Any, offset: tuple[float, float], *, color: str = INK, **options: Any) -> Annotation:
    """A small text `offset` points from `at`, legible across lines."""
    options |= {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": color}
    return ax.annotate(text, at, offset, path_effects=[withStroke(linewidth=2.2, foreground=SURFACE)], **options)


def series(
    ax: Axes, frame: pd.DataFrame, columns: tuple[str, str, str, str], colour: str, marker: str, *, joined: bool
) -> None:
    """Points with intervals, `joined` by lines; those not measured are hollow stars, and lines to them are dotted."""
    x, y, low, high = columns
    values = frame[y].to_numpy(dtype=float)
    below = np.maximum(0, values - frame[low].to_numpy(dtype=float))
    above = np.maximum(0, frame[high].to_numpy(dtype=float) - values)
    solid = frame["_measured"].to_numpy()
    places = frame[x].to_numpy(dtype=float)
    for i in range(len(frame) - 1 if joined else 0):
        style = "-" if solid[i] and solid[i + 1] else ":"
        ax.plot(places[i : i + 2], values[i : i + 2], color=colour, lw=1.3, ls=style)
    filled, hollow = {"marker": marker, "ms": 5, "mfc": colour}, {"marker": "*", "ms": 9, "mfc": SURFACE}
    for chosen, look in ((solid, filled), (~solid, hollow)):
        ends = np.nan_to_num(np.vstack([below, above])[:, chosen])
        ax.errorbar(places[chosen], values[chosen], yerr=ends, ls="none", color=colour, capsize=2.5, **look)


def upper_fence(values: np.ndarray) -> float:
    """Where samples begin to be drawn at the edge: six quartile ranges above the third quartile, if any lies there."""
    first, third = np.percentile(values, [25, 75])
    return float(min(values.max(), third + 6 * (third - first))) if third > first else float(values.max())


def interval(ax: Axes, value: float, low: float, high: float, place: float, colour: str, measured: bool) -> None:
    """A value with its interval; a hollow star when it was not measured, words when there is none."""
    if pd.isna(value):
        note(ax, "not measured", (0, place), (4, 0), xycoords=ax.get_yaxis_transform(), color=MUTED)
        return
    ends = np.nan_to_num([[max(0.0, value - low)], [max(0.0, high - value)]])
    look = {"marker": "o", "ms": 5.5, "mfc": colour} if measured else {"marker": "*", "ms": 10, "mfc": SURFACE}
    ax.errorbar(value, place, xerr=ends, color=colour, elinewidth=1.6, capsize=3, capthick=1.4, zorder=3, **look)


def claimed_band(ax: Axes, low: float, high: float, place: float, colour: str) -> None:
    """The claimed range as a band across one row; an open end runs to the edge of the axes."""
    if pd.isna(low) and pd.isna(high):
        return
    left, right = ax.get_xlim()
    low, high = (left if pd.isna(low) else low), (right if pd.isna(high) else high)
    if low == high:
        ax.plot([low, low], [place - 0.34, place + 0.34], color=colour, lw=4, solid_capstyle="butt", zorder=1)
    else:
        ax.barh(place, high - low, 0.68, left=low, color=colour, zorder=1)
    ax.set_xlim(left, right)


def roofs(ax: Axes, points: pd.DataFrame, peak: float, bandwidths: Sequence[tuple[str, float]]) -> None:
    """The measured ceilings, each with its name and number on it, on logarithmic axes that hold every point."""
    intensity, reached = points["flops_per_byte"].to_numpy(dtype=float), points["gflop_s"].to_numpy(dtype=float)
    slowest, fastest = min(g for _, g in bandwidths), max(g for _, g in bandwidths)
    left, right = intensity.min() / 2.5, max(intensity.max() * 4, 6 * peak / slowest)
    bottom, top = min(reached.min() / 3, left * slowest), max(reached.max(), peak) * 2.6
    grid = np.geomspace(left, right, 200)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    scale(ax.xaxis, True, np.array([left, right]))
    scale(ax.yaxis, True, np.array([bottom, top]))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    for place, (name, gb_s) in enumerate(sorted(bandwidths, key=lambda pair: -pair[1])):
        style = ["-", "--", "-.", ":"][place % 4]
        line = ax.plot(grid, np.minimum(peak, gb_s * grid), color=MUTED, lw=1.3, ls=style, zorder=1)[0]
        line.set_label(f"{name}: {number(gb_s)} GB/s")
    note(ax, f"peak {number(peak)} GFLOP/s", (right, peak), (-2, 7), ha="right", color=MUTED)
    ax.legend(loc="lower right", title=None, handlelength=2.6)
    ax.fill_between(grid, np.minimum(peak, fastest * grid), top, color="#eceef1", zorder=0, lw=0)


def place_labels(fig: Figure, ax: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str]) -> None:
    """Write each text beside its point, clear of other texts, points and the legend; a thin line leads further off."""
    fig.draw_without_rendering()  # settles the layout, so that pixels mean something
    fig.set_layout_engine("none")
    renderer = fig.canvas.get_renderer()
    inside = ax.get_window_extent(renderer)
    spots = ax.transData.transform(np.column_stack([np.asarray(xs, float), np.asarray(ys, float)]))
    pixel = fig.dpi / 72
    taken = [Bbox.from_bounds(x - 5 * pixel, y - 5 * pixel, 10 * pixel, 10 * pixel) for x, y in spots]
    taken += [legend.get_window_extent(renderer) for legend in [ax.get_legend()] if legend]
    taken += [text.get_window_extent(renderer) for text in ax.texts]
    for spot, text in zip(spots, texts, strict=True):
        lead = {"arrowstyle": "-", "color": MUTED, "lw": 0.6, "shrinkB": 4}
        words, at = wrapped(text), ax.transData.inverted().transform(spot)
        written = note(ax, words, at, (0, 0), ha="center", arrowprops=lead)
        size = _extent(written, renderer)
        offsets = list(_around(size, pixel))
        free = next((o for o in offsets if _fits(_moved(size, spot, o, pixel), inside, taken)), offsets[0])
        written.set_position(free)
        if math.hypot(*free) < size.width / pixel / 2 + 16:  # beside its point: no line needed
            written.arrow_patch.set_visible(False)
        taken.append(_moved(size, spot, free, pixel))


def _extent(written: Annotation, renderer: RendererBase) -> Bbox:
    """The size of a text in pixels, without its leading line."""
    rows, font = written.get_text().split("\n"), written.get_fontproperties()
    sizes = [renderer.get_text_width_height_descent(row, font, False) for row in rows]
    return Bbox.from_bounds(0, 0, max(width for width, _, _ in sizes), sum(1.35 * height for _, height, _ in sizes))


def _around(size: Bbox, pixel: float) -> Iterable[tuple[float, float]]:
    """Offsets of the text's centre in points, the near ones first."""
    half_width, half_height = size.width / pixel / 2, size.height / pixel / 2
    for ring in range(9):
        for angle in (0, 90, 270, 45, 315, 180, 135, 225):
            x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            yield x * (half_width + 8 + 11 * ring), y * (half_height + 7 + 11 * ring)


def _moved(size: Bbox, spot: np.ndarray, offset: tuple[float, float], pixel: float) -> Bbox:
    x, y = spot[0] + offset[0] * pixel, spot[1] + offset[1] * pixel
    return Bbox.from_bounds(x - size.width / 2, y - size.height / 2, size.width, size.height)


def _fits(box: Bbox, inside: Bbox, taken: list[Bbox]) -> bool:
    held = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
    return held and not any(box.overlaps(other) for other in taken)
