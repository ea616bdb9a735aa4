"""The losses of several targets as one: sum of exp(-s) L + s, with learned s (Kendall et al. 2018), in three forms.

    FORMS["weighted"](outputs, targets, specs, log_variances)      # scalar

`outputs` and `targets` by target name, as `DeepFM` and `Table` have them; `specs` a `Target` each; `log_variances`
(T,). All forms give the same; the first two are the guide's "before" and "after" (document 003).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnlab.workloads.tables import Target

Form = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Sequence[Target], Tensor], Tensor]


def stacked(
    outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target], log_variances: Tensor
) -> Tensor:
    """The guide's "before": one loss after the other into a list, which is stacked and summed."""
    individual = []
    for place, spec in enumerate(specs):
        individual.append(_weigh(_loss(spec, outputs, targets), log_variances[place]))
    return torch.stack(individual).sum()


def preallocated(
    outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target], log_variances: Tensor
) -> Tensor:
    """The guide's "after": each loss is written into a tensor of zeros."""
    individual = torch.zeros(len(specs), dtype=log_variances.dtype, device=log_variances.device)
    for place, spec in enumerate(specs):
        individual[place] = _weigh(_loss(spec, outputs, targets), log_variances[place])
    return individual.sum()


def weighted(
    outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target], log_variances: Tensor
) -> Tensor:
    """All weights at once, as a vector; the losses stay plain."""
    losses = torch.stack([_loss(spec, outputs, targets) for spec in specs])
    return torch.dot(torch.exp(-log_variances), losses) + log_variances.sum()


FORMS: Mapping[str, Form] = {"stack": stacked, "preallocated": preallocated, "weighted": weighted}


def _loss(spec: Target, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
    logits, wanted = outputs[spec.name], targets[spec.name]
    if spec.kind == "classes":
        return F.cross_entropy(logits, wanted)
    return F.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype))


def _weigh(loss: Tensor, log_variance: Tensor) -> Tensor:
    return torch.exp(-log_variance) * loss + log_variance
