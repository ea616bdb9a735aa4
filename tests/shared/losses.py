"""The loss of a DeepFM, as tests train it."""

import torch
from torch.nn import functional as F


def weighted_loss(outputs, answers, specs, log_variances):
    """sum of exp(-s) L + s over the targets (Kendall et al. 2018), L the cross entropy of classes or of labels."""
    total = log_variances.sum()
    for spec, s in zip(specs, log_variances, strict=True):
        classes, answer = spec.kind == "classes", answers[spec.name]
        loss = F.cross_entropy if classes else F.binary_cross_entropy_with_logits
        total = total + torch.exp(-s) * loss(outputs[spec.name], answer if classes else answer.float())
    return total
