"""int8 in two ways: weights alone with activations rounded as they come, or both by a calibrated scale."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch_geometric.nn.dense.linear import Linear as PygLinear

from gnnlab.optimize.inference.network_arrays import NetworkArrays
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator

DYNAMIC = "torch.ao, deprecated by PyTorch"
STATIC = "NNCF, calibrated"
CALIBRATION_NETWORKS = 64


def dynamic(model: EdgeAllocator) -> nn.Module:
    """A copy of `model` with every linear layer in int8, activations quantized at each call.

    PyG's layers hold a Linear of PyG's own, which `quantize_dynamic` passes by; here they become torch's first.

    Raises:
        ImportError: this torch no longer has `torch.ao.quantization`.
    """
    from torch.ao.quantization import quantize_dynamic

    made = copy.deepcopy(model).cpu().eval()
    for parent in list(made.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, PygLinear):
                setattr(parent, name, _as_torch(layer))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        return quantize_dynamic(made, {nn.Linear}, dtype=torch.qint8)


def _as_torch(layer: PygLinear) -> nn.Linear:
    made = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
    made.weight = nn.Parameter(layer.weight.detach().clone())
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.detach().clone())
    return made


def static(program: Any, model: EdgeAllocator) -> Any:
    """The OpenVINO program in int8 by NNCF, its scales calibrated on 64 random networks of 5 to 200 nodes."""
    import nncf

    states = edge_allocator.random_states(CALIBRATION_NETWORKS, seed=2)
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
