"""The equivalence test: does a fast implementation give what the layer gives? Both run on copies, in float64.

    difference(layer, own, fast, arguments)     # (largest relative difference, what differs)

It runs in eval mode and in training, with equal seeds, on drawn graphs with isolated nodes, repeated edges and
self-loops, and on edges of the user's graph with their values; arguments that are floats take several values. The fast
implementation is called several times: the first call prepares, later ones use its caches. Compared are outputs, first
and second gradients of every input and parameter, tensors that the layer stores in itself, and the next random number;
inputs must not be written to. The user's generator and model stay as they are.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnnswap.errors import SwapError, one_line
from gnnswap.inputs import guarded_sequential
from gnnswap.parity import GRADIENT_FLOOR, NOTHING_FINITE, Deviation, error, largest
from gnnswap.probe import NotLinear

PYG = "torch_geometric."
ALLOWED = 1e-9  # relative difference in float64
CALLS = 3  # of a fast implementation: it prepares, it has seen the graph, it uses its caches
SMALL_GRAPH, GRAPH = (23, 19, 90), (66, 61, 130)  # nodes at the source, at the target, edges
OWN_EDGES = 200  # of the user's graph, with the values that they carry


@dataclass(frozen=True)
class Case:
    """One comparison: in training or eval; on a drawn graph (sources, targets, edges) or (None) on edges of the user's;
    with inputs that want no gradients (`fixed`); with second derivatives; with floats times `factor`."""

    training: bool
    graph: tuple[int, int, int] | None
    fixed: bool = False
    second: bool = False
    factor: float = 1.0


CASES = (
    Case(False, SMALL_GRAPH, second=True),
    Case(False, GRAPH, fixed=True, factor=0.5),
    Case(True, SMALL_GRAPH, fixed=True, factor=2.0),
    Case(True, GRAPH, second=True),
    Case(False, None),
)

Run = Callable[[nn.Module, dict[str, Any]], Tensor]  # (a copy of the layer, arguments drawn for it) -> its output


class Arguments:
    """Arguments of a call, and how to draw others like them for another graph.

    `sources`, `targets`, `edges`: the sizes of the graph of the call. Tensors are known by their first dimension: with
    a row an edge they get rows of those given, with a row a node normal numbers. `edge_index` is drawn, all else
    stays.
    """

    def __init__(self, given: dict[str, Any], sources: int, targets: int, edges: int, nodes_first: tuple = ()) -> None:
        self.given, self.sizes = given, {"edges": edges, "sources": sources, "targets": targets}
        self.square = sources == targets
        self.nodes_first = nodes_first  # arguments that are of nodes whatever their size

    def drawn(self, run: Case, seed: int) -> dict[str, Any]:
        """Arguments for a case, in float64. With `fixed` they want no gradients, so that results of them may be cached,
        and half of the features of nodes are zero."""
        generator = torch.Generator().manual_seed(seed)
        if run.graph is None:
            return self._own(generator)
        nodes, others, edges = run.graph
        new = {"edges": edges, "sources": nodes, "targets": nodes if self.square else others}

        def one(name: str, value: Any) -> Any:
            if isinstance(value, float):
                return value * run.factor
            if not isinstance(value, Tensor):
                return value
            if name == "edge_index":
                return edges_of(new, self.square, generator).to(value)
            return self._tensor(name, value, new, run.fixed, generator)

        drawn = {name: pytree.tree_map(partial(one, name), value) for name, value in self.given.items()}
        if self.given.get("size") is not None:
            drawn["size"] = (new["sources"], new["targets"])
        return drawn

    def _own(self, generator: torch.Generator) -> dict[str, Any]:
        """Some edges of the user's graph and the nodes at their ends, with their values, in float64."""
        edge_index = self.given["edge_index"].detach()
        edges = torch.randperm(edge_index.shape[1], generator=generator)[:OWN_EDGES].to(edge_index.device)
        if self.square:  # as in `edges_of`, no node has two self-loops
            source, target = edge_index.index_select(1, edges)
            ends = zip(source.tolist(), target.tolist(), strict=True)
            first = {node: place for place, (node, other) in reversed([*enumerate(ends)]) if node == other}
            stays = source != target
            stays[list(first.values())] = True
            edges = edges[stays]
        ends = edge_index.index_select(1, edges).long()
        if self.square:
            kept, new = ends.unique(return_inverse=True)
            sources = targets = kept
        else:
            (sources, first), (targets, second) = (row.unique(return_inverse=True) for row in ends)
            new = torch.stack([first, second])
        rows = {"edges": edges, "sources": sources, "targets": targets}

        def one(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if name == "edge_index":
                return new.to(value.dtype)
            kind, value = self._kind(name, value), value.detach()
            if kind is not None:
                value = value.index_select(0, rows[kind])
            elif value.dim() == 3 and value.shape[1] == self.sizes["sources"]:  # a static graph (B, N, F)
                value = value.index_select(1, sources)
            value = value.clone()
            return value.double().requires_grad_() if value.is_floating_point() else value

        own = {name: pytree.tree_map(partial(one, name), value) for name, value in self.given.items()}
        if self.given.get("size") is not None:
            own["size"] = (len(sources), len(targets))
        return own

    def _kind(self, name: str, value: Tensor) -> str | None:
        kinds = ("sources", "targets") if name in self.nodes_first else ("edges", "sources", "targets")
        return next((k for k in kinds if value.dim() > 0 and value.shape[0] == self.sizes[k]), None)

    def _tensor(self, name: str, value: Tensor, new: dict, fixed: bool, generator: torch.Generator) -> Tensor:
        value = value.detach().clone()
        kind = self._kind(name, value)
        if kind is None and value.dim() == 3 and value.shape[1] == self.sizes["sources"]:  # a static graph (B, N, F)
            shape = value.shape[0], new["sources"], value.shape[2]
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return drawn.to(value.device).requires_grad_(not fixed)
        if kind is None:
            return value.double() if value.is_floating_point() else value
        places = torch.randint(value.shape[0], (new[kind],), generator=generator)
        rows = value.index_select(0, places.to(value.device))
        if not rows.is_floating_point():
            return rows
        if kind == "edges":
            return rows.double().requires_grad_(not fixed)
        rows = torch.randn(rows.shape, generator=generator, dtype=torch.float64)  # drawn on the CPU on all devices
        if fixed:
            return (rows * (torch.rand(rows.shape, generator=generator) < 0.5)).to(value.device)
        return rows.to(value.device).requires_grad_()


def edges_of(sizes: dict[str, int], square: bool, generator: torch.Generator) -> Tensor:
    """(2, E): some edges twice, some self-loops, isolated targets. No node has two self-loops: which of their weights
    PyG's `add_remaining_self_loops` takes is undefined."""
    edges, sources, targets = sizes["edges"], sizes["sources"], sizes["targets"]
    drawn = torch.stack([
        torch.randint(sources, (edges,), generator=generator), torch.randint(targets - 3, (edges,), generator=generator)
    ])  # fmt: skip
    if square:
        loops = drawn[0] == drawn[1]
        drawn[0, loops] = (drawn[0, loops] + 1) % sources
    drawn[:, 1], drawn[:, 3] = drawn[:, 0], drawn[:, 2]
    if square:
        drawn[:, 5:9] = torch.arange(4)
    return drawn


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, but for what is in `memo`. Tensors with a gradient history, which torch cannot copy and some layers
    keep after training, are detached."""
    kept = [value for one in module.modules() for value in vars(one).values() if isinstance(value, Tensor)]
    memo = {id(value): value.detach().clone() for value in kept if not value.is_leaf} | (memo or {})
    # PyG 2.6 copies its linear layers by making new ones: without hooks, and with weights of their own
    copiers = {one: getattr(type(one), "__deepcopy__", None) for one in module.modules()}
    linears = [one for one, copier in copiers.items() if getattr(copier, "__module__", "").startswith(PYG)]
    memo |= {id(one): object.__new__(type(one)) for one in linears}
    with guarded_sequential():
        for one in linears:
            memo[id(one)].__dict__.update(copy.deepcopy(vars(one), memo))
        return copy.deepcopy(module, memo)


def difference(layer: nn.Module, own: Run, fast: Sequence[Run], arguments: Arguments) -> tuple[float, str]:
    """The largest relative difference between `own` and each run in `fast`, called in turn on a copy of `layer`, and
    what differs; infinite where one of them raises.

    It runs on a thread of its own, without the caller's autocast, hooks on saved tensors, inference mode and modes.
    """
    if threading.current_thread().name == _THREAD:  # of a layer within a layer
        return _difference(layer, own, fast, arguments)
    answer: list[tuple[float, str]] = []
    problems: list[BaseException] = []
    device = arguments.given["edge_index"].device
    cuda = [device] if device.type == "cuda" else []
    stream = torch.cuda.current_stream(device) if cuda else None

    def run() -> None:
        try:
            with _ONE_AT_A_TIME, torch.random.fork_rng(devices=cuda), torch.cuda.stream(stream):
                answer.append(_difference(layer, own, fast, arguments))
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name=_THREAD)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return answer[0]


_THREAD = "gnnswap-equivalence"
_ONE_AT_A_TIME = threading.Lock()  # each seeds the generator of the process, and restores it


def _difference(layer: nn.Module, own: Run, fast: Sequence[Run], arguments: Arguments) -> tuple[float, str]:
    try:
        other = copied(layer).double().requires_grad_(True)
    except Exception as error:  # modules may refuse in any way
        return math.inf, f"it cannot be copied: {one_line(error)}"
    worst = 0.0, ""
    for run in CASES:
        given = arguments.drawn(run, seed=1)
        worst = max(worst, _compare(other.train(run.training), own, fast, given, run.second))
        if worst[0] > ALLOWED:
            return worst[0], f"{worst[1]} in {'training' if run.training else 'eval'}"
    return worst


def _compare(layer: nn.Module, own: Run, fast: Sequence[Run], given: dict[str, Any], second: bool) -> tuple[float, str]:
    buffers = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        expected = _values(layer, own, given, second)
    except Exception as error:  # of the layer's own code, on a graph that it was not made for
        return math.inf, f"the layer itself fails on a drawn graph: {one_line(error)}"
    # a gradient that is zero but for rounding, such as that of a bias before a softmax, is compared at this scale
    floor = GRADIENT_FLOOR * largest([g for n, g in expected.items() if "gradient" in n])
    worst = Deviation(0.0)
    for run in fast:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        try:
            values = _values(layer, run, given, any("second" in name for name in expected))
        except NotLinear as error:
            return math.inf, str(error)
        except Exception as error:  # of the kernel or of the layer's own code
            return math.inf, str(error) if isinstance(error, SwapError) else f"it fails: {one_line(error)}"
        for name in sorted(expected.keys() | values.keys()):
            worst = max(worst, _deviation(name, expected.get(name), values.get(name), floor))
        if worst > ALLOWED:
            break
    return float(worst), f"{worst.of}: {worst.why}" if worst.why else f"{worst.of} differs by {worst:.1e}"


def _values(layer: nn.Module, run: Run, given: dict[str, Any], second: bool) -> dict[str, Tensor]:
    inputs = {name: t for name, t in _tensors(given) if t.is_floating_point()}
    versions = {name: t._version for name, t in inputs.items()}
    device = given["edge_index"].device
    torch.default_generator.manual_seed(3)
    if device.type == "cuda":
        torch.cuda.manual_seed(3)
    out = run(layer, given)
    values = {"the next random number": torch.cat([torch.rand(1), torch.rand(1, device=device).cpu()])}
    if not isinstance(out, Tensor):
        raise TypeError(f"the layer gives a {type(out).__name__}")
    if any(t._version != versions[name] for name, t in inputs.items()):
        raise ValueError("it writes to its inputs")
    if out.requires_grad:
        wanted = {f"argument {name}": t for name, t in inputs.items() if t.requires_grad}
        wanted |= dict(layer.named_parameters())
        starts = list(wanted.values())
        direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
        if second:
            gradients = torch.autograd.grad(
                out.square().sum() + (out * direction).sum(), starts, create_graph=True, allow_unused=True
            )
            values |= _second(gradients, wanted)
        else:
            gradients = torch.autograd.grad(out, starts, direction, allow_unused=True)
        values |= {f"the gradient of {n}": g.detach() for n, g in zip(wanted, gradients, strict=True) if g is not None}
    values |= {f"what it leaves in {name}": v.detach() for name, v in vars(layer).items() if isinstance(v, Tensor)}
    return values | {"the output": out.detach()}


def _second(gradients: Sequence[Tensor | None], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the squares of gradients; none where torch has no second derivative of what the layer calls."""
    ends = [g for g in gradients if g is not None and g.requires_grad]
    if not ends:
        return {}
    try:
        squares = sum(g.square().sum() for g in ends)
        second = torch.autograd.grad(squares, list(wanted.values()), retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "not implemented" in str(error) or "not differentiable" in str(error):
            return {}
        raise
    return {f"the second gradient of {n}": g for n, g in zip(wanted, second, strict=True) if g is not None}


def _deviation(name: str, expected: Tensor | None, value: Tensor | None, floor: float) -> Deviation:
    if expected is None or value is None:  # no gradient, or one of zeros
        one = value if expected is None else expected
        return Deviation(math.inf, name, "it is missing") if one.any() else Deviation(0.0)
    deviation = error(value, expected, floor=max(floor, 1e-12), name=name)
    if deviation.why == NOTHING_FINITE:  # both hold nothing but the same NaN and infinity
        return Deviation(0.0)
    return deviation


def _tensors(given: dict[str, Any]) -> list[tuple[str, Tensor]]:
    return [
        (f"{name}{place or ''}", one)
        for name, value in given.items()
        for place, one in enumerate(value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(one, Tensor)
    ]
