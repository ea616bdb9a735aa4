"""What a Study draws, shows and says is of its rows, and only of those that were selected."""

import pytest
from table_rows import TORCH

from gnnlab.errors import GnnlabError
from gnnlab.lab.study import Study
from gnnlab.lab.table import Table, row

FIELDS = TORCH | {"unit": "ms", "better": "lower", "statistic": "median", "interval": "95 % confidence", "n": 9}


class Page:
    """In place of a session: figures and sentences go into lists."""

    def __init__(self, table):
        self.table, self.figures, self.sentences = table, {}, []

    def figure(self, fig, name, *, alt, key=False):
        self.figures[name] = (fig, alt)

    def say(self, *sentences):
        self.sentences += sentences


def study(*rows):
    """A study named "cells" of rows given by their fields."""
    table = Table()
    for given in rows:
        value = given.get("value")
        ends = {} if value is None else {"low": value * 0.9, "high": value * 1.1}
        table.put(row(study="cells", **{"origin": "measured", **FIELDS, **ends, **given}))
    return Study("cells", table.select("cells"), Page(table))


def cells():
    """Two stages at two sizes on two units; one simulated, one without a number."""
    rows = []
    for unit, factor in (("torch", 1.0), ("npu", 0.5)):
        for stage, time in (("GATHER", 0.01), ("UPDATE", 5.0)):
            for size in ("10x20", "100x200"):
                keys = {"stage": stage, "size": size}
                rows.append({"variant": unit, "keys": keys, "value": time * factor * (10 if size[2] == "0" else 1)})
    rows[-1] |= {"origin": "simulated"}
    rows[-2] = {"variant": "npu", "keys": rows[-2]["keys"], "status": "failed", "reason": "no such kernel"}
    return study(*rows)


def drawn(measured, name):
    return measured._lab.figures[name]


def test_a_heat_map_has_a_panel_for_each_variant_and_compares_within_a_row():
    measured = cells()
    measured.heat(row="stage", column="size")
    fig, alt = drawn(measured, "cells-heat")
    torch, npu, bar = fig.axes
    assert [ax.get_title(loc="left") for ax in (torch, npu)] == ["torch", "npu ★"]
    assert [text.get_text() for text in npu.texts] == ["0.0050", "0.050", "25★"]
    shades = torch.collections[0].get_array()
    assert shades[0, 0] == pytest.approx(2) and shades[1, 0] == pytest.approx(1)  # of the least measured of each row
    shades = npu.collections[0].get_array()
    assert shades.mask.tolist() == [[False, False], [True, False]] and shades[1, 1] < 1  # missing; simulated: no colour
    assert fig.get_supxlabel().startswith("time (ms); ") and bar.get_xlabel() == "times the least measured of the row"
    assert "stage" in alt and "size" in alt and fig.get_suptitle() == "Cells, lowest in 2 cases: npu 2"


def test_marks_show_the_worst_of_a_field_without_the_control_and_list_each_reason_once():
    measured = cells()
    measured.marks(row="variant", column="stage")
    fig, alt = drawn(measured, "cells-marks")
    assert "fails" in [text.get_text() for text in fig.axes[0].texts]
    assert "3 ok, 1 failed" in fig.get_suptitle() and "3 ok, 1 failed" in alt
    assert measured._lab.sentences == ["- failed: no such kernel (npu × UPDATE)"]
    lost = {"status": "unavailable", "reason": "no NPU"}
    rows = [{"variant": f, "keys": {"stage": s}, **lost} for f in ("npu", "A/A", "gpu") for s in "abc"]
    measured = study(*rows[:-1], {"variant": "gpu", "keys": {"stage": "c"}, "value": 1.0})
    measured.marks(row="variant", column="stage")
    assert measured._lab.sentences == ["- unavailable: no NPU (npu × a, npu × b and 3 more)"]
    assert [text.get_text() for text in drawn(measured, "cells-marks")[0].axes[0].texts] == ["not here"] * 5 + ["✓"]


def test_lines_need_numbers_and_a_key_that_is_there():
    with pytest.raises(GnnlabError, match=r"size is no number \('10x20'\)"):
        cells().plot("value", x="size")
    with pytest.raises(GnnlabError, match="no key or field 'gib'; its keys: size, stage"):
        cells().plot("value", x="gib")


def test_a_figure_has_one_unit_and_a_table_each_number_its_own():
    units = [(variant, unit) for variant in "ab" for unit in ("ms", "B")]
    measured = study(
        *({"variant": variant, "keys": {"of": unit}, "value": 1.0, "unit": unit} for variant, unit in units)
    )
    with pytest.raises(GnnlabError, match="cells is in ms and B: one figure has one unit"):
        measured.plot("value")
    assert measured.finding() == "Cells: 4 numbers in ms and B"
    assert [text.rsplit(" ", 1)[1] for text in measured.tabulated()["median"]] == ["ms", "B"] * 2
    measured.only(unit="B").plot("value")
    assert drawn(measured, "cells-B")[0].axes[0].get_xlabel() == "cells (B)"


def test_a_table_has_one_column_of_values_and_says_at_its_end_why_there_is_none():
    frame = cells().tabulated()
    assert list(frame.columns) == ["size", "variant", "median (ms)", "n", "origin", "why"]
    failed = frame[frame["why"] != ""]
    assert failed[["variant", "median (ms)", "n", "why"]].to_numpy().tolist() == [
        ["npu", "failed", "0", "no such kernel"]
    ]


def test_only_keeps_rows_by_key_and_field_and_says_so():
    measured = cells()
    part = measured.only(stage="UPDATE").only(variant=["torch"])
    assert [row.value for row in part.rows] == [5.0, 50.0] and len(part.frame) == 2
    assert part.finding() == "Cells, stage UPDATE, variant torch: up to 50 ms (100x200)"
    part.plot("value")
    assert list(measured._lab.figures) == ["cells-UPDATE-torch"]
    assert not measured.only(stage="nothing").rows
    with pytest.raises(GnnlabError, match="cells has no key or field 'stge'; its keys: size, stage"):
        measured.only(stge="UPDATE")


def test_nothing_measured_is_said_and_not_drawn():
    measured = study({"variant": "npu", "status": "unavailable", "reason": "no NPU"})
    measured.plot()
    measured.heat(row="variant", column="device")
    measured.only(variant="cpu").marks(row="variant", column="device")
    sentences = ["Cells: nothing was measured."] * 2 + ["Cells, variant cpu: nothing was measured."]
    assert measured._lab.sentences == sentences and not measured._lab.figures
    assert "no NPU" in measured.tabulated().to_string()
    assert study().finding() == "Cells: nothing was measured" and len(study().tabulated()) == 1


def raced(variant, ratio, *, size="10x20", baseline="slow", half=0.02, **fields):
    """A row of a race at a size, `ratio` times as fast as its baseline."""
    ends = {"ratio": ratio, "ratio_low": ratio - half, "ratio_high": ratio + half}
    return {"variant": variant, "keys": {"size": size}, "value": 1.0 / ratio, "baseline": baseline, **ends, **fields}


FAST = raced("fast", 2.0)


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        ([raced("not so", 9.0, status="unavailable", reason="trained too little")], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("relaxed", 3.0, parity_error=2e-3)], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("cached", 9.0, notes=["noisy", "every state is known"])], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("A/A", 9.0)], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("slower", 0.5), raced("pool", 3.0, baseline="new connections")], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("pool", 3.0, baseline="a"), raced("b", 0.5, baseline="a")], "pool is 3.00× (2.98 to 3.02×)"),
        (
            [raced("fast", 8.0, size="b"), raced("only at a", 9.0)],
            "fast is 4.00× (3.98 to 4.02×) as fast as slow, geometric mean of 2 cases",
        ),
    ],
)
def test_a_title_names_the_fastest_that_computes_the_same_everywhere(rows, finding):
    assert study(FAST, *rows).finding().startswith(f"Cells: {finding}")


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        ([raced("fast", 1.01), raced("A/A", 1.0)], "nothing that computes the same is measurably faster than slow"),
        ([raced("lean", 2.0, unit="MiB")], "lean is 2.00× (1.98 to 2.02×) as small as slow"),
        ([{"variant": "mm", "value": 0.5, "unit": "share"}], "50 % (mm)"),
        (
            [{"variant": variant, "value": of, "unit": "share"} for variant, of in (("mm", 0.5), ("add", 0.1))],
            "up to 50 % (mm)",
        ),
    ],
)
def test_a_title_says_what_there_is_to_say_without_a_faster_variant(rows, finding):
    assert study(*rows).finding() == f"Cells: {finding}"


def test_title_list_table_and_bar_show_one_number_with_the_same_digits():
    measured = study(raced("fast", 1.5492, half=0.2), raced("A/A", 1.0, baseline="ours"))
    measured.plot()
    fig, _ = drawn(measured, "cells")
    (bar,) = (note.get_text() for note in fig.axes[0].texts)
    of_fast, control = measured._lab.sentences[0].split("\n")
    assert bar == "1.55" and "fast is 1.55× (1.35 to 1.75×)" in fig.get_suptitle()
    assert of_fast.startswith("- fast: 1.55 (1.35 to 1.75) times as fast")
    assert control.startswith("- ours against itself (A/A): 1.00 ")
    assert measured.tabulated().loc[["fast"], "over baseline"].tolist() == ["1.55 (1.35 to 1.75)"]


def test_what_has_no_number_is_neither_drawn_nor_compared_and_its_reason_is_listed():
    measured = study(FAST, raced("not so", 9.0, status="unavailable", reason="trained too little"))
    measured.plot()
    fig, _ = drawn(measured, "cells")
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["fast"]
    assert [*measured.over_baseline()] == ["fast"]
    alone = study({"variant": "PyG", "value": 1.0}, {"variant": "mine", "status": "failed", "reason": "it raised"})
    alone.plot()
    said = ["Cells: there is nothing to compare.", "- mine: not timed in 1 of 1 cases: it raised"]
    assert not alone._lab.figures and alone._lab.sentences == said


def test_a_table_names_the_one_baseline():
    rows = [FAST, raced("fast", 2.0, size="100x200")]
    measured = study(*rows)
    assert "over slow" in measured.tabulated().columns
    assert "over baseline" in study(*rows, raced("A/A", 1.0, baseline="ours")).tabulated().columns


def test_a_sentence_of_several_rows_stands_below_the_table_once(capsys):
    long = "the interval is wider than two percent"
    rows = [{"variant": variant, "value": 1.0, "notes": [long]} for variant in "abc"]
    measured = study(*rows, {"variant": "d", "value": 1.0, "notes": ["short"]})
    measured.table("notes")
    shown = capsys.readouterr().out
    assert measured._lab.sentences == [f"(1) {long}"] and long not in shown
    assert shown.count("(1)") == 3 and "short" in shown
