"""One GNN layer taken apart: numbered stages, each with the values that it reads and the one that it writes.

    layer = graphsage.sage(500)
    layer.block(3, 5)(messages, edge_index, x)          # three stages in one module
    layer.bytes_moved(3, nodes=1000, edges=5000)        # what stage 3 alone reads and writes
    layer.cut_bytes(2, nodes=1000, edges=5000)          # what goes along where the layer is cut behind stage 2

Any run of stages is a `StageBlock`: it can be computed, exported and measured by itself. Bytes are those of the values
as they lie in memory; weights are not counted, because they stay where the stage runs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError
from gnnlab.files import digest

NODES, EDGES = "N", "E"
REDUCTIONS = ("index_add", "scatter_add")  # equal in torch; exporters and runtimes make different things of them
Flops = Callable[[int, int], int]  # of nodes and edges


@dataclass(frozen=True)
class Value:
    """A tensor between stages. `dims`: "N" for nodes, "E" for edges, or a number."""

    dims: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32

    def shape(self, nodes: int, edges: int) -> tuple[int, ...]:
        return tuple({NODES: nodes, EDGES: edges}.get(dim, dim) for dim in self.dims)

    def bytes(self, nodes: int, edges: int) -> int:
        return prod(self.shape(nodes, edges)) * self.dtype.itemsize


@dataclass(frozen=True)
class Stage:
    """One step. `module` takes the values `reads` in order, then the one that it needs for its shape alone."""

    number: int
    name: str
    reads: tuple[str, ...]
    writes: str
    module: nn.Module
    flops: Flops
    sized_by: str | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        return self.reads if self.sized_by is None else (*self.reads, self.sized_by)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A digest of the names, shapes, types and bytes of some tensors."""
    parts: list[str | bytes] = []
    for name, tensor in sorted(tensors.items()):
        parts.append(f"{name}{tuple(tensor.shape)}{tensor.dtype}")
        parts.append(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest(*parts)


class StageBlock(nn.Module):
    """The stages `first`..`last` in one module: `forward(*reads)` gives a tuple, one tensor for each of `writes`.

    `reads`: values from before the block, in the order in which they are needed; `writes`: values that stages behind it
    need, or the layer's result. `shape_only`: those of `reads` whose numbers no stage looks at. Results share no memory
    with what was read.
    """

    def __init__(self, stages: tuple[Stage, ...], later: frozenset[str], values: Mapping[str, Value]) -> None:
        super().__init__()
        self.stages, self.values = stages, dict(values)
        self.first, self.last = stages[0].number, stages[-1].number
        self.steps = nn.ModuleList(stage.module for stage in stages)
        written = [stage.writes for stage in stages]
        self.reads = tuple(dict.fromkeys(name for stage in stages for name in stage.takes if name not in written))
        self.shape_only = frozenset(self.reads) - {name for stage in stages for name in stage.reads}
        self.writes = tuple(name for name in written if name in later)

    @property
    def reduces(self) -> bool:
        """Does it sum over targets?"""
        return any(isinstance(step, Reduction) for step in self.steps)

    @property
    def name(self) -> str:
        """`REDUCE_SUM`, or `GATHER..NORMALIZE`."""
        names = [stage.name for stage in self.stages]
        return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(self.reads, tensors, strict=True))
        for stage, step in zip(self.stages, self.steps, strict=True):
            known[stage.writes] = step(*(known[name] for name in stage.takes))
        results = (known[name] for name in self.writes)
        return tuple(r.clone() if any(r is t for t in tensors) else r for r in results)

    def fingerprint(self) -> str:
        """A digest of its weights, their names and shapes."""
        weights = [(stage.number, *named) for stage in self.stages for named in stage.module.state_dict().items()]
        return fingerprint({f"{number}.{name}": tensor for number, name, tensor in weights})

    def bytes_moved(self, nodes: int, edges: int) -> int:
        """Bytes of what it reads and what it writes; values read for their shape alone are free."""
        names = [*(name for name in self.reads if name not in self.shape_only), *self.writes]
        return sum(self.values[name].bytes(nodes, edges) for name in names)


@dataclass(frozen=True, eq=False)
class StagedLayer:
    """A layer as stages 1..n, which together compute `result` from `inputs`. Made by `graphsage.sage`."""

    name: str
    features: int
    stages: tuple[Stage, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...] = ("x", "edge_index")

    @property
    def result(self) -> str:
        return self.stages[-1].writes

    @property
    def numbers(self) -> range:
        return range(1, len(self.stages) + 1)

    def block(self, first: int, last: int) -> StageBlock:
        """The stages `first`..`last` as one module, weights shared with the layer.

        Raises `GnnlabError`: there are no such stages.
        """
        if not 1 <= first <= last <= len(self.stages):
            raise GnnlabError(
                f"{self.name}: no block of stages {first}..{last}; write 1 <= first <= last <= {len(self.stages)}"
            )
        later = {name for stage in self.stages[last:] for name in stage.reads} | {self.result}
        return StageBlock(self.stages[first - 1 : last], frozenset(later), self.values).eval()

    def label(self, first: int, last: int) -> str:
        """`3 REDUCE_SUM`, or `1-5`."""
        return f"{first} {self.stages[first - 1].name}" if first == last else f"{first}-{last}"

    def blocks(self, texts: Sequence[str] = ("all",)) -> list[tuple[int, int]]:
        """(first, last) of every text, each once: "3", "1-5", `stages` for each by itself, `all` for every contiguous
        block, n (n + 1) / 2 of them.
        Raises `GnnlabError`: no text, one that is none of these, or one that names a stage that the layer has not.
        """
        every = [(first, last) for first in self.numbers for last in range(first, len(self.stages) + 1)]
        named = {"stages": [(number, number) for number in self.numbers], "all": every}
        known = f"write 1..{len(self.stages)}, a block as 1-{len(self.stages)}, stages, or all"
        if not texts:
            raise GnnlabError(f"no stages; {known}")
        blocks = []
        for text in map(str, texts):
            match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text, re.ASCII)
            one = [(int(match[1]), int(match[2] or match[1]))] if match else named.get(text, [])
            if not one or one[0] not in every:
                raise GnnlabError(f"stages {text!r} are not there; {known}")
            blocks += one
        return list(dict.fromkeys(blocks))

    def bytes_moved(self, number: int, nodes: int, edges: int) -> int:
        """Bytes that stage `number` reads and writes."""
        return self.block(number, number).bytes_moved(nodes, edges)

    def cut_bytes(self, after: int, nodes: int, edges: int) -> int:
        """Bytes that have to go along where the layer is cut behind stage `after`: of values that later stages read.

        0 is the cut before the layer (its inputs), the number of stages the one behind it (its result).
        """
        if not 0 <= after <= len(self.stages):
            raise GnnlabError(f"{self.name}: no cut behind stage {after}; stages are 1..{len(self.stages)}")
        later = {name for stage in self.stages[after:] for name in stage.reads} | {self.result}
        known = {*self.inputs, *(stage.writes for stage in self.stages[:after])}
        return sum(self.values[name].bytes(nodes, edges) for name in known & later)

    def flops(self, first: int, last: int, nodes: int, edges: int) -> int:
        """Arithmetic of the stages `first`..`last`: a sum, product, division, comparison or exponential is one."""
        return sum(stage.flops(nodes, edges) for stage in self.block(first, last).stages)

    def trace(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        """Every value on one graph: `x` (N, features), `edge_index` (2, E) int64, and what each stage writes."""
        known = {"x": x, "edge_index": edge_index}
        for stage in self.stages:
            known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
        return known

    def run(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """All stages: `x` (N, features), `edge_index` (2, E) int64, sources in row 0."""
        return self.trace(x, edge_index)[self.result]

    def reduced_by(self, reduction: str) -> StagedLayer:
        """The same layer, whose sums over targets are written as "index_add" or "scatter_add"; weights are shared.

        Raises `GnnlabError`: another reduction.
        """
        if reduction not in REDUCTIONS:
            raise GnnlabError(f"{self.name}: no reduction {reduction!r}; {' or '.join(REDUCTIONS)} is understood")
        layer = replace(self, stages=tuple(replace(stage, module=copy.copy(stage.module)) for stage in self.stages))
        for stage in layer.stages:
            stage.module.reduction = reduction  # of those that sum; nothing else reads it
        return layer


class Step(nn.Module):
    """A stage without weights: `function` of the values that it takes."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values)


class Reduction(Step):
    """A stage that sums over targets: `function(add, *values)`, `add` in one of the ways in which torch can say it."""

    reduction = REDUCTIONS[0]

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(self.add, *values)

    def add(self, zeros: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        """zeros[target[k]] + rows[k] for each k."""
        if self.reduction == "index_add":
            return zeros.index_add(0, target, rows)
        return zeros.scatter_add(0, target.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows), rows)
