"""torch as a runtime: the block itself on the CPU (eager or compiled) or on CUDA, and the lab's fast forms of it."""

from __future__ import annotations

import copy
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnlab import machine
from gnnlab.errors import Unavailable
from gnnlab.units.unit import Availability, Loaded, Unit, Values
from gnnswap.errors import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from gnnlab.workloads.staged import StageBlock, StagedLayer
    from gnnswap.neighbours import Neighbours

Forward = Callable[..., tuple["Tensor", ...]]
GATHER, MESSAGE, SUM, COUNT, NORMALIZE = range(1, 6)  # stages of GraphSAGE
_MOST_FORMS = 256  # that torch.compile keeps of one code; 28 blocks, each with N = E and without, of several widths
_COMPILED: dict[tuple[str, int, int], Forward] = {}  # by weights and stages; compiling takes seconds


@dataclass(frozen=True)
class TorchUnit(Unit):
    """The block as it is, on the CPU or on CUDA. bfloat16 is torch's autocast; results are float32 in any case."""

    def probe(self) -> Availability:
        import torch

        if self.processor == "GPU" and not torch.cuda.is_available():
            return _no_cuda(torch)
        try:
            torch.ones(4, device=self._where()).sum().item()
        except Exception as error:
            return Availability(False, one_line(error), "see `torch.cuda` in a Python of this environment")
        return Availability(True, device=self._device(), version=f"torch {torch.__version__}")

    def load(self, layer, first, last, artefact=None, *, nodes, edges, threads, precision) -> Loaded:
        import torch

        block = layer.block(first, last)
        restore = _set_conditions(threads)
        if self.processor == "GPU":
            block = copy.deepcopy(block).to("cuda")  # the layer's own weights stay where they are
        forward = self._forward(layer, block)
        run = _runner(forward, block, self._where(), precision)
        return Loaded(run, self._device(), f"torch {torch.__version__}", close=restore)

    def _forward(self, layer: StagedLayer, block: StageBlock) -> Forward:
        return block

    def _where(self) -> str:
        return "cuda" if self.processor == "GPU" else "cpu"

    def _device(self) -> str:
        import torch

        return torch.cuda.get_device_name() if self.processor == "GPU" else machine.processor()


@dataclass(frozen=True)
class CompiledUnit(TorchUnit):
    """The block through `torch.compile` with dynamic shapes: one compilation serves all sizes in a process."""

    def probe(self) -> Availability:
        import torch

        if not _cpp_compiler():
            what = "the MSVC build tools" if sys.platform == "win32" else "g++ or clang"
            return Availability(False, "torch.compile finds no C++ compiler", f"install {what}")
        try:
            torch.compile(lambda x: x * 2 + 1)(torch.ones(8))
        except Exception as error:
            return Availability(False, one_line(error), "see the message; a C++ compiler must build torch's kernels")
        return super().probe()

    def _forward(self, layer: StagedLayer, block: StageBlock) -> Forward:
        from gnnlab.measure.conditions import compiled

        key = (layer.fingerprint(), block.first, block.last)
        if key not in _COMPILED:
            # all blocks share their code; beyond 8 forms of it torch would run the rest eagerly and only log it
            _COMPILED[key] = compiled(block, dynamic=True, fullgraph=True, recompile_limit=_MOST_FORMS)
        return _COMPILED[key]


@dataclass(frozen=True)
class FastUnit(TorchUnit):
    """The lab's fast forms of blocks that sum over neighbours (`kernels.aggregation`); a GraphSAGE layer's only.

    The graph is sorted by target once, outside the time: who runs a layer more than once on a graph does the same.
    """

    def load(self, layer, first, last, artefact=None, *, nodes, edges, threads, precision) -> Loaded:
        import torch

        block = layer.block(first, last)
        forward = fast_block(layer, block)
        restore = _set_conditions(threads)
        prepared: dict[str, Any] = {}

        def run(values: Values) -> dict[str, np.ndarray]:
            edge_index = values["edge_index"]
            if prepared.get("edges") is not edge_index:
                start = time.perf_counter()
                prepared.update(edges=edge_index, neighbours=prepare(_tensor(edge_index), nodes))
                ms = (time.perf_counter() - start) * 1e3
                loaded.notes[:] = [f"the graph was sorted once, {ms:.3g} ms, not timed"]
            tensors = {name: _tensor(values[name]) for name in block.reads if name != "edge_index"}
            with torch.inference_mode():
                results = forward(tensors, prepared["neighbours"])
            return {name: results[name].numpy() for name in block.writes}

        loaded = Loaded(run, self._device(), f"torch {torch.__version__}", close=restore)
        return loaded


def prepare(edge_index: Tensor, nodes: int) -> Neighbours:
    """The graph `edge_index` (2, E) sorted by target, with what else does not depend on the features."""
    import torch

    from gnnswap.neighbours import Neighbours

    neighbours = Neighbours.prepare(edge_index, nodes)
    neighbours.cast("mean_weight", torch.float32)
    neighbours.cast("degree", torch.float32)
    return neighbours


def fast_block(layer: StagedLayer, block: StageBlock) -> Callable[[dict[str, Tensor], Neighbours], dict[str, Tensor]]:
    """The fast form of a block: of the values that it reads, by name, and the prepared graph, those that it writes.

    One bag over sorted edges takes the sums. Where the block begins with the gather, x goes straight into them and the
    E x F messages are never in memory; where it begins behind it, the bag adds the messages that it is given.
    Raises `Unavailable`: there is none.
    """
    import torch

    from gnnswap import aggregation

    if layer.name != "sage":
        raise Unavailable(f"the fast forms are of GraphSAGE's stages, not of {layer.name}'s")
    if not block.first <= SUM <= block.last:
        raise Unavailable("without a sum over neighbours there is no faster form; use torch:CPU")

    def sums(known: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
        if block.first == GATHER and block.last >= NORMALIZE:
            return {"means": aggregation.mean(known["x"], neighbours)}
        if block.first == GATHER:
            return {"sums": aggregation.weighted_sum(known["x"], neighbours)}
        messages = known["messages" if block.first == SUM else "x_j"]  # one for each edge as it was given
        order = neighbours.cast("order", neighbours.rowptr.dtype)
        return {"sums": aggregation.segment_sum(messages, neighbours, order)}

    def forward(values: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
        known = dict(values)
        for stage in block.stages:
            if stage.number == SUM:
                known |= sums(known, neighbours)
            elif stage.number == COUNT:
                known["counts"] = neighbours.cast("degree", torch.float32)
            elif stage.number > SUM and stage.writes not in known:
                known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
        return {name: known[name] for name in block.writes}

    return forward


def _runner(
    forward: Forward, block: StageBlock, where: str, precision: str
) -> Callable[[Values], dict[str, np.ndarray]]:
    import torch

    low = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    conditions = nullcontext() if low is None else torch.autocast(where, low)

    def run(values: Values) -> dict[str, np.ndarray]:
        with torch.inference_mode(), conditions:
            results = forward(*(_tensor(values[name]).to(where) for name in block.reads))
            host = [r.float().cpu() if r.is_floating_point() else r.cpu() for r in results]
        return {name: tensor.numpy() for name, tensor in zip(block.writes, host, strict=True)}

    return run


def _tensor(array: np.ndarray) -> Tensor:
    import torch

    return torch.from_numpy(array)  # shares the memory


def _set_conditions(threads: int) -> Callable[[], None]:
    """Set torch's threads, and float32 products in full float32 precision; gives what puts the old conditions back."""
    from gnnlab.measure.conditions import Conditions

    before = Conditions.now()
    Conditions(threads, "highest").set()
    return before.set


def _no_cuda(torch: Any) -> Availability:
    if torch.version.cuda is None:
        why, remedy = "this torch is built for the CPU", "install torch with CUDA (pytorch.org/get-started)"
    else:
        why, remedy = "torch sees no CUDA device", "an NVIDIA GPU and its driver; `nvidia-smi` must list it"
    return Availability(False, why, remedy, version=f"torch {torch.__version__}")


def _cpp_compiler() -> bool:
    names = ("cl",) if sys.platform == "win32" else ("g++", "clang++", "c++")
    return any(shutil.which(name) for name in names)
