"""Model and optimizer as plain tensors by name, and back; sharded ones whole, so that they fit any number of processes.

State of generators there is none: order and dropout are functions of seed, epoch, step and rank (`input_pipeline`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_MODEL, _OPTIMIZER = "model/", "optimizer/"


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies on the CPU: "model/<name>", "optimizer/<parameter>/<moment>". Collective where the model is sharded."""
    found = {_MODEL + name: _whole(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found[f"{_OPTIMIZER}{name}/{key}"] = _whole(value)
    return found


@torch.no_grad()
def restore(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `capture` gave, bit by bit, for a model of the same names and shapes."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(_like(tensors[_MODEL + name], tensor))
    for name, parameter in model.named_parameters():
        prefix = f"{_OPTIMIZER}{name}/"
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {key: _placed(key, value, parameter, optimizer) for key, value in state.items()}


def _whole(tensor: Tensor) -> Tensor:
    tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _like(saved: Tensor, wanted: Tensor) -> Tensor:
    if _is_sharded(wanted):
        from torch.distributed.tensor import distribute_tensor

        # every process has it whole and keeps its part, a copy that does not hold on to the rest
        own = distribute_tensor(saved.to(wanted.device), wanted.device_mesh, wanted.placements, src_data_rank=None)
        return own.clone()
    return saved.to(wanted.device)


def _placed(key: str, saved: Tensor, parameter: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Moments lie beside their parameter; the counter of steps on the CPU, unless the kernel is fused."""
    if key != "step":
        return _like(saved, parameter)
    return saved.to(parameter.device) if optimizer.defaults.get("fused") else saved


def _is_sharded(tensor: Tensor) -> bool:
    """A DTensor; importing its type takes most of a second, which only sharded training should pay."""
    return hasattr(tensor, "full_tensor")
