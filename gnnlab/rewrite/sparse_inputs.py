"""Linear layers that get mostly zeros from outside, such as bags of words: the zeros left out.

`SparseLinear` (`kernels/sparse_features.py`) takes the place of a linear layer of torch or PyG that multiplies an
argument of the model as it came in. Parameters keep their names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnnlab.errors import GnnlabError
from gnnlab.kernels.sparse_features import FEWEST_NUMBERS, MOST_NONZEROS, SparseLinear
from gnnlab.profiling.context import call
from gnnlab.profiling.dispatch import tensors_in

_LINEAR = (nn.Linear, pyg.Linear)


def places(model: nn.Module, batch: Any) -> dict[str, float]:
    """Paths of the linear layers that multiply a sparse argument, with the share of its numbers that are not zero.

    Raises:
        GnnlabError: there are none; it says why.
    """
    wide = {t.data_ptr(): t for t in tensors_in(batch) if t.dim() == 2 and t.is_floating_point()}
    shares = {at: float(t.count_nonzero()) / t.numel() for at, t in wide.items() if t.numel() >= FEWEST_NUMBERS}
    sparse = {at: share for at, share in shares.items() if share <= MOST_NONZEROS}
    if not sparse:
        most = f"; {min(shares.values()):.0%} of the features are not zero" if shares else ""
        raise GnnlabError(f"no input of {FEWEST_NUMBERS:,} numbers or more is mostly zeros{most}")
    found: dict[str, float] = {}

    def look(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple) -> None:
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].data_ptr() in sparse:
                found[path] = sparse[inputs[0].data_ptr()]

        return hook

    linear = [(path, module) for path, module in model.named_modules() if type(module) in _LINEAR]
    hooks = [module.register_forward_pre_hook(look(path)) for path, module in linear]
    try:
        with torch.no_grad():
            call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise GnnlabError("no linear layer multiplies the sparse input as it came in")
    return found


def sparse_inputs(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed, with the layers of `places` replaced. Raises `GnnlabError` as it does."""
    for path in places(model, batch):
        if not path:
            return SparseLinear(model)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, SparseLinear(model.get_submodule(path)))
    return model
