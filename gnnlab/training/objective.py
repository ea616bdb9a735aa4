"""What training computes for a batch, the model in its precision and the losses of its targets as one number, and how
well it predicts on a validation table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnlab.errors import GnnlabError
from gnnlab.training.process_group import RankShare, gathered, summed
from gnnlab.training.recipe import autocast
from gnnlab.workloads import deepfm
from gnnlab.workloads.tables import FeatureTable, scores

BATCH_ROWS = 4096  # of a validation


class Objective(nn.Module):
    """`objective(fields, targets)` -> (loss, outputs): a scalar, and logits (B, size) by target name."""

    def __init__(self, model: nn.Module, device: str = "cpu", precision: str = "fp32") -> None:
        super().__init__()
        self.model, self.device, self.precision = model, device, precision

    def forward(self, fields: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast(self.precision, self.device):
            outputs = self.model(fields)
        if self.precision != "fp32":  # losses are sums over many rows: float32
            outputs = {name: logits.float() for name, logits in outputs.items()}
        losses = deepfm.target_losses(outputs, targets, self.model.targets)
        return deepfm.weighted(torch.stack(losses), self.model.log_variances), outputs


@contextmanager
def checkpointed(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Within it the branch `deep` keeps no activations: its forward pass runs again where the backward needs them."""
    if not wanted:
        yield
        return
    forward = model.deep.forward
    model.deep.forward = partial(checkpoint, forward, use_reentrant=False)
    try:
        yield
    finally:
        del model.deep.forward  # the attribute of this instance; that of its class shows again


@torch.no_grad()
def evaluate(objective: Objective, table: FeatureTable, share: RankShare) -> dict[str, Any]:
    """validation_loss, score, score.<target> and labels_left_out, the same in every process, each predicting its share.

    Raises:
        GnnlabError: the predictions are not finite.
    """
    batches = torch.arange(len(table)).split(BATCH_ROWS)
    training = objective.training
    objective.eval()
    try:
        predicted = [_predicted(objective, table, share.of(rows), share.count(len(rows))) for rows in batches]
    finally:
        objective.train(training)
    loss = summed(torch.stack([loss for loss, _, _ in predicted]).sum()).item() / len(table)
    counts = [sum(RankShare(rank, share.world).count(len(rows)) for rows in batches) for rank in range(share.world)]
    outputs, targets = ({name: gathered(torch.cat([part[place][name] for part in predicted]), counts)
                         for name in table.targets} for place in (1, 2))  # fmt: skip
    if not all(torch.isfinite(logits).all() for logits in outputs.values()):
        raise GnnlabError(
            "the model predicts numbers that are not finite on the validation table; "
            "lower learning_rate, set clip_norm or train in fp32"
        )
    found = scores(outputs, targets, table.specs)
    by_target = {f"score.{name}": value for name, value in found.by_target.items()}
    return {"validation_loss": loss, "score": found.score, **by_target, "labels_left_out": found.left_out}


def _predicted(
    objective: Objective, table: FeatureTable, rows: Tensor, count: int
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """(sum of the loss, outputs, targets) of the first `count` of some rows; any others are there for nothing."""
    targets = {name: column[rows].to(objective.device) for name, column in table.targets.items()}
    loss, outputs = objective(table.fields[rows].to(objective.device), targets)
    cut = ({name: column[:count] for name, column in columns.items()} for columns in (outputs, targets))
    return loss * count, *cut
