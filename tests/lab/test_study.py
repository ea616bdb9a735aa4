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
            for size in ("10/20", "100/200"):
                keys = {"stage": stage, "size": size}
                rows.append({"form": unit, "keys": keys, "value": time * factor * (10 if size[2] == "0" else 1)})
    rows[-1] |= {"origin": "simulated"}
    rows[-2] = {"form": "npu", "keys": rows[-2]["keys"], "status": "failed", "reason": "no such kernel"}
    return study(*rows)


def drawn(measured, name):
    return measured._lab.figures[name]


def test_a_heat_map_has_a_panel_for_each_form_and_compares_within_a_row():
    measured = cells()
    measured.heat(row="stage", column="size")
    fig, alt = drawn(measured, "cells-heat")
    torch, npu, _ = fig.axes
    assert [ax.get_title(loc="left") for ax in (torch, npu)] == ["torch", "npu ★"]
    assert [text.get_text() for text in npu.texts] == ["0.0050", "0.050", "25★"]
    shades = torch.collections[0].get_array()
    assert shades[0, 0] == pytest.approx(2) and shades[1, 0] == pytest.approx(1)  # of the least measured of each row
    assert npu.collections[0].get_array().mask.tolist() == [[False, False], [True, True]]  # simulated, or missing
    assert fig.get_supxlabel().startswith("time (ms); ")
    assert fig.axes[-1].get_xlabel() == "times the least measured of the row"
    assert "stage" in alt and "size" in alt
    assert fig.get_suptitle().startswith("Cells: from 0.0050 ms")
    assert [label.get_text() for label in torch.get_xticklabels()] == ["10/20", "100/200"]


def test_marks_show_the_worst_of_a_field_and_list_the_reasons():
    measured = cells()
    measured.marks(row="form", column="stage")
    fig, alt = drawn(measured, "cells-marks")
    assert "fails" in [text.get_text() for text in fig.axes[0].texts]
    assert "3 ok, 1 failed" in fig.get_suptitle() and "3 ok, 1 failed" in alt
    assert measured._lab.sentences == ["- failed: no such kernel (npu × UPDATE)"]


def test_a_scatter_of_two_forms_pairs_them_by_cell_and_draws_the_line_of_equality():
    measured = cells()
    measured.scatter(x="torch", y="npu")
    fig, alt = drawn(measured, "cells-scatter")
    ax = fig.axes[0]
    drawn_points = sum(len(line.get_xdata()) for line in ax.lines if line.get_marker() in ("o", "*"))
    assert drawn_points == 3  # one of the four cells has no number
    assert ax.get_xlabel() == "torch (ms)" and "equality" in alt
    assert "both are equal" in [text.get_text() for text in fig.legends[0].texts]
    apart = study(*({"form": form, "keys": {"size": form}, "value": 1.0} for form in "ab"))
    apart.scatter(x="a", y="b")
    assert apart._lab.sentences == ["Cells: a and b have no case in common."] and not apart._lab.figures


def test_a_scatter_of_a_key_and_a_field_has_a_look_for_each_form():
    measured = study(*({"form": form, "keys": {"mib": 2.0**n}, "value": n + 1.0} for form in "ab" for n in range(4)))
    measured.scatter(x="mib", y="value")
    fig, _ = drawn(measured, "cells-scatter")
    assert [text.get_text() for text in fig.legends[0].texts] == ["a", "b"]
    with pytest.raises(GnnlabError, match="no key or field 'gib'; its keys: mib"):
        measured.scatter(x="gib", y="value")


def test_an_axis_of_words_is_refused():
    with pytest.raises(GnnlabError, match=r"size is no number \('10/20'\)"):
        cells().plot("value", x="size")


def test_a_figure_has_one_unit():
    units = [(form, unit) for form in "ab" for unit in ("ms", "B")]
    measured = study(*({"form": form, "keys": {"of": unit}, "value": 1.0, "unit": unit} for form, unit in units))
    for draw in (measured.plot, lambda _: measured.scatter(x="a", y="b")):
        with pytest.raises(GnnlabError, match="cells is in ms and B: one figure has one unit"):
            draw("value")
    assert measured.finding() == "Cells: 4 numbers in ms and B"
    measured.only(unit="B").plot("value")
    assert drawn(measured, "cells-B")[0].axes[0].get_xlabel() == "cells (B)"


def test_marks_leave_the_control_out_and_group_what_has_one_reason():
    lost = {"status": "unavailable", "reason": "no NPU"}
    rows = [{"form": f, "keys": {"stage": s}, **lost} for f in ("npu", "npu 2") for s in "abc"]
    rows += [{"form": "A/A", "keys": {"stage": s}, **lost} for s in "abc"]
    rows += [{"form": "gpu", "keys": {"stage": s}, **lost} for s in "ab"] + [
        {"form": "gpu", "keys": {"stage": "c"}, "value": 1.0}
    ]
    measured = study(*rows)
    measured.marks(row="form", column="stage")
    assert measured._lab.sentences == ["- unavailable: no NPU (npu × every stage; npu 2 × every stage; gpu × a, b)"]
    own = [{"form": "fast", "keys": {"stage": f"{n} {name}"}, "status": "failed", "reason": f"{name} sums nothing"}
           for n, name in enumerate(("GATHER", "ACTIVATE"))]  # fmt: skip
    named = study(*own)
    named.marks(row="form", column="stage")
    assert named._lab.sentences == ["- failed: this stage sums nothing (fast × every stage)"]
    fig, _ = drawn(measured, "cells-marks")
    assert [text.get_text() for text in fig.axes[0].texts] == ["not here"] * 8 + ["✓"]


def test_a_table_has_one_column_of_values_and_says_at_its_end_why_there_is_none():
    frame = cells().tabulated()
    assert list(frame.columns) == ["size", "form", "median (ms)", "n", "origin", "why"]
    failed = frame[frame["why"] != ""]
    assert failed[["form", "median (ms)", "n", "why"]].to_numpy().tolist() == [["npu", "failed", "0", "no such kernel"]]


def test_only_keeps_rows_by_key_and_field_and_says_so():
    measured = cells()
    part = measured.only(stage="UPDATE").only(form=["torch"])
    assert [row.value for row in part.rows] == [5.0, 50.0] and len(part.frame) == 2
    finding = "Cells, stage UPDATE, form torch: from 5.0 ms (10/20) to 50 ms (100/200)"
    assert part.finding() == finding
    part.plot("value")
    assert list(measured._lab.figures) == ["cells-UPDATE-torch"]
    assert not measured.only(stage="nothing").rows
    with pytest.raises(GnnlabError, match="cells has no key or field 'stge'; its keys: size, stage"):
        measured.only(stge="UPDATE")


def test_nothing_measured_is_said_and_not_drawn():
    measured = study({"form": "npu", "status": "unavailable", "reason": "no NPU"})
    measured.plot()
    measured.heat(row="form", column="device")
    measured.scatter(x="n", y="value")
    measured.only(form="cpu").marks(row="form", column="device")
    sentences = ["Cells: nothing was measured."] * 3 + ["Cells, form cpu: nothing was measured."]
    assert measured._lab.sentences == sentences and not measured._lab.figures
    assert "no NPU" in measured.tabulated().to_string()
    measured.marks(row="form", column="device")
    assert list(measured._lab.figures) == ["cells-marks"]
    assert study().finding() == "Cells: nothing was measured" and len(study().tabulated()) == 1


def test_numbers_of_several_units_stand_in_one_column_each_with_its_own():
    measured = study({"form": "load", "value": 2.0, "unit": "s"}, {"form": "stored", "value": 3.0, "unit": "KiB"})
    assert [text.rsplit(" ", 1)[1] for text in measured.tabulated()["median"]] == ["s", "KiB"]


def raced(form, ratio, *, size="10/20", baseline="slow", half=0.02, **fields):
    """A row of a race at a size, `ratio` times as fast as its baseline."""
    ends = {"ratio": ratio, "ratio_low": ratio - half, "ratio_high": ratio + half}
    return {"form": form, "keys": {"size": size}, "value": 1.0 / ratio, "baseline": baseline, **ends, **fields}


FAST = raced("fast", 2.0)


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        ([raced("not so", 9.0, status="unavailable", reason="trained too little")], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("relaxed", 3.0, parity_error=2e-3)], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("cached", 9.0, notes=["noisy", "every state is known"])], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("A/A", 9.0)], "fast is 2.00× (1.98 to 2.02×)"),
        ([raced("fast", 8.0, size="b"), raced("only at a", 9.0)], "fast is 4.00× (3.98 to 4.02×)"),
        ([raced("slower", 0.5), raced("pool", 3.0, baseline="new connections")], "fast is 2.00× (1.98 to 2.02×)"),
        (
            [raced("pool", 3.0, baseline="a"), raced("b", 0.5, baseline="a")],
            "pool is 3.00× (2.98 to 3.02×) as fast as a",
        ),
        ([raced("small", 3.0, half=0.5, unit="ms")], "small is 3.0× (2.5 to 3.5×) as fast as slow"),
    ],
)
def test_a_title_names_the_fastest_that_computes_the_same_everywhere(rows, finding):
    assert study(FAST, *rows).finding().startswith(f"Cells: {finding}")


def test_a_title_says_of_what_its_number_is_and_that_nothing_is_faster():
    two = study(FAST, raced("fast", 8.0, size="b"))
    assert two.finding() == "Cells: fast is 4.00× (3.98 to 4.02×) as fast as slow, geometric mean of 2 cases"
    slow = study(raced("fast", 1.01), raced("A/A", 1.0))
    assert slow.finding() == "Cells: nothing that computes the same is measurably faster than slow"
    assert study(raced("lean", 2.0, unit="MiB")).finding().endswith("as small as slow")
    assert study({"form": "mm", "value": 0.5, "unit": "share"}).finding() == "Cells: 50 % (mm)"
    shares = study(*({"form": form, "value": value, "unit": "share"} for form, value in (("mm", 0.5), ("add", 0.1))))
    assert shares.finding() == "Cells: up to 50 % (mm)"


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
    alone = study({"form": "PyG", "value": 1.0}, {"form": "mine", "status": "failed", "reason": "it raised"})
    alone.plot()
    assert not alone._lab.figures and alone._lab.sentences == [
        "Cells: there is nothing to compare.\n\n- mine: not timed in 1 of 1 cases: it raised"
    ]


def test_a_table_and_a_map_name_the_one_baseline():
    rows = [FAST, raced("fast", 2.0, size="100/200")]
    measured = study(*rows)
    assert "over slow" in measured.tabulated().columns
    measured.heat(row="form", column="size", panel="baseline")
    assert drawn(measured, "cells-heat")[0].axes[0].get_title(loc="left") == "over slow"
    assert "over baseline" in study(*rows, raced("A/A", 1.0, baseline="ours")).tabulated().columns


def test_a_sentence_of_several_rows_stands_below_the_table_once(capsys):
    long = "the interval is wider than two percent"
    rows = [{"form": form, "value": 1.0, "notes": [long]} for form in "abc"]
    measured = study(*rows, {"form": "d", "value": 1.0, "notes": ["short"]})
    measured.table("notes")
    shown = capsys.readouterr().out
    assert measured._lab.sentences == [f"(1) {long}"] and long not in shown
    assert shown.count("(1)") == 3 and "short" in shown
