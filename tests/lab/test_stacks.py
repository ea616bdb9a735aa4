"""Stacked bars: parts are shares of their whole, what has no name in the bar has its look, nothing overlaps."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from gnnlab.errors import GnnlabError
from gnnlab.lab import stacks
from gnnlab.lab.plot_style import MAX_SERIES

REST = "between"
SHAPE = {"row": "unit", "part": "operator", "panel": "block", "rest": REST, "unit": "ms", "label": "time", "title": "T"}


def parts(many=0):
    """Two blocks on two units: A 6 of 10 ms on one, B 9 of 10 on the other, the rest between; and `many` small ones."""
    rounds = np.array([0.9, 1.0, 1.1])
    rows = []
    for block in ("3 SUM", "1-7"):
        for unit, shares in (("slow:CPU", {"A": 3.0, "B": 3.0, REST: 4.0}), ("fast:CPU", {"B": 0.9, REST: 0.1})):
            small = {f"operator {i}": 0.2 for i in range(many)}
            for operator, ms in {**shares, **small}.items():
                rows.append({"block": block, "unit": unit, "operator": operator, "samples": ms * rounds})
    rows.append({**rows[0], "samples": 3.0 * rounds})  # a second node of the same type
    return pd.DataFrame(rows)


def widths(ax):
    return [round(bar.get_width(), 6) for bar in ax.patches]


def test_parts_are_shares_of_their_whole_and_nodes_of_one_type_are_one_part():
    figure = stacks.stacked(parts(), **SHAPE)
    wholes, shares, *_ = figure.axes
    assert widths(wholes) == [13.0, 1.0]
    assert widths(shares) == [round(100 * ms / 13, 6) for ms in (3, 6, 4)] + [90.0, 10.0]  # B is largest over all bars
    assert [label.get_text() for label in wholes.get_yticklabels()] == ["slow:CPU", "fast:CPU"]
    assert shares.patches[2].get_hatch() == shares.patches[4].get_hatch() == "////"
    assert len({bar.get_facecolor() for bar in shares.patches}) == 3
    assert [container for container in wholes.containers if hasattr(container, "has_xerr")]


def test_beyond_the_looks_parts_share_one_and_are_named_where_there_is_room():
    figure = stacks.stacked(parts(many=12), **SHAPE)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == MAX_SERIES and names[-2:] == [stacks.OTHER, REST]
    assert sum(widths(figure.axes[1])[: 3 + 12]) == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "share", "named", "label"),
    [
        ("ScatterElementsUpdate", 60, True, "ScatterElementsUpdate 60 %"),
        ("Slice", 9, False, "Slice\n9 %"),
        ("ScatterElementsUpdate", 9, True, "9 %"),
        ("ScatterElementsUpdate", 9, False, ""),
        ("A", 2, True, ""),
    ],
)
def test_a_label_is_what_its_part_has_room_for(name, share, named, label):
    assert stacks._label(name, share, named) == label


@pytest.mark.parametrize("many", [0, 12])
def test_no_two_texts_overlap(many):
    figure = stacks.stacked(parts(many), **SHAPE)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for ax in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in ax.texts if text.get_text()]
        assert not any(a.padded(-1).overlaps(b.padded(-1)) for a, b in combinations(boxes, 2))


def test_nothing_to_draw_is_refused():
    with pytest.raises(GnnlabError, match="empty"):
        stacks.stacked(parts().iloc[:0], **SHAPE)
