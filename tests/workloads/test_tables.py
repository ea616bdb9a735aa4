"""A table holds what fits together; splitting loses and doubles no row; the best score is that of the truth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.workloads.tables import FeatureTable, Target, scores

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
        with pytest.raises(GnnlabError, match="cannot be split"):
            table.split(share, seed)
        return
    parts = table.split(share, seed)
    assert len(parts[1]) == round(rows * share)
    assert sorted(torch.cat([part.fields[:, 0] for part in parts]).tolist()) == list(range(rows))
    for part in parts:
        number = part.fields[:, 0]
        assert torch.equal(part.targets["outcome"], number % 3)
        assert torch.equal(part.targets["phenotypes"][:, 0], (number % 2).float())
        assert part.cardinalities == table.cardinalities


def test_a_split_follows_its_seed():
    table = numbered(50)
    first, again, other = (table.split(0.3, seed)[1].fields for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), "half", None])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(GnnlabError, match="validation must be a share of the rows"):
        numbered(10).split(share, 0)


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


def test_the_best_score_of_a_part_is_that_of_its_own_rows():
    truth = {"outcome": torch.tensor([[1.0, 0, 0]] * 9), "phenotypes": torch.rand(9, 2)}
    part = numbered(9, truth=truth).rows(torch.tensor([0, 3, 4]))
    assert part.best_score["outcome"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "classes", 2), "needs a name"),
        (("a", "regression", 2), "kind must be one of classes, labels, got 'regression'"),
        (("a", "classes", 1), "2 or more classes are needed, got 1"),
        (("a", "labels", 0), "1 or more labels are needed, got 0"),
        (("a", "labels", True), "got True"),
    ],
)
def test_a_target_that_is_none_is_refused(arguments, message):
    with pytest.raises(GnnlabError, match=message):
        Target(*arguments)


def answers(**changes):
    number = torch.arange(4)
    return {"outcome": number % 3, "phenotypes": torch.zeros(4, 2)} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": torch.zeros(4, 2)}, r"int64 of shape \(rows, fields\), at least one of each, got torch.float32"),
        ({"fields": torch.zeros(0, 2, dtype=torch.int64)}, r"got torch.int64 \(0, 2\)"),
        ({"fields": [[0, 1]]}, "got list"),
        ({"cardinalities": (4,)}, "2 fields, but 1 cardinalities and 2 names"),
        ({"cardinalities": (3, 2)}, r"field 'row' holds 3; 0\.\.2 are allowed"),
        ({"fields": torch.tensor([[0, 1], [2, -1]])}, r"field 'parity' holds -1; 0\.\.1 are allowed"),
        ({"targets": answers(more=torch.arange(4))}, "one column for each target"),
        ({"specs": (SPECS[0], SPECS[0])}, "one column for each target"),
        ({"targets": answers(outcome=torch.arange(3))}, r"must be torch.int64 of shape \(4,\), got torch.int64 \(3,\)"),
        ({"targets": answers(outcome=torch.arange(4.0))}, r"'outcome' \(classes\) must be torch.int64"),
        ({"targets": answers(outcome=torch.arange(4))}, r"target 'outcome' holds 3; 0\.\.2 are allowed"),
        ({"targets": answers(outcome=torch.arange(4) - 1)}, "target 'outcome' holds -1"),
        ({"targets": answers(phenotypes=torch.full((4, 2), 0.5))}, "'phenotypes' holds 0.5; labels are 0 or 1"),
        ({"targets": answers(phenotypes=torch.full((4, 2), torch.nan))}, "holds nan"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(changes, message):
    with refused(message):
        numbered(4, **changes)


CLASSES, LABELS = Target("c", "classes", 3), Target("l", "labels", 2)


def test_classes_are_scored_by_accuracy_and_labels_by_the_share_of_pairs_in_order():
    logits = {"c": torch.eye(3)[[0, 1, 2, 2]], "l": torch.tensor([[0.1, 3], [0.4, 2], [0.35, 1], [0.8, 0]])}
    wanted = {"c": torch.tensor([0, 1, 2, 0]), "l": torch.tensor([[0.0, 1], [0, 0], [1, 1], [1, 0]])}
    found = scores(logits, wanted, [CLASSES, LABELS])
    assert found.by_target == {"c": 0.75, "l": pytest.approx(0.75)}  # pairs in order: 3 of 4 and 3 of 4
    assert found.score == pytest.approx(0.75) and found.left_out == 0


def test_labels_with_one_answer_are_left_out_and_counted_in_low_precision_too():
    logits = {"l": torch.tensor([[1.0, 9], [2, 9], [3, 1]]).bfloat16()}
    found = scores(logits, {"l": torch.tensor([[0.0, 1], [0, 1], [1, 1]])}, [LABELS])
    assert found.by_target == {"l": 1.0} and found.left_out == 1


def test_outputs_that_are_nan_have_no_score():
    spoiled = {"outcome": torch.tensor([[0.1, torch.nan, 0.3]])}
    with pytest.raises(GnnlabError, match="outcome: outputs are nan"):
        scores(spoiled, {"outcome": torch.tensor([1])}, SPECS[:1])
