"""The one style of the lab's figures, and how a figure is kept: palette, origins, legend, PNG at 2x and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from gnnlab.safe_files import write_atomically

from .results import FigureRecord
from .table import Origin

SURFACE, INK, MUTED = "#fcfcfc", "#1d2126", "#646b75"
CLAIMED, GRID = "#c9ced6", "#e4e6ea"
WIDTH, HEIGHT = 7.2, 4.0  # inches
DPI = 200  # twice the 100 at which the figure is read
MAX_SERIES = 8
COLOURS = [seaborn.color_palette("colorblind").as_hex()[i] for i in (0, 1, 2, 3, 4, 5, 9, 7)]
MARKERS = "osD^vPXh"
_GROUP_HATCHES = ("", "....", "xx", "--", "oo", "++", "||", "OO")  # beside the colour, one for each group
HATCHES = {
    Origin.INTERPOLATED: "///",
    Origin.EXTRAPOLATED: "\\\\\\",
    Origin.SIMULATED: "xxxx",
    Origin.PREDICTED: "||",
}
STAR = " ★"
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


class PlotError(ValueError):
    """A figure that cannot be drawn honestly from what was given. The message is one line for the caller."""


class Figure(MatplotlibFigure):
    """A matplotlib figure that a notebook shows as PNG at twice its size, whatever the kernel's backend is."""

    def _repr_png_(self) -> bytes:
        return _png(self)


def save(fig: MatplotlibFigure, name: str, *, title: str, alt: str, folder: Path, key: bool = False) -> FigureRecord:
    """Write `figures/<name>.png` (2x) and `.svg` under `folder`, each whole or not at all.

    `alt` describes the figure to who does not see it, in at least 20 characters; `title` states the finding. Both are
    written into the SVG too. `key` marks the figure that the front page shows. Raises `PlotError`, `FileError`.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PlotError(f"figure name {name!r}: use letters, digits, '_' and '-' only; it becomes a file name")
    if not title.strip():
        raise PlotError(f"figure {name!r} has no title; state its finding in one sentence")
    if len(alt.strip()) < 20:
        raise PlotError(f"figure {name!r}: alternative text {alt!r} is too short; describe it in 20 characters or more")
    png, svg = f"figures/{name}.png", f"figures/{name}.svg"
    data, markup = _png(fig), _svg(fig, title, alt)
    write_atomically(Path(folder) / png, lambda file: file.write(data), mode="wb")
    write_atomically(Path(folder) / svg, lambda file: file.write(markup))
    return FigureRecord(name=name, title=title, alt=alt, png=png, svg=svg, key=key)


def _png(fig: MatplotlibFigure) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        fig.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _svg(fig: MatplotlibFigure, title: str, alt: str) -> str:
    """The figure as SVG with `<title>` and `<desc>`, so that a screen reader speaks of it as one picture."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    spoken = f'<title id="title">{escape(title)}</title>\n <desc id="desc">{escape(alt)}</desc>'
    return re.sub(
        r"<svg ([^>]*)>",
        lambda opening: f'<svg role="img" aria-labelledby="title desc" {opening[1]}>\n {spoken}',
        buffer.getvalue(),
        count=1,
    )


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Run a plot function under the lab's style and leave matplotlib's own settings as they were."""

    @wraps(draw)
    def styled(*args: Any, **options: Any) -> Figure:
        title = options.get("title")
        if not isinstance(title, str) or not title.strip():
            raise PlotError(f"{draw.__name__} needs a title that states the finding, got {title!r}")
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **options)

    return styled


def new_figure(title: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    fig = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    fig.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    words = fig.suptitle("", x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    words.set_text(_wrapped(title, words, 0.976 * fig.bbox.width))
    return fig, fig.subplots()


def _wrapped(text: str, artist: Text, width: float) -> str:
    """`text` broken between words into lines that are at most `width` pixels wide in the font of `artist`."""
    renderer, font = artist.figure.canvas.get_renderer(), artist.get_fontproperties()
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and renderer.get_text_width_height_descent(longer, font, False)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def legend(fig: Figure, handles: list[Any]) -> None:
    if handles:
        longest = max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), int(100 / (longest + 6))))
        fig.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.2, borderaxespad=0.4)


def looks(names: Sequence[Any]) -> dict[Any, tuple[str, str, str]]:
    """Colour, marker and hatch of each series, in the order given."""
    if len(names) > MAX_SERIES:
        raise PlotError(f"{len(names)} series in one figure cannot be told apart; give at most {MAX_SERIES}")
    return dict(zip(names, zip(COLOURS, MARKERS, _GROUP_HATCHES, strict=False), strict=False))


def origins(frame: pd.DataFrame, origin: str | None) -> list[Origin]:
    """The origin of each row; every row is measured when no column says otherwise. Counted is drawn as that."""
    if origin is None:
        return [Origin.MEASURED] * len(frame)
    try:
        found = [Origin(value) for value in frame[origin]]
        return [Origin.MEASURED if value is Origin.COUNTED else value for value in found]
    except ValueError as error:
        raise PlotError(f"column {origin!r}: {error}; allowed: {', '.join(Origin)}") from None


def origin_handles(origins: Iterable[Origin], *, line: bool = False) -> list[Any]:
    """Legend entries for the origins that occur, none when everything was measured."""
    found = [o for o in Origin if o in set(origins)]
    if found in ([], [Origin.MEASURED]):
        return []
    style = {"color": "none", "marker": "*", "markersize": 9, "markeredgecolor": INK, "markerfacecolor": SURFACE}
    measured = {"color": "none", "marker": "o", "markersize": 5, "markeredgecolor": INK, "markerfacecolor": INK}
    if line:
        return [Line2D([], [], label=o.value, **(measured if o is Origin.MEASURED else style)) for o in found]
    fill = {"edgecolor": INK, "linewidth": 0.8}
    return [
        Patch(label=o.value, facecolor=INK, **fill)
        if o is Origin.MEASURED
        else Patch(label=o.value + STAR, facecolor=SURFACE, hatch=HATCHES[o], **fill)
        for o in found
    ]
