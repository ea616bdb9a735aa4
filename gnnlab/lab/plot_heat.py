"""Heat maps: one panel for each unit, colour and number for the value, every gap and every origin visible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from . import plot_axes as axes_of
from .plot_style import HATCHES, INK, MUTED, STAR, SURFACE, Figure, PlotError, legend, new_figure, origins, styled
from .table import Origin

MOST_NUMBERS = 6  # columns of a panel that still have room for numbers
ROOMY = 3  # columns with room for three digits; more have two
_ROW, _HEAD = 0.235, 1.5  # inches
_GAP = "–"


@styled
def heat(
    frame: pd.DataFrame,
    *,
    row: str,
    column: str,
    panel: str,
    value: str,
    value_label: str,
    title: str,
    origin: str | None = None,
) -> Figure:
    """Column `value` by `row` and `column`, a panel for each value of `panel`; darker is more, on a logarithmic scale.

    Numbers stand in the fields where there is room for them. A missing value (NaN) is a dash, never a colour; what was
    not measured is hatched, and its panel starred. Raises `PlotError`.
    """
    axes_of.check(frame, [row, column, panel, value, origin], numeric=[value])
    if frame.duplicated([row, column, panel]).any():
        raise PlotError(f"a field of {row}, {column} and {panel} occurs twice; one row for each")
    if not (frame[value].dropna() > 0).all() or frame[value].isna().all():
        raise PlotError(f"column {value!r} needs a positive number, and none that is not: the scale is logarithmic")
    frame = frame.assign(_origin=origins(frame, origin))
    rows, columns, panels = (list(dict.fromkeys(frame[name])) for name in (row, column, panel))
    across = min(len(panels), max(1, 3 if len(columns) <= MOST_NUMBERS else 2))
    down = math.ceil(len(panels) / across)
    fig, first = new_figure(title, 0.75 + down * (len(rows) * _ROW + _HEAD * (0.55 if len(columns) <= 3 else 0.75)))
    first.remove()
    grid = fig.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    norm = LogNorm(frame[value].min(), max(frame[value].max(), 1.01 * frame[value].min()))
    for ax, name in zip(grid, panels, strict=False):
        part = frame[frame[panel] == name]
        _panel(ax, part.set_index([row, column]), value, rows, columns, norm)
        simulated = (part["_origin"] != Origin.MEASURED).any()
        ax.set_title(f"{name}{STAR * bool(simulated)}", fontsize=8.5, loc="left", color=INK)
    for place in range(len(panels), len(grid)):
        grid[place].remove()
        grid[place - across].tick_params(labelbottom=True)
    _scale(fig, list(grid[: len(panels)]), norm, value_label)
    gaps = frame[value].notna().sum() < len(rows) * len(columns) * len(panels)
    legend(fig, _handles(bool(gaps), set(frame["_origin"])))
    return fig


def _panel(
    ax: Axes, part: pd.DataFrame, value: str, rows: Sequence[str], columns: Sequence[str], norm: LogNorm
) -> None:
    numbers = part[value].unstack().reindex(index=rows, columns=columns).to_numpy(dtype=float)
    kinds = part["_origin"].unstack().reindex(index=rows, columns=columns).to_numpy()
    ax.imshow(np.ma.masked_invalid(numbers), norm=norm, cmap=_palette(), aspect="auto")
    ax.set_xticks(range(len(columns)), columns, rotation=90 if len(columns) > 2 else 0, fontsize=7)
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for (y, x), number in np.ndenumerate(numbers):
        dark = np.isfinite(number) and norm(number) > 0.55
        if np.isnan(number):
            ax.text(x, y, _GAP, ha="center", va="center", fontsize=7, color=MUTED)
            continue
        if (kind := Origin(kinds[y, x])) is not Origin.MEASURED:
            look = {"facecolor": "none", "edgecolor": SURFACE if dark else INK, "linewidth": 0, "alpha": 0.45}
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, hatch=HATCHES[kind], **look))
        if len(columns) <= MOST_NUMBERS:
            text = {"ha": "center", "va": "center", "fontsize": 7, "color": SURFACE if dark else INK}
            clear = [withStroke(linewidth=2, foreground=_palette()(norm(number)))]  # of the hatch behind it
            shown = number if len(columns) <= ROOMY else float(f"{number:.2g}")
            ax.text(x, y, axes_of.number(shown), path_effects=clear, **text)


def _palette() -> matplotlib.colors.Colormap:
    return matplotlib.colormaps["cividis_r"].with_extremes(bad=SURFACE)


def _scale(fig: Figure, axes: list[Axes], norm: LogNorm, label: str) -> None:
    shade = matplotlib.cm.ScalarMappable(norm, _palette())
    bar = fig.colorbar(shade, ax=axes, fraction=0.03, pad=0.01, aspect=30)
    bar.set_label(label, fontsize=8.5)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda number, _: axes_of.number(number)))
    bar.ax.tick_params(labelsize=7.5)


def _handles(gaps: bool, found: set[Origin]) -> list[Patch]:
    gap = Patch(facecolor=SURFACE, edgecolor=MUTED, label=f"{_GAP} no value")
    kinds = [o for o in Origin if o is not Origin.MEASURED and o in found]
    return [gap] * gaps + [
        Patch(facecolor=SURFACE, edgecolor=INK, hatch=HATCHES[o], label=o.value + STAR) for o in kinds
    ]
