"""How well a model predicts: accuracy for classes, area under the ROC curve (AUROC) for labels, and their mean.

found = scores(outputs, targets, specs)       # found.by_target, found.score, found.left_out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import roc_auc_score
from torch import Tensor

from gnnlab.kernels.errors import OptimizeError
from gnnlab.workloads.tables import Target


@dataclass(frozen=True)
class Scores:
    """A metric in 0..1 by target. `left_out`: labels of which only one answer occurs, which have no AUROC."""

    by_target: dict[str, float]
    left_out: int

    @property
    def score(self) -> float:
        """The mean over the targets."""
        return float(np.mean(list(self.by_target.values())))


def scores(outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target]) -> Scores:
    """Logits (R, size) against what was to be predicted, (R,) classes or (R, size) labels, by target name.

    Raises:
        OptimizeError: a target of labels none of which occurs with both answers: it has no AUROC.
    """
    by_target, left_out = {}, 0
    for spec in specs:
        logits, wanted = outputs[spec.name].detach().float(), targets[spec.name]
        if spec.kind == "classes":
            by_target[spec.name] = float((logits.argmax(dim=1) == wanted).double().mean())
            continue
        varied = varied_labels(wanted)
        if not varied.any():
            raise OptimizeError(
                f"target {spec.name!r}: each of its labels has one answer only in these {len(wanted)} rows, so there "
                "is no AUROC; take more rows to validate"
            )
        left_out += int((~varied).sum())
        kept = varied.to(logits.device)
        by_target[spec.name] = float(roc_auc_score(wanted[:, kept].cpu().numpy(), logits[:, kept].cpu().numpy()))
    return Scores(by_target, left_out)


def varied_labels(labels: Tensor) -> Tensor:
    """Which labels of (R, size) occur with both answers: bool (size,)."""
    return (labels != labels[0]).any(dim=0)
