"""A matrix of marks: what became of each pair of a row and a column, told by shape, colour and legend."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.lines import Line2D

from . import plot_axes as axes_of
from .plot_style import COLOURS, GRID, INK, MARKERS, MUTED, Figure, PlotError, legend, new_figure, styled

GAP = "–"
_GOOD, _BAD = (COLOURS[0], COLOURS[2], COLOURS[5]), (COLOURS[3], COLOURS[1])
_ROW, _HEAD = 0.32, 1.9  # inches


@styled
def marks(
    frame: pd.DataFrame, *, row: str, column: str, status: str, title: str, bad: Mapping[str, str], gap: str
) -> Figure:
    """One mark for each `row` and `column`, its shape and colour by the column `status`; a dash where there is no row.

    Statuses in `bad`, the worst first and two at most, have the word that they map to in their field. `gap`: what a
    dash means, for the legend. Raises `PlotError`.
    """
    axes_of.check(frame, [row, column, status])
    if frame.duplicated([row, column]).any():
        raise PlotError(f"a field of {row} and {column} occurs twice; one row for each")
    rows, columns = (list(dict.fromkeys(frame[name])) for name in (row, column))
    good = [name for name in dict.fromkeys(frame[status]) if name not in bad]
    looks = dict(zip(good, zip(_GOOD, MARKERS, strict=False), strict=False))
    looks |= {name: (colour, "s") for name, colour in zip(bad, _BAD, strict=False) if (frame[status] == name).any()}
    fig, ax = new_figure(title, _HEAD + _ROW * len(rows))
    taken = set(zip(frame[row], frame[column], strict=True))
    for _, field in frame.iterrows():
        place = (columns.index(field[column]), rows.index(field[row]))
        colour, marker = looks[field[status]]
        if word := bad.get(field[status]):
            box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": INK, "linewidth": 0.8}
            ax.text(*place, word, ha="center", va="center", fontsize=7.5, fontweight="bold", color=INK, bbox=box)
        else:
            ax.plot(*place, marker=marker, ms=6, color=colour)
    for y, name in enumerate(rows):
        for x, other in enumerate(columns):
            if (name, other) not in taken:
                ax.text(x, y, GAP, ha="center", va="center", color=MUTED)
    axes_of.categories(ax, rows)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=GRID, lw=0.7)
    ax.tick_params(length=0)
    handles = [
        Line2D([], [], label=name, color="none", marker=marker, ms=7, mfc=colour, mec=colour)
        for name, (colour, marker) in looks.items()
    ]
    legend(fig, [*handles, Line2D([], [], label=gap, color="none", marker="_", ms=7, mec=MUTED)])
    return fig
