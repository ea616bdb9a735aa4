"""Heat maps show every gap and every origin, and refuse what they cannot show honestly."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from gnnlab.lab import plot_heat
from gnnlab.lab.plot_style import STAR, PlotError

AXES = {
    "row": "stage",
    "column": "size",
    "panel": "unit",
    "value": "ms",
    "value_label": "latency (ms)",
    "title": "A finding",
}


@pytest.fixture
def frame():
    rows = [
        {"stage": stage, "size": size, "unit": unit, "ms": (1 + i) * (1 + j), "origin": origin}
        for unit, origin in (("a:CPU", "measured"), ("b:NPU", "simulated"))
        for i, stage in enumerate(("1", "2"))
        for j, size in enumerate(("10/10", "10/20", "20/20"))
    ]
    return pd.DataFrame(rows).astype({"ms": float})


def panels(fig):
    return {ax.get_title(loc="left"): ax for ax in fig.axes if ax.get_title(loc="left")}


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_there_is_a_panel_for_each_unit_with_its_numbers_and_simulated_ones_are_starred_and_hatched(frame):
    found = panels(plot_heat.heat(frame, **AXES, origin="origin"))
    assert set(found) == {"a:CPU", f"b:NPU{STAR}"}
    assert texts(found["a:CPU"]) == ["1", "2", "3", "2", "4", "6"]
    hatched = {name: sum(isinstance(p, Rectangle) for p in ax.patches) for name, ax in found.items()}
    assert hatched == {"a:CPU": 0, f"b:NPU{STAR}": 6}


def test_a_missing_value_is_a_dash_and_has_no_colour(frame):
    frame.loc[1, "ms"] = np.nan
    ax = panels(plot_heat.heat(frame, **AXES))["a:CPU"]
    assert texts(ax)[1] == "–" and ax.images[0].get_array().mask[0, 1]
    fig = plot_heat.heat(frame.drop(index=1), **AXES)
    assert "–" in texts(panels(fig)["a:CPU"])
    assert any("no value" in text.get_text() for text in fig.legends[0].get_texts())


def test_many_columns_have_no_numbers_and_all_their_labels(frame):
    wide = pd.concat([frame.assign(size=[f"{n}/{s}" for s in frame["size"]]) for n in range(5)])
    ax = panels(plot_heat.heat(wide, **AXES))["a:CPU"]
    assert texts(ax) == [] and len(ax.get_xticklabels()) == 15


def test_more_than_three_columns_leave_room_for_two_digits():
    rows = [{"stage": "1", "size": f"{i}/9", "unit": "a:CPU", "ms": 0.12345 * (i + 1)} for i in range(5)]
    for count, shown in ((3, "0.123"), (5, "0.12")):
        figure = plot_heat.heat(pd.DataFrame(rows[:count]), **AXES)
        assert shown in [text.get_text() for text in figure.axes[0].texts]


def test_one_value_and_one_panel_can_be_drawn(frame):
    fig = plot_heat.heat(frame.iloc[:1], **AXES)
    fig.savefig(io.BytesIO(), format="svg")
    assert texts(panels(fig)["a:CPU"]) == ["1"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.assign(ms=0.0), "logarithmic"),
        (lambda f: f.assign(ms=np.nan), "logarithmic"),
        (lambda f: pd.concat([f, f]), "twice"),
        (lambda f: f.drop(columns="unit"), "unit"),
        (lambda f: f.iloc[:0], "empty"),
    ],
)
def test_what_cannot_be_shown_honestly_is_refused(frame, spoil, words):
    with pytest.raises(PlotError, match=words):
        plot_heat.heat(spoil(frame), **AXES)
