"""The one style of the lab's figures: palette, origins, scales, labels, legend, and how a figure is written.

Colours are seaborn's colour-blind palette, and each comes with a marker or a hatch of its own. Measured values are
solid; interpolated, extrapolated, simulated and predicted ones are hatched or hollow, and starred.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
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
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically

from .results import FigureRecord
from .table import Origin
from .text import number

SURFACE, INK, MUTED, GRID = "#fcfcfc", "#1d2126", "#646b75", "#e4e6ea"
WIDTH, DPI = 7.2, 200  # inches; twice the 100 dots at which the figure is read
COLOURS = [seaborn.color_palette("colorblind").as_hex()[i] for i in (0, 1, 2, 3, 4, 5, 9, 7)]
MARKERS = "osD^vPXh"
GROUP_HATCHES = ("", "....", "xx", "--", "oo", "++", "||", "OO")  # beside the colour, one for each group
MAX_SERIES = len(COLOURS)
STAR = " ★"
HATCHES = dict(zip(Origin, (None, None, "///", "\\\\\\", "xxxx", "||"), strict=True))
STEPS = ((300, (1,)), (15, (1, 2, 5)), (3, (1, 1.5, 2, 3, 5, 7)), (1, (1, 1.2, 1.4, 1.6, 2, 3, 4, 5, 6, 7, 8, 9)))
_STYLE = {
    **seaborn.axes_style("ticks", {"axes.facecolor": SURFACE, "text.color": INK, "font.sans-serif": ["DejaVu Sans"]}),
    **seaborn.plotting_context("paper"),
    "figure.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
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
styled = matplotlib.rc_context(_STYLE)  # decorates what draws; matplotlib's own settings stay as they were


@styled
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
    png, svg = (f"figures/{notebook[:2]}{'_' * bool(notebook)}{name}.{kind}" for kind in ("png", "svg"))
    data, markup = io.BytesIO(), _svg(fig, title, alt)
    fig.savefig(data, format="png", dpi=DPI)
    write_atomically(Path(folder) / png, lambda file: file.write(data.getvalue()), mode="wb")
    write_atomically(Path(folder) / svg, lambda file: file.write(markup))
    return FigureRecord(name=name, title=title, alt=alt, png=png, svg=svg, key=key)


def _svg(fig: Figure, title: str, alt: str) -> str:
    """The figure as SVG with `<title>` and `<desc>`, so that a screen reader speaks of it as one picture."""
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    before, rest = buffer.getvalue().split("<svg ", 1)
    attributes, content = rest.split(">", 1)
    spoken = f'\n <title id="title">{escape(title)}</title>\n <desc id="desc">{escape(alt)}</desc>'
    return f'{before}<svg role="img" aria-labelledby="title desc" {attributes}>{spoken}{content}'


def new_figure(title: str, height: float = 4.0, **grid: Any) -> tuple[Figure, Any]:
    """A figure under its title, which states the finding, and its axes, or what `Figure.subplots` makes of `grid`."""
    if not title.strip():
        raise GnnlabError("a figure needs a title that states the finding")
    fig = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    fig.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    fig.suptitle(title, x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=INK, wrap=True)
    return fig, fig.subplots(**grid)


def legend(fig: Figure, handles: Sequence[Any]) -> None:
    """A legend below the figure, in as many columns as its longest label leaves room for."""
    if handles:
        columns = 100 // (max(len(handle.get_label()) for handle in handles) + 6)
        fig.legend(handles=handles, loc="outside lower left", ncols=max(1, min(len(handles), columns)))


def looks(names: Sequence[Any]) -> dict[Any, tuple[str, str, str]]:
    """Colour, marker and hatch of each series, in the order given."""
    if len(names) > MAX_SERIES:
        raise GnnlabError(f"{len(names)} series in one figure cannot be told apart; give at most {MAX_SERIES}")
    return dict(zip(names, zip(COLOURS, MARKERS, GROUP_HATCHES, strict=True), strict=False))


def point(colour: str, marker: str, measured: bool = True) -> dict[str, Any]:
    """The look of a marker: a hollow star where nothing was measured."""
    look = {"marker": marker, "ms": 5, "mfc": colour} if measured else {"marker": "*", "ms": 9, "mfc": SURFACE}
    return {"color": colour, "mec": colour, **look}


def series_handles(looks: Mapping[Any, tuple[str, str, str]], markers: bool, joined: bool = False) -> list[Any]:
    """Legend entries for series: `markers`, with a line where they are `joined`, or bars."""
    if not markers:
        return [Patch(label=str(n), fc=colour, hatch=hatch, ec=SURFACE) for n, (colour, _, hatch) in looks.items()]
    line = {"lw": 1.3} if joined else {"ls": "none"}
    return [Line2D([], [], label=str(n), **line, **point(*look[:2])) for n, look in looks.items()]


def check(frame: pd.DataFrame, *columns: str | None, once: Sequence[str] = ()) -> None:
    """Refuse an empty frame, one that lacks a column, and one in which the columns `once` do not tell rows apart."""
    if len(frame) == 0:
        raise GnnlabError("the table is empty: there is nothing to draw")
    if missing := [c for c in (*columns, *once) if c is not None and c not in frame]:
        raise GnnlabError(f"no column {missing[0]!r}; the table has {', '.join(map(str, frame.columns))}")
    if once and frame.duplicated(list(once)).any():
        raise GnnlabError(f"a value of {', '.join(once)} occurs twice; give one row for each")


def ends(frame: pd.DataFrame, column: str = "value") -> np.ndarray:
    """(2, rows) how far intervals reach below and above their values; NaN where there is none.

    The ends of `value` are in the columns low and high, those of another column in `<column>_low` and `<column>_high`.
    """
    low, high = ("low", "high") if column == "value" else (f"{column}_low", f"{column}_high")
    values, below, above = (frame.get(name, frame[column]).to_numpy(dtype=float) for name in (column, low, high))
    reach = np.maximum(0.0, [values - below, above - values])
    return np.where((reach > 0).any(axis=0), reach, np.nan)


def origins(frame: pd.DataFrame) -> list[Origin]:
    """The origin of each row; every row is measured when no column says otherwise. Counted is drawn as that."""
    named = [Origin(value) for value in frame.get("origin", [Origin.MEASURED] * len(frame))]
    return [Origin.MEASURED if origin is Origin.COUNTED else origin for origin in named]


def origin_handles(origins: Iterable[Origin], *, line: bool = False) -> list[Any]:
    """Legend entries for the origins that occur, none when everything was measured."""
    named = [origin for origin in Origin if origin in set(origins)]
    if named == [Origin.MEASURED]:
        return []
    if line:
        return [Line2D([], [], ls="none", label=o.value, **point(INK, "o", o is Origin.MEASURED)) for o in named]
    look = {o: {"fc": INK} if o is Origin.MEASURED else {"fc": SURFACE, "hatch": HATCHES[o]} for o in named}
    return [Patch(label=o.value + STAR * (o is not Origin.MEASURED), ec=INK, lw=0.8, **look[o]) for o in named]


def wide(values: np.ndarray) -> bool:
    """Whether values want a logarithmic axis: all are positive, and the largest is over five times the least."""
    return bool(np.nanmin(values) > 0 and np.nanmax(values) > 5 * np.nanmin(values))


def scale(axis: Axis, log: bool, values: np.ndarray, sizes: bool = False) -> None:
    """Linear or logarithmic scale with plain numbers on it; of `sizes` in MiB with powers of two, each with its unit.

    A logarithmic axis has a tick at each power of ten: one of ratios at 1.
    """
    values = values[values > 0] if log else values[~np.isnan(values)]
    if log:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        steps = next(steps for least, steps in STEPS if values.max() >= least * values.min())
        axis.set_major_locator(
            LogLocator(32 if steps == (1,) else 2, numticks=12) if sizes else LogLocator(subs=steps, numticks=12)
        )
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(6, integer=bool((values % 1 == 0).all() and np.ptp(values) > 0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: size(value) if sizes else number(value)))


def size(mib: float) -> str:
    """MiB in the unit that suits them: "4 B", "15.2 KiB", "214 MiB"."""
    units = (("GiB", 2**-10), ("MiB", 1), ("KiB", 2**10), ("B", 2**20))
    unit, factor = next((unit, factor) for unit, factor in units if mib * factor >= 1 or unit == "B")
    return f"{number(mib * factor)} {unit}"


def wrapped(text: Any) -> str:
    """`text` in lines short enough for the label of a bar; its own line breaks stay."""
    return "\n".join(textwrap.fill(line, 34) for line in str(text).split("\n"))


def categories(ax: Axes, labels: Iterable[Any], at: Sequence[float], bottom: float) -> None:
    """Labels down the y axis at their places, from 0 on top to `bottom`."""
    ax.set_yticks(at, [wrapped(text) for text in labels])
    ax.set_ylim(bottom, 0)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=GRID, lw=0.7)
    ax.set_axisbelow(True)


def note(ax: Axes, text: str, at: Any, right: float, **options: Any) -> None:
    """A small text `right` points from `at`, legible across lines."""
    look = {
        "va": "center",
        "fontsize": 8,
        "color": INK,
        "path_effects": [withStroke(linewidth=2.2, foreground=SURFACE)],
    }
    ax.annotate(text, at, (right, 0), textcoords="offset points", **{**look, **options})
