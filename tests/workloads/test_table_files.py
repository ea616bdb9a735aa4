"""A user's table is numbered as documented; what is filled in or left out is counted; what is no target is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from gnnlab.errors import GnnlabError
from gnnlab.workloads import table_files
from gnnlab.workloads.deepfm import DeepFM
from gnnlab.workloads.table_files import load
from gnnlab.workloads.tables import Target

FIELDS, TARGETS = ("drug", "gene"), ("outcome", "signs")
DRUGS, GENES = ["b", "a", "c", "a", "b", "b"], ["10", "9", "9", "10", "9", "10"]
ROWS = {"drug": DRUGS, "gene": GENES, "outcome": ["no", "yes"] * 3, "signs": ["rash;pain", "pain", ";", "rash"] * 2}


def write(path: Path, **changes) -> Path:
    """Six rows of two fields and two targets; `changes` replace columns."""
    rows = {name: values[:6] for name, values in (ROWS | changes).items()}
    pd.DataFrame(rows, dtype=object).to_csv(path, index=False)
    return path


def refused(path: Path, **options) -> str:
    return refusal(load, path, **({"fields": FIELDS, "targets": TARGETS} | options))


def test_categories_and_classes_are_numbered_in_ascending_order_from_one_and_from_zero(tmp_path):
    table = load(write(tmp_path / "a.csv"), fields=FIELDS, targets=TARGETS)
    assert table.fields[:, 0].tolist() == [2, 1, 3, 1, 2, 2] and table.fields[:, 1].tolist() == [2, 1, 1, 2, 1, 2]
    assert table.cardinalities == (4, 3) and table.field_names == FIELDS
    assert table.specs == (Target("outcome", "classes", 2), Target("signs", "labels", 2))
    assert table.targets["outcome"].tolist() == [0, 1, 0, 1, 0, 1]
    assert table.targets["signs"].tolist() == [[1, 1], [1, 0], [0, 0], [0, 1], [1, 1], [1, 0]]
    assert table.notes == ("target signs is read as 2 labels separated by ';'",)
    assert table.best_score is None and "drug (3 categories), gene (2 categories)" in str(table)


def test_it_trains_the_model(tmp_path):
    table = load(write(tmp_path / "a.csv"), fields=FIELDS, targets=TARGETS)
    outputs = DeepFM(table.cardinalities, table.specs, embedding_dim=4, hidden=8)(table.fields)
    assert {name: tuple(out.shape) for name, out in outputs.items()} == {"outcome": (6, 2), "signs": (6, 2)}


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["a", "b", "c", "10", "2"]), min_size=6, max_size=30))
def test_every_cell_keeps_its_value(tmp_path_factory, drugs):
    path = tmp_path_factory.mktemp("tables") / "a.csv"
    count = len(drugs)
    frame = pd.DataFrame({"drug": drugs, "gene": (["x", "y"] * count)[:count], "outcome": ([0, 1] * count)[:count]})
    frame.to_csv(path, index=False)
    table = load(path, fields=FIELDS, targets=["outcome"])
    if len(set(drugs)) == 1:
        assert table.field_names == ("gene",) and table.notes == ("field drug is left out: it holds one value only",)
        return
    values = sorted(set(drugs)) if set(drugs) & set("abc") else sorted(set(drugs), key=int)
    assert [values[i - 1] for i in table.fields[:, 0].tolist()] == drugs


def test_missing_fields_become_index_0_and_are_counted(tmp_path):
    path = write(tmp_path / "a.csv", drug=["b", None, "NA", "a", "b", "b"])
    table = load(path, fields=FIELDS, targets=TARGETS)
    assert table.fields[:, 0].tolist() == [2, 0, 0, 1, 2, 2]
    assert "field drug: 2 of 6 values missing, read as index 0" in table.notes


def test_rows_without_a_target_are_left_out_and_counted(tmp_path):
    path = write(
        tmp_path / "a.csv", outcome=["no", None, "no", "yes", "yes", "nan"], signs=["p;r", "p", "", "r", "p", "p"]
    )
    table = load(path, fields=FIELDS, targets=TARGETS)
    assert len(table) == 3 and table.fields[:, 0].tolist() == [2, 1, 2]
    assert table.notes[:2] == (
        "2 of 6 rows are left out: target outcome is missing",
        "1 of 4 rows are left out: target signs is missing",
    )
    assert "in each of 6, target outcome is missing" in refused(write(tmp_path / "b.csv", outcome=[None] * 6))


def test_a_field_of_one_value_is_left_out_but_one_that_is_there_or_not_stays(tmp_path):
    path = write(tmp_path / "a.csv", drug=["a"] * 6)
    table = load(path, fields=FIELDS, targets=TARGETS)
    assert table.field_names == ("gene",) and "field drug is left out: it holds one value only" in table.notes
    kept = load(write(tmp_path / "b.csv", drug=["a", None] * 3), fields=FIELDS, targets=TARGETS)
    assert kept.fields[:, 0].tolist() == [1, 0, 1, 0, 1, 0]
    assert "every field holds one value only (drug)" in refused(path, fields=["drug"])
    assert "every field" in refused(write(tmp_path / "c.csv", drug=[None] * 6), fields=["drug"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"outcome": ["yes"] * 6}, r"target 'outcome' holds one class only \('yes'\) in 6 rows; 2 are needed"),
        ({"signs": ["a;b", "b;a", "a;b"] * 2}, "target 'signs' holds the same labels in all 6 rows"),
        ({"signs": [";"] * 6}, "the same labels in all 6 rows"),
        ({"outcome": [f"felt {i} times worse" for i in range(6)]}, "text or an identifier: 6 different classes"),
        ({"signs": [f"he; is {i}" for i in range(6)]}, "text or an identifier: 7 different labels in 6 rows"),
    ],
)
def test_a_column_that_is_no_target_is_refused(tmp_path, columns, message):
    path = write(tmp_path / "a.csv", **columns)
    with pytest.raises(GnnlabError, match=message):
        load(path, fields=FIELDS, targets=TARGETS)


def test_quantities_are_refused_and_few_steps_with_a_fraction_are_classes(tmp_path):
    frame = pd.DataFrame({"drug": ["a", "b"] * 50, "gene": ["x"] * 50 + ["y"] * 50})
    frame = frame.assign(dose=[0.25 * (i % 12) + 0.1 for i in range(100)], step=[0.5 * (i % 4) for i in range(100)])
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert "target 'dose' is a quantity (such as 0.1)" in refused(tmp_path / "a.csv", targets=["dose"])
    assert "field 'dose' is a quantity" in refused(tmp_path / "a.csv", fields=["drug", "dose"], targets=["step"])
    assert load(tmp_path / "a.csv", fields=FIELDS, targets=["step"]).targets["step"].tolist()[:5] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fields": "drug"},
            r"fields must name one column or more, as \[name, name\], got 'drug'; the file has 'drug, ",
        ),
        ({"targets": ()}, r"targets must name one column or more, as \[name, name\], got \(\); the file has "),
        ({"fields": ("drug", "outcome")}, "column 'outcome' is asked for twice"),
        ({"fields": ("drug", "jene")}, r"no column 'jene' \(did you mean gene\?\)"),
    ],
)
def test_columns_that_cannot_be_asked_for_are_refused(tmp_path, options, message):
    with pytest.raises(GnnlabError, match=message):
        load(write(tmp_path / "a.csv"), **({"fields": FIELDS, "targets": TARGETS} | options))


@pytest.mark.parametrize("fields", [["a"], []])  # none: the names that there are would be told
def test_a_header_of_a_million_columns_is_refused_without_parsing_it(tmp_path, monkeypatch, fields):
    (tmp_path / "wide.csv").write_text(",".join(["a"] * 1_000_000) + "\n")
    monkeypatch.setattr("pandas.read_csv", None)
    with pytest.raises(GnnlabError, match="at least 524,289 columns; at most 10,000 are understood"):
        load(tmp_path / "wide.csv", fields=fields, targets=["b"])


def test_a_parquet_file_that_would_fill_the_memory_is_refused_by_its_head(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": ["x"] * 5000, "b": ["y"] * 5000}).to_parquet(path)
    monkeypatch.setattr(table_files.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    with pytest.raises(GnnlabError, match="10,000 cells would take"):
        load(path, fields=["a"], targets=["b"])


def test_whole_numbers_that_hardly_repeat_are_called_a_quantity_and_a_field_of_dates_is_noted(tmp_path):
    rows = [f"2024-01-{i % 28 + 1:02d} {i}:00,{'ab'[i % 2]},{1000 + 7 * i}\n" for i in range(60)]
    (tmp_path / "a.csv").write_text("day,group,price\n" + "".join(rows), encoding="utf-8")
    with pytest.raises(GnnlabError, match=r"'price' looks like a quantity or an identifier: 60 .* cut a quantity into"):
        load(tmp_path / "a.csv", fields=["group"], targets=["price"])
    (note,) = load(tmp_path / "a.csv", fields=["day"], targets=["group"]).notes
    assert note.startswith("field day has 60 different values in 60 rows, as a date or an identifier has")
