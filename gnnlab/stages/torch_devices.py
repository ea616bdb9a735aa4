"""torch as a runtime: the stages themselves on the CPU or on CUDA, and gnnswap's kernels for them.

What is timed is the module alone, in inference mode. Arrays become tensors once, which share their memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gnnlab import machine
from gnnlab.errors import Unavailable
from gnnlab.stages.devices import Availability, Bound, Device, Loaded, Values, once_per_graph, run_by

if TYPE_CHECKING:
    from torch import Tensor

    from gnnlab.workloads.staged import StageBlock, StagedLayer

Forward = Callable[..., Any]  # of tensors: a tensor, or a tuple of them
GATHER, MESSAGE, SUM, COUNT, NORMALIZE = range(1, 6)  # stages of GraphSAGE


@dataclass(frozen=True)
class TorchDevice(Device):
    """The block as it is. Lower precisions are torch's autocast; results are float32 in any case."""

    where: ClassVar[str] = "cpu"

    def probe(self) -> Availability:
        import torch

        torch.ones(4, device=self.where).sum().item()
        return Availability(True, chip=self._chip(), version=f"torch {torch.__version__}")

    def load(self, layer, first, last, model=None, *, nodes, edges, threads, precision) -> Loaded:
        import torch

        from gnnlab.measure.conditions import Conditions

        block, notes = layer.block(first, last), []
        module_for = self._module_for(layer, block, nodes, notes)
        before = Conditions.now()
        Conditions(threads, "highest").set()
        lower = nullcontext() if precision == "float32" else torch.autocast(self.where, getattr(torch, precision))

        def bind(values: Values) -> Bound:
            module, tensors = module_for(values), [_tensor(values[name]) for name in block.reads]

            def call() -> Any:
                with torch.inference_mode(), lower:
                    return module(*tensors)

            return call, partial(_arrays, block.writes, values)

        about = self._chip(), f"torch {torch.__version__}", notes, before.set
        return Loaded(run_by(bind), *about, bind=bind if self.where == "cpu" else None)

    def _module_for(
        self, layer: StagedLayer, block: StageBlock, nodes: int, notes: list[str]
    ) -> Callable[[Values], Forward]:
        """What computes the block on a graph, from what it reads. A stage alone is its own module."""
        module = block.steps[0] if len(block.steps) == 1 else block
        return lambda values: module

    def _chip(self) -> str:
        return machine.processor()


@dataclass(frozen=True)
class CudaDevice(TorchDevice):
    """The block on CUDA, with the copies of inputs and results; the layer's own weights stay where they are."""

    where = "cuda"

    def probe(self) -> Availability:
        import torch

        if torch.cuda.is_available():
            return super().probe()
        remedy = "an NVIDIA GPU with its driver, and a torch that is built for CUDA (pytorch.org/get-started)"
        why = f"torch {torch.__version__} sees no CUDA device"
        return Availability(False, why, remedy, version=f"torch {torch.__version__}")

    def _module_for(self, layer, block, nodes, notes):
        module = copy.deepcopy(super()._module_for(layer, block, nodes, notes)({})).to(self.where)
        return lambda values: lambda *tensors: module(*(tensor.to(self.where) for tensor in tensors))

    def _chip(self) -> str:
        import torch

        return torch.cuda.get_device_name()


@dataclass(frozen=True)
class FastDevice(TorchDevice):
    """gnnswap's kernels for blocks of GraphSAGE that sum over neighbours. The graph is sorted once, outside the time:
    who runs a layer more than once on a graph does the same."""

    def _module_for(self, layer, block, nodes, notes):
        if not block.first <= SUM <= block.last:
            raise Unavailable("without a sum over neighbours there is no faster kernel; use torch:CPU")
        return once_per_graph(lambda values: fast_block(block, _tensor(values["edge_index"]), nodes), notes)


TORCH_DEVICES = (
    TorchDevice("torch:CPU", "CPU", "torch", precisions=("float32", "bfloat16")),
    FastDevice("fast:CPU", "CPU", "torch"),
    CudaDevice("torch:CUDA", "GPU", "torch", precisions=("float32", "float16", "bfloat16")),
)


def fast_block(block: StageBlock, edge_index: Tensor, nodes: int) -> Callable[..., tuple[Tensor, ...]]:
    """A block of GraphSAGE that sums over neighbours, by gnnswap's kernels on the graph `edge_index` (2, E).

    It takes what the block reads, and gives what it writes. Edges are sorted here, by target. A block that begins with
    the gather sums rows of x, so the (E, F) messages are never in memory.
    """
    import torch

    from gnnswap import aggregation
    from gnnswap.neighbours import Neighbours

    neighbours = Neighbours.prepare(edge_index, nodes)
    neighbours.cast("mean_weight", torch.float32)
    degree, order = neighbours.cast("degree", torch.float32), neighbours.permutation
    means = block.first == GATHER and block.last >= NORMALIZE  # at once, without sums

    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(block.reads, tensors, strict=True), counts=degree)
        if means:
            known["means"] = aggregation.mean(known["x"], neighbours)
        elif block.first == GATHER:
            known["sums"] = aggregation.weighted_sum(known["x"], neighbours)
        else:
            messages = known["x_j" if block.first == MESSAGE else "messages"]  # in the order of `edge_index`
            known["sums"] = aggregation.segment_sum(messages, neighbours, order)
        for stage in block.stages:
            if stage.number > COUNT and stage.writes not in known:
                known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
        return tuple(known[name] for name in block.writes)

    return forward


def _arrays(writes: tuple[str, ...], values: Values, results: Any) -> dict[str, np.ndarray]:
    """The results of a call as float32 arrays by name. They share no memory with `values`: stage 2 gives its input."""
    arrays = {}
    for name, result in zip(writes, results if isinstance(results, tuple) else (results,), strict=True):
        array = result.float().cpu().numpy()
        given = any(np.may_share_memory(array, other) for other in values.values())
        arrays[name] = array.copy() if given else array
    return arrays


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor in the array's memory. Of a read-only array torch warns; no stage writes into its inputs."""
    import torch

    with warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(array)
