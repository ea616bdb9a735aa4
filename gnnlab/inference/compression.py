"""Smaller edge allocators: layers that torch's own tools can prune and quantize, half the channels, int8.

prune.l1_unstructured(layer, "weight", 0.3)             # for each linear layer of with_torch_linears(model)
quantize_dynamic(with_torch_linears(model), {nn.Linear})
half = narrow(model, 0.5, steps=300)                    # smaller matrices, tuned towards the scores of the model

Zeros in a dense matrix are multiplied like any other number, so pruning single weights saves no time; taking whole
channels out leaves smaller matrices, and a few hundred steps give most of the decisions back.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.workloads import edge_networks
from gnnlab.workloads.edge_allocator import EdgeAllocator

NETWORKS_A_STEP, POOL = 32, 8
LEARNING_RATE = 2e-3
CALIBRATION_NETWORKS = 64


def int8_program(program: Any) -> Any:
    """An OpenVINO program of the flat allocator with weights and activations in int8, by NNCF: its scales are
    calibrated on 64 random networks of 5 to 200 nodes."""
    import nncf

    states = edge_networks.random_states(CALIBRATION_NETWORKS, seed=2)
    inputs = [[tensor.numpy() for tensor in NetworkArrays.of([state]).tensors] for state in states]
    with _silent():
        return nncf.quantize(program, nncf.Dataset(inputs), subset_size=CALIBRATION_NETWORKS)


@contextmanager
def _silent() -> Iterator[None]:
    """Without NNCF's log and its progress bars, which would go to the terminal or into the notebook."""
    import nncf
    import rich

    console, log = rich.get_console(), logging.getLogger("nncf")
    before, level = dict(vars(console)), log.level
    rich.reconfigure(file=io.StringIO(), force_jupyter=False, force_terminal=False)
    nncf.set_log_level(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NNCF's own
            yield
    finally:
        log.setLevel(level)
        vars(console).clear()
        vars(console).update(before)


# ---- fewer channels --------------------------------------------------------------------------------------------------


def narrow(model: EdgeAllocator, keep: float = 0.5, *, steps: int = 300) -> EdgeAllocator:
    """A copy with the share `keep` of the hidden channels, tuned for `steps` steps to score as `model` does.

    A channel counts as much as the product of the norms of what leads to it and of what leads away from it.
    Raises `GnnlabError`: a share that is not above 0 and at most 1.
    """
    if not 0 < keep <= 1:
        raise GnnlabError(f"a share of {keep!r}: a number above 0 and up to 1 is needed")
    wanted = max(1, round(keep * _heads(model)[0].in_features))
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
    return _tuned(made, model, steps)


def _tuned(student: EdgeAllocator, teacher: EdgeAllocator, steps: int) -> EdgeAllocator:
    """The student after `steps` of Adam towards the teacher's scores."""
    batches: list[tuple[Tensor, Tensor, Tensor]] = []
    for seed in range(POOL if steps else 0):
        networks = NetworkArrays.of(edge_networks.random_states(NETWORKS_A_STEP, (5, 100), seed=seed))
        x, edge_index = torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index)
        with torch.no_grad():
            batches.append((x, edge_index, teacher(x, edge_index)))
    optimizer = torch.optim.Adam(student.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    with torch.enable_grad():
        for step in range(steps):
            x, edge_index, expected = batches[step % POOL]
            optimizer.zero_grad()
            F.smooth_l1_loss(student(x, edge_index), expected).backward()
            optimizer.step()
            schedule.step()
    return student.eval()


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
