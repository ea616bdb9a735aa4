"""A table is numbered as documented, whichever file it is from; splitting loses and doubles no row; the best score is
that of the truth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal, refused

from gnnlab.workloads.tables import MISSING, FeatureTable, Target, load, read_columns, scores

SPECS = (Target("outcome", "classes", 3), Target("phenotypes", "labels", 2))


def numbered(rows: int, **changes) -> FeatureTable:
    """A table whose first field is the number of the row."""
    number = torch.arange(rows)
    parts = {
        "fields": torch.stack([number, number % 2], dim=1),
        "targets": {"outcome": number % 3, "phenotypes": torch.stack([number % 2, number % 5 == 0], dim=1).float()},
        "specs": SPECS,
        "cardinalities": (rows, 2),
        "field_names": ("row", "parity"),
    }
    return FeatureTable(**(parts | changes))


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_split_has_every_row_once_with_its_own_answers(rows, share, seed):
    table = numbered(rows)
    if not 0 < round(rows * share) < rows:
        with refused("cannot be split"):
            table.split(share, seed)
        return
    parts, again = table.split(share, seed), table.split(share, seed)
    assert all(torch.equal(one.fields, other.fields) for one, other in zip(parts, again, strict=True))
    assert len(parts[1]) == round(rows * share)
    assert sorted(torch.cat([part.fields[:, 0] for part in parts]).tolist()) == list(range(rows))
    for part in parts:
        number = part.fields[:, 0]
        assert torch.equal(part.targets["outcome"], number % 3)
        assert torch.equal(part.targets["phenotypes"][:, 0], (number % 2).float())
        assert part.cardinalities == table.cardinalities


def test_the_best_score_is_accuracy_for_classes_and_the_area_under_the_curve_for_labels():
    outcome = torch.tensor([[0.5, 0.3, 0.2]] * 5 + [[0.1, 0.1, 0.8]])  # right in rows 0, 3 and 5
    phenotypes = torch.tensor([[0.1, 0.9], [0.2, 0.1], [0.3, 0.2], [0.4, 0.3], [0.35, 0.4], [0.6, 0.8]])
    table = numbered(6, truth={"outcome": outcome, "phenotypes": phenotypes})
    assert table.best_score["outcome"] == pytest.approx(3 / 6)
    # odd rows score .2, .4, .6 against .1, .3, .35: 7 of 9 pairs are in order; rows 0 and 5 score .9, .8: all are
    assert table.best_score["phenotypes"] == pytest.approx((7 / 9 + 1) / 2)


def test_a_label_of_one_answer_does_not_count_and_without_any_other_there_is_no_score():
    truth = {"outcome": torch.eye(3)[[0, 1, 2, 0]], "phenotypes": torch.rand(4, 2)}
    only_first = numbered(4, truth=truth).rows(torch.tensor([1, 2, 3]))  # no multiple of 5 but 0
    assert set(only_first.best_score) == {"outcome", "phenotypes"} and only_first.best_score["outcome"] == 1
    assert set(only_first.rows(torch.tensor([0])).best_score) == {"outcome"}
    assert numbered(4).best_score is None
    with refused("outcome: outputs are nan"):
        scores({"outcome": torch.tensor([[0.1, torch.nan, 0.3]])}, {"outcome": torch.tensor([1])}, SPECS[:1])


# --- from files ------------------------------------------------------------------------------------------------------

FIELDS, TARGETS = ("drug", "gene"), ("outcome", "signs")
DRUGS, GENES = ["b", "a", "c", "a", "b", "b"], ["10", "9", "9", "10", "9", "10"]
ROWS = {"drug": DRUGS, "gene": GENES, "outcome": ["no", "yes"] * 3, "signs": ["rash;pain", "pain", " ; ", "rash"] * 2}
CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)


def write(path: Path, **changes) -> Path:
    """Six rows of two fields and two targets; `changes` replace columns."""
    rows = {name: values[:6] for name, values in (ROWS | changes).items()}
    pd.DataFrame(rows, dtype=object).to_csv(path, index=False)
    return path


def no_table(path: Path, content: str | bytes | None = None, **options) -> str:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    line = refusal(load, path, **({"fields": FIELDS, "targets": TARGETS} | options))
    assert line.startswith(str(path))
    return line


def test_categories_and_classes_are_numbered_in_ascending_order_from_one_and_from_zero(tmp_path):
    table = load(write(tmp_path / "a.csv"), fields=FIELDS, targets=TARGETS)
    assert table.fields[:, 0].tolist() == [2, 1, 3, 1, 2, 2] and table.fields[:, 1].tolist() == [2, 1, 1, 2, 1, 2]
    assert table.cardinalities == (4, 3) and table.field_names == FIELDS
    assert table.specs == (Target("outcome", "classes", 2), Target("signs", "labels", 2))
    assert table.targets["outcome"].tolist() == [0, 1, 0, 1, 0, 1]
    assert table.targets["signs"].tolist() == [[1, 1], [1, 0], [0, 0], [0, 1], [1, 1], [1, 0]]
    assert table.notes == ("target signs is read as 2 labels separated by ';'",)
    assert table.best_score is None and "drug (3 categories), gene (2 categories)" in str(table)


@settings(max_examples=30)
@given(st.lists(st.tuples(CELLS, CELLS, st.one_of(st.none(), st.integers(-9, 9))), min_size=1, max_size=8))
def test_csv_tsv_and_parquet_of_one_table_read_alike(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    frame = pd.DataFrame(rows, columns=["drug", "gene", "dose"]).astype({"drug": object, "gene": object})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_csv(folder / "a.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "a.parquet")
    read = [read_columns(folder / f"a.{kind}", ["dose", "drug", "gene"]) for kind in ("csv", "tsv", "parquet")]
    cells = [frame.astype(object).where(frame.notna(), None).to_numpy().tolist() for frame in read]
    assert cells[0] == cells[1] == cells[2]
    assert [row[1] for row in cells[0]] == [None if d.strip() in MISSING else d.strip() for d, _, _ in rows]


def test_byte_order_marks_quotes_and_line_ends_are_understood(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfdrug , gene,dose\r\n"a, b","c\nd",1\r\n"e ""f""",NA,\r\n')
    cells = read_columns(path, ["drug", "gene", "dose"]).astype(object).to_numpy().tolist()
    assert cells == [["a, b", "c\nd", "1"], ['e "f"', pd.NA, pd.NA]]


def test_missing_values_become_index_0_rows_without_a_target_are_left_out_and_both_are_counted(tmp_path):
    path = write(tmp_path / "a.csv", drug=["b", None, "NA", "a", "b", "b"])
    table = load(path, fields=FIELDS, targets=TARGETS)
    assert table.fields[:, 0].tolist() == [2, 0, 0, 1, 2, 2]
    assert "field drug: 2 of 6 values missing, read as index 0" in table.notes
    outcome, signs = ["no", None, "no", "yes", "yes", "nan"], ["p;r", "p", "", "r", "p", "p"]
    table = load(write(tmp_path / "b.csv", outcome=outcome, signs=signs), fields=FIELDS, targets=TARGETS)
    assert len(table) == 3 and table.fields[:, 0].tolist() == [2, 1, 2]
    assert table.notes[0] == "3 of 6 rows are left out: a target is missing"
    table = load(write(tmp_path / "c.csv", drug=["a"] * 6), fields=FIELDS, targets=TARGETS)
    assert table.field_names == ("gene",) and "field drug is left out: it holds one value only" in table.notes


@pytest.mark.parametrize(
    ("columns", "options", "part"),
    [
        ({"outcome": ["yes"] * 6}, {}, "target 'outcome' holds fewer than two different answers in 6 rows"),
        ({"outcome": [10 + 7 * i for i in range(6)]}, {}, "a quantity: 6 different classes in 6 rows"),
        ({"drug": ["a"] * 6}, {"fields": ["drug"]}, "every field holds one value only (drug)"),
        ({}, {"fields": "drug"}, "fields must name one column or more, as [name, name], got 'drug'"),
        ({}, {"fields": ("drug", "outcome")}, "asked for twice"),
        ({}, {"fields": ("drug", "jene")}, "no column 'jene' (did you mean gene?)"),
    ],
)
def test_columns_that_cannot_be_asked_for_are_refused(tmp_path, columns, options, part):
    assert part in no_table(write(tmp_path / "a.csv", **columns), **options)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ""),
        ("a.csv", "drug,gene,outcome,signs\n"),
        ("a.csv", "drug,gene,outcome,signs\na,b,c,d\na,b,c,d,e\n"),
        ("a.parquet", "drug,gene\na,b\n"),
        ("a.xlsx", "drug,gene\n"),
        ("missing.csv", None),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path, name, content):
    no_table(tmp_path / name, content)
