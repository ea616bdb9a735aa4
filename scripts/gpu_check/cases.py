"""Cases: drawn graphs, seven layers of PyG, the layouts that PyG takes, and what swap makes of a layer."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, SAGEConv, TransformerConv
from torch_geometric.utils import to_torch_csr_tensor

from gnnswap import swap
from gnnswap.errors import SwapError

from .rows import EDGE_FEATURES, HEADS, Size


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


MAKERS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCN": GCNConv,
    "SAGE": SAGEConv,
    "GIN": lambda inputs, outputs: GINConv(_mlp(inputs, outputs), train_eps=True),
    "GAT": lambda inputs, outputs: GATConv(inputs, outputs // HEADS, HEADS),
    "GATv2": lambda inputs, outputs: GATv2Conv(inputs, outputs // HEADS, HEADS),
    "Transformer": lambda inputs, outputs: TransformerConv(inputs, outputs // HEADS, HEADS),
    "GINE": lambda inputs, outputs: GINEConv(_mlp(inputs, outputs), train_eps=True, edge_dim=EDGE_FEATURES),
}


def one_line(error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def free_memory(device: str) -> None:
    """Give back what dead objects held, so that the next cell finds the card as empty as the first."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def draw_graph(size: Size, device: str) -> Tensor:
    """(2, E) int64 in random order, no edge twice, no self-loop: in-degrees fall as a power, out-degrees are alike.

    The density of a target at rank u of (0, 1) is u^(-1/2) / 2; node N's hub has about E / sqrt(N) edges.
    """
    nodes, edges = size.nodes, size.edges
    draw = torch.Generator(device).manual_seed(1)
    names = torch.randperm(nodes, generator=draw, device=device)
    found = torch.empty(0, dtype=torch.int64, device=device)
    while found.numel() < edges:
        ranks = torch.rand(edges, generator=draw, device=device).square() * nodes
        target = names[ranks.long().clamp_(max=nodes - 1)]
        source = torch.randint(nodes, (edges,), generator=draw, device=device)
        found = torch.cat([found, (source * nodes + target)[source != target]]).unique()
    some = torch.randperm(found.numel(), generator=draw, device=device)[:edges]
    found = found[some]
    return torch.stack([found // nodes, found % nodes])


@dataclass
class Case:
    """A layer of PyG on one graph, and what `swap` made of it.

    x (N, inputs) is a leaf that wants a gradient, edges (2, E), extra () or the features of edges (E, 16).
    """

    name: str
    size: str
    dtype: str
    layer: nn.Module
    x: Tensor
    edges: Tensor
    extra: tuple[Tensor, ...]
    direction: Tensor  # (N, outputs): the gradient of the output
    fast: nn.Module | None = None
    swapped: dict = field(default_factory=dict)  # what the report of swap says

    def key(self) -> dict:
        return {"layer": self.name, "size": self.size, "dtype": self.dtype}

    def own(self, x: Tensor) -> Tensor:
        """PyG as called."""
        return self.layer(x, self.edges, *self.extra)

    def faster(self, x: Tensor) -> Tensor:
        """swap's model."""
        return self.fast(x, self.edges, *self.extra)

    def wanted(self) -> list[Tensor]:
        """What a training step has gradients of: x and all parameters, which swap's model shares."""
        return [self.x, *self.layer.parameters()]

    def call(self, variant: Callable[[Tensor], Tensor], mode: str) -> Callable[[], list]:
        """A call without arguments: a forward pass, or one with all gradients. It returns [output, *gradients]."""

        def forward() -> list:
            with torch.no_grad():
                return [variant(self.x)]

        def training() -> list:
            out = variant(self.x)
            wanted = self.wanted()
            return [out.detach(), *torch.autograd.grad(out, wanted, self.direction, allow_unused=True)]

        return forward if mode == "forward" else training


def make_case(name: str, size: str, shape: Size, dtype: str, edges: Tensor) -> Case:
    """A layer with weights drawn from seed 0 and normal features; biases are drawn, too, which PyG has at zero."""
    nodes, count, inputs, outputs = shape
    kind, device = getattr(torch, dtype), edges.device
    torch.manual_seed(0)
    layer = MAKERS[name](inputs, outputs).to(device)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    x = torch.randn(nodes, inputs, device=device).to(kind).requires_grad_()
    direction = torch.randn(nodes, outputs, device=device).to(kind)
    extra = (torch.randn(count, EDGE_FEATURES, device=device).to(kind),) if name == "GINE" else ()
    return Case(name, size, dtype, layer.to(kind), x, edges, extra, direction)


def swap_case(case: Case) -> None:
    """Give the case what swap makes of its layer. Where the example does not fit, the layer is compared without one."""
    device = case.x.device.type
    synchronize(device)
    start, note, report = time.monotonic(), "", None
    try:
        report = swap(case.layer, (case.x, case.edges, *case.extra))
    except (SwapError, torch.OutOfMemoryError) as problem:
        note = f"swapped without an example: {one_line(problem)}"
    if report is None:  # outside of the block, where no frame of the error holds memory
        free_memory(device)
        report = swap(case.layer)
    case.fast = report.model
    with torch.no_grad():
        case.faster(case.x)
    synchronize(device)
    case.swapped = {"swap_s": round(time.monotonic() - start, 3), "note": note, "report": str(report)}
    case.swapped |= {"replaced": [list(one) for one in report.replaced], "kept": [list(one) for one in report.kept]}


class Layouts:
    """One graph in the layouts that PyG takes. Each is made when it is first asked for."""

    def __init__(self, edges: Tensor, nodes: int) -> None:
        self.edges, self.nodes, self._made = edges, nodes, {}

    def sorted_index(self) -> tuple[EdgeIndex, Tensor]:
        """The edges as an EdgeIndex sorted by target, with its pointers filled in, and their order (E,)."""
        if "EdgeIndex" not in self._made:
            shape = (self.nodes, self.nodes)
            found, order = EdgeIndex(self.edges, sparse_size=shape).sort_by("col")
            self._made["EdgeIndex"] = found.fill_cache_(), order
        return self._made["EdgeIndex"]

    def csr(self) -> tuple[Tensor, Tensor]:
        """The transposed adjacency (N, N) in torch's CSR layout, and the order of its edges (E,)."""
        if "CSR" not in self._made:
            adjacency = to_torch_csr_tensor(self.edges.flip(0), size=(self.nodes, self.nodes))
            self._made["CSR"] = adjacency, (self.edges[1] * self.nodes + self.edges[0]).argsort()
        return self._made["CSR"]

    def variants(self, case: Case) -> dict[str, Callable[[Tensor], Tensor]]:
        """What PyG offers for one layer: as called, with EdgeIndex, with a sparse adjacency (cuSPARSE on a GPU)."""

        def with_layout(layout: Callable[[], tuple[Any, Tensor]]) -> Callable[[Tensor], Tensor]:
            made: list = []

            def variant(x: Tensor) -> Tensor:
                if not made:
                    edges, order = layout()
                    made.append((edges, *(one[order] for one in case.extra)))
                return case.layer(x, *made[0])

            return variant

        return {"PyG": case.own, "EdgeIndex": with_layout(self.sorted_index), "CSR": with_layout(self.csr)}
