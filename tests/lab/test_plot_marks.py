"""A matrix of marks shows every field and what is bad in words."""

import pandas as pd
import pytest

from gnnlab.lab.plot_marks import GAP, marks
from gnnlab.lab.plots import PlotError

FRAME = pd.DataFrame(
    {
        "who": ["a", "a", "b", "b"],
        "where": ["1", "2", "1", "3"],
        "status": ["right", "wrong", "failed", "right"],
    }
)
OPTIONS = {"row": "who", "column": "where", "status": "status", "title": "a is wrong once", "gap": "not offered"}
BAD = {"wrong": "wrong", "failed": "fails"}


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts]


def test_bad_fields_stand_there_in_words_good_ones_as_marks_and_gaps_as_dashes():
    fig = marks(FRAME, bad=BAD, **OPTIONS)
    assert sorted(words(fig)) == sorted(["wrong", "fails", GAP, GAP])
    assert len(fig.axes[0].lines) == 2
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["right", "wrong", "failed", "not offered"]
    assert fig._repr_png_()


def test_a_status_that_does_not_occur_is_not_in_the_legend():
    fig = marks(FRAME[FRAME["status"] == "right"], bad=BAD, **OPTIONS)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["right", "not offered"]


def test_a_field_that_occurs_twice_or_an_empty_table_is_refused():
    with pytest.raises(PlotError, match="occurs twice"):
        marks(pd.concat([FRAME, FRAME.iloc[:1]]), bad=BAD, **OPTIONS)
    with pytest.raises(PlotError, match="empty"):
        marks(FRAME.iloc[:0], bad=BAD, **OPTIONS)
