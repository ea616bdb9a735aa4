"""The one style of the lab's figures: palette, origins, scales, labels, legend, and how a figure is written.

Matplotlib's own defaults and its seaborn theme, whatever the reader's matplotlibrc says. Colours are seaborn's
colour-blind palette, and each comes with a marker, a dash or a hatch of its own. Measured values are solid;
interpolated, extrapolated, simulated and predicted ones are hatched or hollow, and starred.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically

from .results import FigureRecord
from .table import Origin
from .text import digits, named, number, size

SURFACE, INK, MUTED = "#fcfcfc", "#1d2126", "#646b75"
WIDTH, DPI = 6.0, 240  # inches, narrow enough for letters that can be read on a phone; 1,440 dots
COLOURS = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#56b4e9", "#949494"]
MARKERS = "osD^vPXh"
GROUP_HATCHES = ("", "....", "xx", "--", "oo", "++", "||", "OO")  # beside the colour, one for each group
MAX_SERIES = len(COLOURS)
STAR = " ★"
HATCHES = dict(zip(Origin, (None, None, "///", "\\\\\\", "xxxx", "||"), strict=True))
GAP = 0.6  # between the bars of two labels, of which each is 1
WHISKERS = {"ecolor": INK, "elinewidth": 1.1, "capsize": 2.5}
_STYLE = {
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), SURFACE),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.grid"), False),
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "axes.labelsize": 9,
    "grid.color": "#e4e6ea",
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "gnnlab",  # the same figure gives the same file
}


@contextmanager
def _styled() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.style.use(["seaborn-v0_8-whitegrid", _STYLE])
        yield


styled = _styled()  # decorates what draws; matplotlib's own settings stay as they were


@styled
def save(
    fig: Figure, name: str, *, title: str, alt: str, folder: Path, key: bool = False, prefix: str = ""
) -> FigureRecord:
    """Write `figures/<prefix><name>.png` and `.svg` under `folder`, each whole or not at all.

    `alt` describes the figure to who does not see it, in at least 20 characters; `title` states the finding. Both are
    written into the SVG too. `key` marks the figure that the front page shows. Raises `GnnlabError`.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise GnnlabError(f"figure name {name!r}: use letters, digits, '_' and '-' only; it becomes a file name")
    if not title.strip() or len(alt.strip()) < 20:
        raise GnnlabError(f"figure {name!r} needs a title with its finding and an alternative text of 20 characters")
    paths, words = {}, {"Title": title, "Description": alt, "Date": None, "Creator": None}
    for kind, metadata in {"png": None, "svg": words}.items():
        paths[kind], content = f"figures/{prefix}{name}.{kind}", BytesIO()
        fig.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        write_atomically(Path(folder) / paths[kind], lambda file, c=content: file.write(c.getvalue()), mode="wb")
    return FigureRecord(name=name, title=title, alt=alt, key=key, **paths)


def new_figure(title: str, height: float = 3.6, **grid: Any) -> tuple[Figure, Any]:
    """A figure under its title, which states the finding, and its axes, or what `Figure.subplots` makes of `grid`."""
    fig = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    fig.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    fig.suptitle(title, x=0.012, ha="left", fontsize=10, fontweight="bold", wrap=True)
    return fig, fig.subplots(**grid)


# ---- series and origins ---------------------------------------------------------------------------------------------


def looks(names: Iterable[Any]) -> dict[Any, tuple[str, str, str]]:
    """Colour, marker and hatch of each name, in their order; the ninth has the first's colour, not its marker."""
    places = {name: (i % MAX_SERIES, (i + i // MAX_SERIES) % MAX_SERIES) for i, name in enumerate(dict.fromkeys(names))}
    return {name: (COLOURS[i], MARKERS[j], GROUP_HATCHES[j]) for name, (i, j) in places.items()}


def point(colour: str, marker: str, origin: Origin = Origin.MEASURED, size: float = 5) -> dict[str, Any]:
    """The look of a marker with whiskers: a hollow star where nothing was measured."""
    look = {"marker": marker, "ms": size, "mfc": colour}
    if origin != Origin.MEASURED:
        look = {"marker": "*", "ms": size + 5, "mfc": SURFACE}
    return {"color": colour, "mec": colour, "ls": "none", "capsize": 2, "elinewidth": 0.9, **look}


def bar(colour: str, origin: Origin, hatch: str = "") -> dict[str, Any]:
    """The look of a bar: hatched on a light ground where nothing was measured."""
    face, edge = (colour, SURFACE) if origin == Origin.MEASURED else (SURFACE, colour)
    return {"facecolor": face, "edgecolor": edge, "lw": 0.8, "hatch": HATCHES[origin] or hatch}


def prepared(frame: pd.DataFrame, hue: str | None = None) -> pd.DataFrame:
    """The frame with its series (column `hue`) as a legend says them and its origins, as `_series` and `_origin`.
    Counted is drawn as measured, and so is what names no origin."""
    given = [Origin(value) for value in frame.get("origin", [Origin.MEASURED] * len(frame))]
    drawn = [Origin.MEASURED if origin is Origin.COUNTED else origin for origin in given]
    return frame.assign(_series=[named(hue, value) for value in frame[hue]] if hue else "", _origin=drawn)


def label(series: Any, origin: Origin) -> str:
    """What a legend calls the values of a series that have one origin: "gat, extrapolated ★"."""
    return ", ".join(filter(None, [str(series), f"{Origin(origin).value}{STAR}" * (origin != Origin.MEASURED)]))


def legend(fig: Figure) -> None:
    """A legend below the figure, in as many columns as its longest label leaves room for."""
    handles, labels = fig.axes[0].get_legend_handles_labels()
    if labels:
        columns = 85 // (max(map(len, labels)) + 8)
        fig.legend(handles, labels, loc="outside lower left", ncols=max(1, min(len(labels), columns)))


# ---- values and axes ------------------------------------------------------------------------------------------------


def ends(frame: pd.DataFrame, column: str = "value") -> np.ndarray:
    """(2, rows) how far intervals reach below and above their values; NaN where there is none.

    The ends of `value` are in the columns low and high, those of another column in `<column>_low` and `<column>_high`.
    """
    low, high = ("low", "high") if column == "value" else (f"{column}_low", f"{column}_high")
    values, below, above = (frame.get(name, frame[column]).to_numpy(dtype=float) for name in (column, low, high))
    reach = np.maximum(0.0, [values - below, above - values])
    return np.where((reach > 0).any(axis=0), reach, np.nan)


def numbers(frame: pd.DataFrame, sizes: bool = False) -> list[str]:
    """What stands beside the value of each row: starred where it was not measured, `sizes` (MiB) in their own unit."""
    rows = frame.reindex(columns=["value", "low", "high"]).astype(object).where(lambda cell: cell.notna(), None)
    words = [size(value) if sizes else digits(value, low, high) for value, low, high in rows.to_numpy()]
    return [text + STAR * (o != Origin.MEASURED) for text, o in zip(words, frame["_origin"], strict=True)]


def is_wide(values: np.ndarray) -> bool:
    """Are all of them positive, and the largest more than 5 times the least?"""
    return bool(np.nanmin(values) > 0 and np.nanmax(values) > 5 * np.nanmin(values))


def scale(axis: Axis, log: bool, values: np.ndarray, sizes: bool = False) -> None:
    """Linear or logarithmic scale with plain numbers; of `sizes` in MiB with powers of two, each with its unit."""
    values = values[values > 0] if log else values[~np.isnan(values)]
    span = values.max() / values.min() if log else 0
    if log:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if span > 5:
        steps = {"base": 32 if span > 300 else 2} if sizes else {"subs": (1,) if span > 300 else (1, 2, 5)}
        axis.set_major_locator(LogLocator(**steps, numticks=12))
    else:
        whole = bool((values % 1 == 0).all() and np.ptp(values) > 0)
        axis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: size(value) if sizes else number(value)))


def categories(ax: Axes, labels: Iterable[str], at: Sequence[float], last: float) -> None:
    """Labels down the y axis, on which rows are at 0 to `last`."""
    ax.set_yticks(at, labels)
    ax.set_ylim(last + (1 + GAP) / 2, -(1 + GAP) / 2)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")


def note(ax: Axes, text: str, at: Any, right: float, **options: Any) -> None:
    """A small text `right` points from `at`, legible across lines."""
    legible = [withStroke(linewidth=2.2, foreground=SURFACE)]
    look = {"va": "center", "fontsize": 8, "color": INK, "path_effects": legible, **options}
    ax.annotate(text, at, (right, 0), textcoords="offset points", **look)
