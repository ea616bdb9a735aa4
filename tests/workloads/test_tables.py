"""A table is numbered as documented, whichever file it is from; splitting loses and doubles no row; the best score is
that of the truth. The synthetic table has the frequencies, effects and noise that it states."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal, refused

from gnnlab.workloads.tables import TARGETS as PLANTED
from gnnlab.workloads.tables import FeatureTable, Target, load, read_columns, scores, synthetic

SPECS = (Target("outcome", "classes", 3), Target("phenotypes", "labels", 2))


def numbered(rows, **changes):
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


def write(path, **changes):
    """Six rows of two fields and two targets; `changes` replace columns."""
    rows = {name: values[:6] for name, values in (ROWS | changes).items()}
    pd.DataFrame(rows, dtype=object).to_csv(path, index=False)
    return path


def no_table(path, content=None, **options):
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
    assert [row[1] for row in cells[0]] == [d.strip() or None for d, _, _ in rows]


def test_byte_order_marks_quotes_and_line_ends_are_understood(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfdrug , gene,dose\r\n"a, b","c\nd",1\r\n"e ""f""",NA,\r\n')
    cells = read_columns(path, ["drug", "gene", "dose"]).astype(object).to_numpy().tolist()
    assert cells == [["a, b", "c\nd", "1"], ['e "f"', "NA", pd.NA]]


def test_missing_values_become_index_0_rows_without_a_target_are_left_out_and_both_are_counted(tmp_path):
    path = write(tmp_path / "a.csv", drug=["b", None, " ", "a", "b", "b"])
    table = load(path, fields=FIELDS, targets=TARGETS)
    assert table.fields[:, 0].tolist() == [2, 0, 0, 1, 2, 2]
    assert "field drug: 2 of 6 values missing, read as index 0" in table.notes
    outcome, signs = ["no", None, "no", "yes", "yes", " "], ["p;r", "p", "", "r", "p", "p"]
    table = load(write(tmp_path / "b.csv", outcome=outcome, signs=signs), fields=FIELDS, targets=TARGETS)
    assert len(table) == 3 and table.fields[:, 0].tolist() == [2, 1, 2]
    assert table.notes[0] == "3 of 6 rows are left out: a target is missing"
    table = load(write(tmp_path / "c.csv", drug=["a"] * 6), fields=FIELDS, targets=TARGETS)
    assert table.field_names == ("gene",) and "field drug is left out: it holds one value only" in table.notes


def test_none_and_na_are_classes_of_text_and_missing_among_numbers(tmp_path):
    outcome, gene = ["None", "NA", "Apnea"] * 2, ["1", "2", "#N/A", "1", "N/A", "2"]
    for kind in ("csv", "parquet"):
        path = tmp_path / f"a.{kind}"
        frame = pd.DataFrame(
            {"drug": DRUGS, "gene": gene if kind == "csv" else [1.0, 2, None, 1, None, 2], "y": outcome}
        )
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        table = load(path, fields=FIELDS, targets=["y"])
        assert table.specs == (Target("y", "classes", 3),) and table.targets["y"].tolist() == [2, 1, 0] * 2
        assert table.fields[:, 1].tolist() == [1, 2, 0, 1, 0, 2]
        assert "6 rows" in table.read_as and "field gene: 2 of 6 values missing" in table.read_as


def test_names_of_columns_that_are_integers_are_understood(tmp_path):
    pd.DataFrame({0: DRUGS, 1: ["no", "yes"] * 3}).to_parquet(path := tmp_path / "a.parquet")
    assert load(path, fields=["0"], targets=["1"]).field_names == ("0",)
    assert "no column 'drug'; there are '0, 1'" in no_table(path)


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


@pytest.mark.parametrize("name", ["a.csv", "b.csv.gz", "c.csv", "d.parquet"])
def test_a_table_is_read_packed_with_another_separator_and_with_a_column_as_index(tmp_path, name):
    frame = pd.DataFrame(ROWS | {name: values[:6] for name, values in ROWS.items()}).set_index("drug")
    if name == "d.parquet":
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, sep="|" if name == "c.csv" else ",")
    assert load(tmp_path / name, fields=FIELDS, targets=TARGETS).fields.tolist()[:3] == [[2, 2], [1, 1], [3, 1]]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", "", "it is empty"),
        ("a.csv", "drug,gene,outcome,signs\n", "no rows"),
        ("a.csv", "drug,gene,outcome,signs\na,b,c,d\na,b,c,d,e\n", "row 3 has 5 cells, those above 4"),
        ("a.csv", "drug,gene,drug,outcome,signs\na,b,c,d,e\n", "there are two columns 'drug'"),
        ("a.tsv", 'drug\tgene\n"a\tb\nc\td\n"e\tf\n', "rows within a quotation mark that is left open"),
        ("a.csv", "drug,gene\na,b\ndrug,gene\nc,d\n", "row 3 is the header again"),
        ("a.csv", '"drug (mg, oral)";gene\na;b\n', "no column 'drug'; there are 'drug (mg, oral), gene'"),
        ("a.csv", 'drug,gene\n"a,b\n', "a quotation mark is opened and not closed"),
        ("a.csv", "PK\3\4", "a zip archive or an Excel file"),
        ("a.csv.gz", b"\x1f\x8b and no more", "cut off or damaged"),
        ("a.parquet", "drug,gene\na,b\n", "a Parquet file"),
        ("a.xlsx", "drug,gene\n", "that ends in .csv, .tsv, .gz, .parquet"),
        ("missing.csv", None, "no such file"),
        (".", None, "a folder"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path, name, content, part):
    assert part in no_table(tmp_path / name, content)


# --- synthetic --------------------------------------------------------------------------------------------------------

SMALL = (12, 9, 8, 7)


def small(rows, **options):
    return synthetic(rows, **({"cardinalities": SMALL} | options))


def test_the_default_is_sized_as_the_pharmacogenomic_study_and_follows_its_seed():
    table, same, other = synthetic(500), synthetic(500), synthetic(500, seed=4)
    assert table.field_names == ("drug", "genotype", "gene", "allele") and table.cardinalities == (600, 1200, 120, 800)
    assert len(table) == 500 and table.specs == PLANTED and table.notes == ()
    assert torch.equal(table.fields, same.fields) and not torch.equal(table.fields, other.fields)
    for spec in PLANTED:
        assert torch.equal(table.targets[spec.name], same.targets[spec.name])


def test_tables_of_different_length_share_one_truth():
    tables = small(4000, seed=1), small(1000, seed=1)
    rows = [dict(zip(map(tuple, t.fields.tolist()), t.truth["outcome"].numpy(), strict=True)) for t in tables]
    both = rows[0].keys() & rows[1].keys()
    assert len(both) > 100
    np.testing.assert_allclose([rows[0][key] for key in both], [rows[1][key] for key in both], rtol=1e-5)


def test_frequencies_are_those_of_zipf():
    counts = torch.bincount(small(50_000).fields[:, 0], minlength=12).double()
    expected = 1 / torch.arange(1.0, 13.0, dtype=torch.float64)
    shares = counts.sort(descending=True).values / 50_000
    torch.testing.assert_close(shares, expected / expected.sum(), atol=0.01, rtol=0)
    assert not torch.equal(counts, counts.sort(descending=True).values)  # frequent ones do not lie side by side


def test_answers_are_drawn_from_the_stated_probabilities():
    table = small(40_000, noise=0.5)
    for spec in PLANTED:
        p, answer = table.truth[spec.name].double(), table.targets[spec.name]
        drawn = torch.nn.functional.one_hot(answer, spec.size) if spec.kind == "classes" else answer
        deviation = (drawn - p).sum(0) / (p * (1 - p)).sum(0).sqrt()  # standard normal if they are
        assert deviation.abs().max() < 4
        sure = p > 0.9
        assert (drawn[sure].double().mean() - p[sure].mean()).abs() < 0.01


def test_scores_have_variance_one_half_of_it_by_fields_and_half_by_pairs():
    table = small(40_000, noise=1.0)
    p = table.truth["phenotypes"].double()
    scores = (p / (1 - p)).log().numpy()
    one_hot = np.concatenate([np.eye(size)[table.fields[:, m]] for m, size in enumerate(SMALL)], axis=1)
    by_fields = one_hot @ np.linalg.lstsq(one_hot, scores, rcond=None)[0]
    np.testing.assert_allclose(scores.var(axis=0).mean(), 1, atol=0.05)
    np.testing.assert_allclose(by_fields.var(axis=0).mean(), 0.5, atol=0.05)


def test_the_best_score_falls_with_the_noise_from_one_to_chance():
    best = [small(3000, noise=noise).best_score for noise in (0.001, 0.3, 1000)]
    for spec in PLANTED:
        scores = [score[spec.name] for score in best]
        assert scores == sorted(scores, reverse=True) and scores[0] > 0.99
        chance = 1 / spec.size if spec.kind == "classes" else 0.5
        assert scores[2] == pytest.approx(chance, abs=0.06)
