"""Stacked bars: what wholes consist of, in shares, beside how large they are.

    fig = stacks.stacked(parts, row="form", part="operator", panel="stage", rest="between operators", unit="ms", ...)

`parts` is a tidy frame with the column `samples`, (n,) of each part, the i-th of all parts of one whole of one round;
they add up to the whole. Notebooks draw through `Study.stack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gnnlab.profiling import estimates

from . import plot_style as style
from .plot_style import GRID, INK, MAX_SERIES, MUTED, SURFACE, styled
from .table import number

OTHER = "others, named where there is room"
_FULL = 74  # characters that a bar of 100 % has room for


@styled
def stacked(
    parts: pd.DataFrame, *, row: str, part: str, panel: str, rest: str, unit: str, label: str, title: str
) -> Figure:
    """For each `panel` a bar for each `row`: on the left how large the whole is (`label`, `unit`), with its interval;
    on the right the share of each `part`, summed over rows of the same part.

    The parts that are largest over all bars have colours, `rest` is hatched in grey and last. Raises `GnnlabError`.
    """
    style.check(parts, "samples", row, part, panel)
    summed = {
        (at, whole): {name: np.sum(list(same["samples"]), axis=0) for name, same in of.groupby(part, sort=False)}
        for (at, whole), of in parts.groupby([panel, row], sort=False)
    }
    shares = pd.DataFrame({key: {k: v.mean() for k, v in of.items()} for key, of in summed.items()}).fillna(0.0)
    shares = 100 * shares / shares.sum()  # (parts, bars) %
    look_of = _looks(shares, rest)
    panels = {at: [whole for place, whole in summed if place == at] for at, _ in summed}
    heights = [len(rows) + 0.9 for rows in panels.values()]
    shape = {"nrows": len(panels), "ncols": 2, "squeeze": False, "sharey": "row"}
    ratios = {"height_ratios": heights, "width_ratios": (1, 2.9)}
    fig, grid = style.new_figure(title, 1.6 + 0.34 * sum(heights), **shape, **ratios)
    for (left, right), (at, rows) in zip(grid, panels.items(), strict=True):
        _wholes(left, [np.sum(list(summed[at, whole].values()), axis=0) for whole in rows])
        for place, whole in enumerate(rows):
            _bar(right, place, shares[at, whole], look_of, rest)
        style.categories(left, rows)
        left.set_title(str(at), fontsize=8.5, loc="left", color=INK)
        right.spines["left"].set_visible(False)
        right.tick_params(axis="y", length=0)
        right.set_xlim(0, 100)
    grid[-1][0].set_xlabel(f"{label} ({unit})")
    grid[-1][1].set_xlabel("share of it (%)")
    handles = [Patch(label=name, **look) for name, look in look_of.items() if name in {*shares.index, OTHER}]
    style.legend(fig, handles)
    return fig


def _looks(shares: pd.DataFrame, rest: str) -> dict[str, dict[str, object]]:
    """The look of each part that has its own, in the order of the bars; all else looks as `OTHER`."""
    order = shares.drop(index=rest, errors="ignore").sum(axis=1).sort_values(ascending=False, kind="stable")
    named = list(order.index[: MAX_SERIES - 2])
    looks = {
        name: {"facecolor": colour, "hatch": hatch, "edgecolor": SURFACE, "linewidth": 0.8}
        for name, (colour, _, hatch) in style.looks(named).items()
    }
    if len(order) > len(named):
        looks[OTHER] = {"facecolor": GRID, "edgecolor": MUTED, "linewidth": 0.5}
    return {**looks, rest: {"facecolor": SURFACE, "hatch": "////", "edgecolor": MUTED, "linewidth": 0.5}}


def _wholes(ax: Axes, totals: Sequence[np.ndarray]) -> None:
    """A bar for the mean of each, with its interval and its number."""
    for place, samples in enumerate(totals):
        found = estimates.summary(samples, "mean")
        ax.barh(place, found.value, 0.62, color=MUTED, lw=0)
        low, high = (found.value, found.value) if found.low is None else (max(found.low, 0.0), found.high)
        reach = [[found.value - low], [high - found.value]]
        ax.errorbar(found.value, place, xerr=reach, color=INK, elinewidth=1.1, capsize=2.5, fmt="none")
        style.note(ax, number(float(f"{found.value:.3g}")), (high, place), (4, 0))
    ax.margins(x=0.42)
    ax.set_xlim(left=0)
    style.scale(ax.xaxis, False, np.array([0.0, max(t.mean() for t in totals)]))
    ax.locator_params(axis="x", nbins=3)


def _bar(ax: Axes, place: int, shares: pd.Series, look_of: Mapping[str, dict], rest: str) -> None:
    """The parts of one whole, in the order of the looks, those without one of their own before the last."""
    own = [name for name in look_of if name in shares and name != rest]
    others = shares.drop(index=[*own, rest], errors="ignore").sort_values(ascending=False, kind="stable")
    left = 0.0
    for name in [*own, *others.index, *([rest] if rest in shares else [])]:
        if (share := float(shares[name])) <= 0:
            continue
        ax.barh(place, share, 0.8, left=left, **look_of.get(name, look_of.get(OTHER, {})))
        if text := _label(name, share, named=name in look_of):
            box = {"boxstyle": "round,pad=0.1", "facecolor": SURFACE, "edgecolor": "none", "alpha": 0.85}
            middle = {"ha": "center", "va": "center", "fontsize": 6, "bbox": box, "color": INK, "linespacing": 1.05}
            ax.text(left + share / 2, place, text, **middle)
        left += share


def _label(name: str, share: float, named: bool) -> str:
    """What a part says of itself where it has room; one that is `named` by its look may give its share alone."""
    percent = f"{share:.0f} %"
    tries = [f"{name} {percent}", f"{name}\n{percent}", *([percent] if named else [])]
    room = _FULL * share / 100
    return next((text for text in tries if max(map(len, text.split("\n"))) <= room), "")
