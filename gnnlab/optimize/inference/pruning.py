"""Smaller edge allocators: single weights set to 0, or whole channels taken out.

Zeros in a dense matrix are multiplied like any other number, so the first saves no time; the second leaves smaller
matrices, and a few hundred steps towards the scores of the model that it came from give most of its decisions back.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference.network_arrays import NetworkArrays
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator

NETWORKS_A_STEP, POOL = 32, 8
LEARNING_RATE = 2e-3


def unstructured(model: EdgeAllocator, amount: float = 0.3) -> EdgeAllocator:
    """A copy with the smallest `amount` of each weight matrix set to 0 (magnitude pruning, as the guide has it)."""
    _check_share(amount)
    made = copy.deepcopy(model)
    for layer in _linears(made):
        prune.l1_unstructured(layer, name="weight", amount=amount)
        prune.remove(layer, "weight")
    return made.eval()


def zeros(model: nn.Module) -> float:
    """The share of zeros among the weights of the matrices."""
    weights = torch.cat([layer.weight.detach().flatten() for layer in _linears(model)])
    return float((weights == 0).double().mean())


def structured(model: EdgeAllocator, keep: float = 0.5, *, steps: int = 300, seed: int = 0) -> EdgeAllocator:
    """A copy with the share `keep` of the hidden channels, tuned for `steps` steps to score as `model` does.

    A channel counts as much as the product of the norms of what leads to it and of what leads away from it.
    """
    _check_share(keep)
    hidden = _heads(model)[0].in_features
    wanted = max(1, round(keep * hidden))
    with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
        made = EdgeAllocator(model.model_type, hidden=wanted)
    kept = [_strongest(model, place, wanted) for place in range(len(model.layers))]
    with torch.no_grad():
        for place, (old, new) in enumerate(zip(model.layers, made.layers, strict=True)):
            for old_part, new_part in zip(_parts(old), _parts(new), strict=True):
                rows = old_part.weight[kept[place]]
                new_part.weight.copy_(rows if place == 0 else rows[:, kept[place - 1]])
                if old_part.bias is not None:
                    new_part.bias.copy_(old_part.bias[kept[place]])
        for old, new in zip(_heads(model), _heads(made), strict=True):
            new.weight.copy_(old.weight[:, kept[-1]])
            new.bias.copy_(old.bias)
    return _tuned(made, model, steps, seed)


def _tuned(student: EdgeAllocator, teacher: EdgeAllocator, steps: int, seed: int) -> EdgeAllocator:
    """The student after `steps` of Adam towards the teacher's scores, each network's taken from their mean."""
    if steps == 0:
        return student.eval()
    batches = [_batch(teacher, seed + place) for place in range(POOL)]
    optimizer = torch.optim.Adam(student.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for step in range(steps):
            x, edge_index, expected = batches[step % POOL]
            optimizer.zero_grad()
            F.smooth_l1_loss(student(x, edge_index), expected).backward()
            optimizer.step()
            schedule.step()
    return student.requires_grad_(False).eval()


def _batch(teacher: EdgeAllocator, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    states = edge_allocator.random_states(NETWORKS_A_STEP, (5, 100), seed=seed)
    networks = NetworkArrays.of(states)
    x, edge_index = torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index)
    with torch.no_grad():
        return x, edge_index, teacher(x, edge_index)


def _strongest(model: EdgeAllocator, place: int, wanted: int) -> Tensor:
    """The channels of layer `place` that count most, in their order."""
    into = sum(part.weight.square().sum(1) for part in _parts(model.layers[place]))
    after = _parts(model.layers[place + 1]) if place + 1 < len(model.layers) else _heads(model)
    out_of = sum(part.weight.square().sum(0) for part in after)
    return (into * out_of).topk(wanted).indices.sort().values


def _parts(layer: nn.Module) -> list[nn.Module]:
    return [layer.lin_l, layer.lin_r] if hasattr(layer, "lin_l") else [layer]


def _heads(model: EdgeAllocator) -> list[nn.Linear]:
    return [head for head in (model.value, model.policy) if head is not None]


def _linears(model: EdgeAllocator) -> list[nn.Module]:
    return [part for layer in model.layers for part in _parts(layer)] + _heads(model)


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise OptimizeError(f"a share of {share!r}: a number above 0 and up to 1 is needed")
