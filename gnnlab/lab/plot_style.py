"""The one style of the lab's figures: palette, origins, scales, labels, legend, and how a figure is kept.

Colours are seaborn's colour-blind palette, and each comes with a marker or a hatch of its own. Measured values are
solid; interpolated, extrapolated, simulated and predicted ones are hatched or hollow, and starred.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically

from .results import FigureRecord
from .table import Origin, number

SURFACE, INK, MUTED, GRID = "#fcfcfc", "#1d2126", "#646b75", "#e4e6ea"
WIDTH, HEIGHT = 7.2, 4.0  # inches
DPI = 200  # twice the 100 at which the figure is read
COLOURS = [seaborn.color_palette("colorblind").as_hex()[i] for i in (0, 1, 2, 3, 4, 5, 9, 7)]
MARKERS = "osD^vPXh"
MAX_SERIES = len(COLOURS)
LABEL_CHARACTERS = 34  # of a category, before it is wrapped
STAR = " ★"
HATCHES = {
    Origin.INTERPOLATED: "///",
    Origin.EXTRAPOLATED: "\\\\\\",
    Origin.SIMULATED: "xxxx",
    Origin.PREDICTED: "||",
}
_GROUP_HATCHES = ("", "....", "xx", "--", "oo", "++", "||", "OO")  # beside the colour, one for each group
_STYLE = {
    **seaborn.axes_style("ticks"),
    **seaborn.plotting_context("paper"),
    "figure.facecolor": SURFACE,
    "axes.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa0a8",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "gnnlab",  # the same figure gives the same file
}


class LabFigure(Figure):
    """A matplotlib figure that a notebook shows as PNG at twice its size, whatever the kernel's backend is."""

    def _repr_png_(self) -> bytes:
        return _png(self)


def save(
    fig: Figure, name: str, *, title: str, alt: str, folder: Path, key: bool = False, notebook: str = ""
) -> FigureRecord:
    """Write `figures/<name>.png` (2x) and `.svg` under `folder`, each whole or not at all.

    With a `notebook` its number stands before the name, as the figures of all notebooks lie in one folder.
    `alt` describes the figure to who does not see it, in at least 20 characters; `title` states the finding. Both are
    written into the SVG too. `key` marks the figure that the front page shows. Raises `GnnlabError`.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise GnnlabError(f"figure name {name!r}: use letters, digits, '_' and '-' only; it becomes a file name")
    if not title.strip():
        raise GnnlabError(f"figure {name!r} has no title; state its finding in one sentence")
    if len(alt.strip()) < 20:
        raise GnnlabError(
            f"figure {name!r}: alternative text {alt!r} is too short; describe it in 20 characters or more"
        )
    file = f"{notebook[:2]}_{name}" if notebook else name
    png, svg = (f"figures/{file}.{kind}" for kind in ("png", "svg"))
    data, markup = _png(fig), _svg(fig, title, alt)
    write_atomically(Path(folder) / png, lambda file: file.write(data), mode="wb")
    write_atomically(Path(folder) / svg, lambda file: file.write(markup))
    return FigureRecord(name=name, title=title, alt=alt, png=png, svg=svg, key=key)


def _png(fig: Figure) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        fig.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _svg(fig: Figure, title: str, alt: str) -> str:
    """The figure as SVG with `<title>` and `<desc>`, so that a screen reader speaks of it as one picture."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    opening = '<svg role="img" aria-labelledby="title desc" '
    spoken = f'\n <title id="title">{escape(title)}</title>\n <desc id="desc">{escape(alt)}</desc>'
    before, rest = buffer.getvalue().split("<svg ", 1)
    inside, rest = rest.split(">", 1)
    return f"{before}{opening}{inside}>{spoken}{rest}"


styled = matplotlib.rc_context(_STYLE)  # decorates what draws; matplotlib's own settings stay as they were


def new_figure(title: str, height: float = HEIGHT, **grid: Any) -> tuple[LabFigure, Any]:
    """A figure under its title, which states the finding, and its axes, or what `Figure.subplots` makes of `grid`."""
    if not title.strip():
        raise GnnlabError("a figure needs a title that states the finding")
    fig = LabFigure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    fig.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    fig.suptitle(title, x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=INK, wrap=True)
    return fig, fig.subplots(**grid)


def legend(fig: Figure, handles: list[Any]) -> None:
    if handles:
        longest = max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), int(100 / (longest + 6))))
        fig.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.2, borderaxespad=0.4)


def looks(names: Sequence[Any]) -> dict[Any, tuple[str, str, str]]:
    """Colour, marker and hatch of each series, in the order given."""
    if len(names) > MAX_SERIES:
        raise GnnlabError(f"{len(names)} series in one figure cannot be told apart; give at most {MAX_SERIES}")
    return dict(zip(names, zip(COLOURS, MARKERS, _GROUP_HATCHES, strict=False), strict=False))


def point(colour: str, marker: str, measured: bool = True) -> dict[str, Any]:
    """The look of a marker: a hollow star where nothing was measured."""
    look = {"marker": marker, "ms": 5, "mfc": colour} if measured else {"marker": "*", "ms": 9, "mfc": SURFACE}
    return {"color": colour, "mec": colour, **look}


def check(frame: pd.DataFrame, *columns: str | None, once: Sequence[str] = ()) -> None:
    """Refuse an empty frame, one that lacks a column, and one in which the columns `once` do not tell rows apart."""
    if len(frame) == 0:
        raise GnnlabError("the table is empty: there is nothing to draw")
    if missing := [c for c in (*columns, *once) if c is not None and c not in frame]:
        raise GnnlabError(f"no column {missing[0]!r}; the table has {', '.join(map(str, frame.columns))}")
    if once and frame.duplicated(list(once)).any():
        raise GnnlabError(f"a value of {', '.join(once)} occurs twice; give one row for each")


def ends(frame: pd.DataFrame, column: str = "value") -> np.ndarray:
    """(2, rows) how far intervals reach below and above their values; 0 where there is none.

    The ends of `value` are in the columns low and high, those of another column in `<column>_low` and `<column>_high`.
    """
    low, high = ("low", "high") if column == "value" else (f"{column}_low", f"{column}_high")
    if low not in frame or high not in frame:
        return np.zeros((2, len(frame)))
    values, below, above = (frame[name].to_numpy(dtype=float) for name in (column, low, high))
    return np.nan_to_num(np.maximum(0.0, [values - below, above - values]))


def origins(frame: pd.DataFrame) -> list[Origin]:
    """The origin of each row; every row is measured when no column says otherwise. Counted is drawn as that."""
    found = [Origin(value) for value in frame.get("origin", [Origin.MEASURED] * len(frame))]
    return [Origin.MEASURED if value is Origin.COUNTED else value for value in found]


def origin_handles(origins: Iterable[Origin], *, line: bool = False) -> list[Any]:
    """Legend entries for the origins that occur, none when everything was measured."""
    found = [o for o in Origin if o in set(origins)]
    if found in ([], [Origin.MEASURED]):
        return []
    if line:
        return [Line2D([], [], ls="none", label=o.value, **point(INK, "o", o is Origin.MEASURED)) for o in found]
    plain = {"edgecolor": INK, "linewidth": 0.8}
    return [
        Patch(label=o.value, facecolor=INK, **plain)
        if o is Origin.MEASURED
        else Patch(label=o.value + STAR, facecolor=SURFACE, hatch=HATCHES[o], **plain)
        for o in found
    ]


def wide(values: np.ndarray) -> bool:
    """Do they want a logarithmic axis? All are positive, and the largest is more than five times the least."""
    return bool(np.nanmin(values) > 0 and np.nanmax(values) > 5 * np.nanmin(values))


def scale(axis: Axis, log: bool, values: np.ndarray, sizes: bool = False) -> None:
    """Linear or logarithmic scale with plain numbers on it; of `sizes` in MiB with powers of two, each with its unit.

    Where ratios lie on both sides of 1, it has a tick.
    """
    values = np.where(values > 0, values, np.nan) if log else values
    low, high = np.nanmin(values), np.nanmax(values)
    if log:
        (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
        decades = math.log10(high / low)
        steps = (1,) if decades > 2.5 else (1, 2, 5) if decades > 1.2 else (1, 1.5, 2, 3, 5, 7)
        plain = LogLocator(subs=steps, numticks=12) if decades > 0.3 else MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
        axis.set_major_locator(LogLocator(base=32 if decades > 2.5 else 2, numticks=12) if sizes else plain)
        axis.set_minor_locator(NullLocator())
    else:
        whole = all(float(value).is_integer() for value in np.ravel(values) if not np.isnan(value))
        axis.set_major_locator(MaxNLocator(6, integer=whole and high > low))
    axis.set_major_formatter(FuncFormatter(lambda value, _: size(value) if sizes else number(value)))


def size(mib: float) -> str:
    """MiB in the unit that suits them: "4 B", "15.2 KiB", "214 MiB"."""
    units = (("GiB", 2**-10), ("MiB", 1), ("KiB", 2**10), ("B", 2**20))
    unit, factor = next((unit, factor) for unit, factor in units if mib * factor >= 1 or unit == "B")
    return f"{number(mib * factor)} {unit}"


def axis_label(label: str, unit: str) -> str:
    """A quantity with its unit; without one that says the same once more: "scores", "times as fast as PyG"."""
    said = unit in ("", "count") or label.endswith((unit, f"{unit}s")) or (unit == "x" and label.startswith("times"))
    return label if said else f"{label} ({'×' if unit == 'x' else unit})"


def wrapped(text: str) -> str:
    """`text` in lines short enough for a label; its own line breaks stay."""
    return "\n".join(textwrap.fill(part, LABEL_CHARACTERS) for part in str(text).split("\n"))


def categories(ax: Axes, labels: Sequence[Any], at: Sequence[float] | None = None, units: float | None = None) -> None:
    """Labels down the y axis, the first on top, long ones wrapped; `at` their places, one apart unless given."""
    ax.set_yticks(range(len(labels)) if at is None else at, [wrapped(text) for text in labels])
    ax.set_ylim((len(labels) if units is None else units) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=GRID, lw=0.7)
    ax.set_axisbelow(True)


def panel_title(ax: Axes, name: str, origins: Iterable[Origin]) -> None:
    """The name of a panel, starred where something in it was not measured."""
    starred = any(origin != Origin.MEASURED for origin in origins)
    ax.set_title(f"{name}{STAR * starred}", fontsize=8.5, loc="left", color=INK)


def note(ax: Axes, text: str, at: Any, offset: tuple[float, float], *, color: str = INK, **options: Any) -> Annotation:
    """A small text `offset` points from `at`, legible across lines."""
    options |= {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": color}
    return ax.annotate(text, at, offset, path_effects=[withStroke(linewidth=2.2, foreground=SURFACE)], **options)
