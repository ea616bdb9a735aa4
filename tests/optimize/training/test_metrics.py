import pytest
import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training.metrics import scores
from gnnlab.workloads.planted_table import planted
from gnnlab.workloads.tables import Target

CLASSES, LABELS = Target("c", "classes", 3), Target("l", "labels", 2)


def test_classes_are_scored_by_accuracy_and_labels_by_the_share_of_pairs_in_order():
    logits = {"c": torch.eye(3)[[0, 1, 2, 2]], "l": torch.tensor([[0.1, 3], [0.4, 2], [0.35, 1], [0.8, 0]])}
    wanted = {"c": torch.tensor([0, 1, 2, 0]), "l": torch.tensor([[0.0, 1], [0, 0], [1, 1], [1, 0]])}
    found = scores(logits, wanted, [CLASSES, LABELS])
    assert found.by_target == {"c": 0.75, "l": pytest.approx(0.75)}  # pairs in order: 3 of 4 and 3 of 4
    assert found.score == pytest.approx(0.75) and found.left_out == 0


def test_labels_with_one_answer_are_left_out_and_counted():
    logits = {"l": torch.tensor([[1.0, 9], [2, 9], [3, 1]])}
    found = scores(logits, {"l": torch.tensor([[0.0, 1], [0, 1], [1, 1]])}, [LABELS])
    assert found.by_target == {"l": 1.0} and found.left_out == 1


def test_no_label_with_both_answers_is_an_error_with_the_targets_name():
    with pytest.raises(OptimizeError, match=r"'l'.*no AUROC"):
        scores({"l": torch.zeros(3, 2)}, {"l": torch.ones(3, 2)}, [LABELS])


def test_the_truth_scores_what_the_table_says_is_best():
    table = planted(500)
    logits = {name: p.log() if p.shape[1] != 12 else p.logit() for name, p in table.truth.items()}
    assert scores(logits, table.targets, table.specs).by_target == pytest.approx(table.best_score, abs=1e-3)


def test_low_precision_logits_are_scored():
    wanted = {"l": torch.tensor([[0.0, 1], [1, 0]])}
    assert scores({"l": torch.tensor([[-1, 1], [1, -1]]).bfloat16()}, wanted, [LABELS]).score == 1
