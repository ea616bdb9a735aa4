"""Heat maps and matrices of marks show every gap and every origin, and refuse what they cannot show."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from gnnlab.errors import GnnlabError
from gnnlab.lab import plots
from gnnlab.lab.plot_style import STAR
from gnnlab.lab.plots import GAP, marks

AXES = {
    "row": "stage",
    "column": "size",
    "panel": "unit",
    "label": "latency (ms)",
    "title": "A finding",
}


@pytest.fixture
def frame():
    rows = [
        {"stage": stage, "size": size, "unit": unit, "value": (1 + i) * (1 + j), "origin": origin}
        for unit, origin in (("a:CPU", "measured"), ("b:NPU", "simulated"))
        for i, stage in enumerate(("1", "2"))
        for j, size in enumerate(("10/10", "10/20", "20/20"))
    ]
    return pd.DataFrame(rows).astype({"value": float})


def panels(fig):
    return {ax.get_title(loc="left"): ax for ax in fig.axes if ax.get_title(loc="left")}


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_there_is_a_panel_for_each_unit_with_its_numbers_and_simulated_ones_are_starred_and_hatched(frame):
    found = panels(plots.heat(frame, **AXES))
    assert set(found) == {"a:CPU", f"b:NPU{STAR}"}
    assert texts(found["a:CPU"]) == ["1", "2", "3", "2", "4", "6"]
    hatched = {name: sum(isinstance(p, Rectangle) for p in ax.patches) for name, ax in found.items()}
    assert hatched == {"a:CPU": 0, f"b:NPU{STAR}": 6}


def test_a_missing_value_is_a_dash_and_has_no_colour(frame):
    frame.loc[1, "value"] = np.nan
    ax = panels(plots.heat(frame, **AXES))["a:CPU"]
    assert texts(ax)[1] == "–" and ax.collections[0].get_array().mask[0, 1]
    fig = plots.heat(frame.drop(index=1), **AXES)
    assert "–" in texts(panels(fig)["a:CPU"])
    assert any("no value" in text.get_text() for text in fig.legends[0].get_texts())


def test_many_columns_have_no_numbers_and_all_their_labels(frame):
    wide = pd.concat([frame.assign(size=[f"{n}/{s}" for s in frame["size"]]) for n in range(5)])
    ax = panels(plots.heat(wide, **AXES))["a:CPU"]
    assert texts(ax) == [] and len(ax.get_xticklabels()) == 15


def test_more_than_three_columns_leave_room_for_two_digits():
    rows = [{"stage": "1", "size": f"{i}/9", "unit": "a:CPU", "value": 0.12345 * (i + 1)} for i in range(5)]
    for count, shown in ((3, "0.123"), (5, "0.12")):
        figure = plots.heat(pd.DataFrame(rows[:count]), **AXES)
        assert shown in [text.get_text() for text in figure.axes[0].texts]


def test_one_value_and_one_panel_can_be_drawn(frame):
    fig = plots.heat(frame.iloc[:1], **AXES)
    fig.savefig(io.BytesIO(), format="svg")
    assert texts(panels(fig)["a:CPU"]) == ["1"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.assign(value=0.0), "logarithmic"),
        (lambda f: f.assign(value=np.nan), "logarithmic"),
        (lambda f: pd.concat([f, f]), "twice"),
        (lambda f: f.drop(columns="unit"), "unit"),
        (lambda f: f.iloc[:0], "empty"),
    ],
)
def test_what_cannot_be_shown_honestly_is_refused(frame, spoil, words):
    with pytest.raises(GnnlabError, match=words):
        plots.heat(spoil(frame), **AXES)


FRAME = pd.DataFrame(
    {
        "who": ["a", "a", "b", "b"],
        "where": ["1", "2", "1", "3"],
        "status": ["ok", "timeout", "failed", "ok"],
    }
)
OPTIONS = {"row": "who", "column": "where", "title": "a is late once"}


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts]


def test_bad_fields_stand_there_in_words_good_ones_as_marks_and_gaps_as_dashes():
    fig = marks(FRAME, **OPTIONS)
    assert sorted(words(fig)) == sorted(["time-out", "fails", GAP, GAP])
    assert len(fig.axes[0].lines) == 2
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["ok", "failed", "timeout", "no row"]
    assert fig._repr_png_()


def test_a_status_that_does_not_occur_is_not_in_the_legend():
    fig = marks(FRAME[FRAME["status"] == "ok"], **OPTIONS)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["ok", "no row"]


def test_a_field_that_occurs_twice_or_an_empty_table_is_refused():
    with pytest.raises(GnnlabError, match="occurs twice"):
        marks(pd.concat([FRAME, FRAME.iloc[:1]]), **OPTIONS)
    with pytest.raises(GnnlabError, match="empty"):
        marks(FRAME.iloc[:0], **OPTIONS)
