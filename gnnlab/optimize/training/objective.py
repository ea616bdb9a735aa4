"""What training computes for a batch: the model in its precision, and the losses of its targets as one number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnlab.optimize.training import losses
from gnnlab.optimize.training.precision import autocast
from gnnlab.optimize.training.recipe import Recipe


class Objective(nn.Module):
    """`objective(fields, targets)` -> (loss, outputs): a scalar, and logits (B, size) by target name."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.form = model, losses.FORMS[recipe.loss]
        self.precision, self.device = recipe.precision, recipe.device

    def forward(self, fields: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast(self.precision, self.device):
            outputs = self.model(fields)
        if self.precision != "fp32":  # losses are sums over many rows: float32
            outputs = {name: logits.float() for name, logits in outputs.items()}
        return self.form(outputs, targets, self.model.targets, self.model.log_variances), outputs


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
