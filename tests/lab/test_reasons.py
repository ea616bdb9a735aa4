"""Reasons become one line where they say the same of several cells."""

from gnnlab.lab.wording import grouped_reasons


def lines(cells, columns=3):
    return grouped_reasons(cells, "stage", columns, 2)


def test_reasons_that_differ_in_the_name_of_the_stage_are_one_line():
    cells = [("fast:CPU", stage, f"{stage[2:]} has no sum in it") for stage in ("1 GATHER", "2 MESSAGE")]
    assert lines(cells) == ["this stage has no sum in it (fast:CPU × 1 GATHER, 2 MESSAGE)"]


def test_another_name_within_a_word_is_left_alone():
    assert lines([("a", "1 SUM", "no SUMMARY of SUM")]) == ["no SUMMARY of this stage (a × 1 SUM)"]


def test_what_differs_otherwise_stays_apart_and_rows_with_the_same_columns_together():
    cells = [(unit, stage, "no GPU") for unit in ("x", "y") for stage in ("1", "2", "3")] + [("z", "1", "no NPU")]
    assert lines(cells) == ["no GPU (x, y × every stage)", "no NPU (z × 1)"]
