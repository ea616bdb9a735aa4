"""The loss and the scores of a model on a validation table, each process predicting its share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training.input_pipeline import Share
from gnnlab.optimize.training.metrics import scores
from gnnlab.optimize.training.objective import Objective
from gnnlab.optimize.training.process_group import gathered, summed
from gnnlab.workloads.tables import Table

BATCH_ROWS = 4096


@torch.no_grad()
def evaluate(objective: Objective, table: Table, share: Share) -> dict[str, Any]:
    """validation_loss, score, score.<target> and labels_left_out, the same in every process.

    Raises:
        OptimizeError: the predictions are not finite.
    """
    batches = torch.arange(len(table)).split(BATCH_ROWS)
    own = [(share.of(batch), share.count(len(batch))) for batch in batches]
    objective.eval()
    try:
        predicted = [_predicted(objective, table.rows(rows), count) for rows, count in own]
    finally:
        objective.train()
    loss = summed(torch.stack([loss for loss, _, _ in predicted]).sum()).item() / len(table)
    counts = [sum(Share(rank, share.world).count(len(batch)) for batch in batches) for rank in range(share.world)]
    outputs, targets = ({name: gathered(torch.cat([part[place][name] for part in predicted]), counts)
                         for name in table.targets} for place in (1, 2))  # fmt: skip
    if not all(torch.isfinite(logits).all() for logits in outputs.values()):
        raise OptimizeError(
            "the model predicts numbers that are not finite on the validation table; "
            "lower learning_rate, set clip_norm or train in fp32"
        )
    found = scores(outputs, targets, table.specs)
    by_target = {f"score.{name}": value for name, value in found.by_target.items()}
    return {"validation_loss": loss, "score": found.score, **by_target, "labels_left_out": found.left_out}


def _predicted(objective: Objective, batch: Table, count: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """(sum of the loss, outputs, targets) of the first `count` rows of a batch; the others are there for nothing."""
    targets = {name: column.to(objective.device) for name, column in batch.targets.items()}
    loss, outputs = objective(batch.fields.to(objective.device), targets)
    return (
        loss * count,
        {name: logits[:count] for name, logits in outputs.items()},
        {name: column[:count] for name, column in targets.items()},
    )
