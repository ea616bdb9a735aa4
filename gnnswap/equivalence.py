"""Does a fast form give what the layer gives? Found by trial: both run beside each other on drawn graphs, in float64.

    difference(layer, own, fast, arguments)     # (largest relative difference, what differs)

A trial runs in eval mode and in training, with equal seeds, on graphs with isolated nodes, repeated edges and
self-loops. The fast form is called several times (the first call prepares, later ones use what is cached). Compared are
outputs, the gradient of every input and parameter, what the layer leaves in itself, and what is drawn next from the
random generator; inputs must not be written to. The user's generator and model stay as they are. A trial cannot see
what no number in it reaches, such as clamp(max=1e6).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnnswap import sparse
from gnnswap.errors import SwapError, one_line
from gnnswap.inputs import guarded_sequential

ALLOWED = 1e-9  # relative difference in float64
SMALL = 1e-4  # of the largest gradient
CALLS = 3  # of a form: it prepares, it has seen the graph, it uses what is cached
SMALL_GRAPH, GRAPH = (23, 19, 90), (66, 61, 130)  # nodes at the source, at the target, edges: the first is made dense
# (in training?, graph, do inputs want no gradients?): any two of them meet in all ways
RUNS = ((False, SMALL_GRAPH, False), (False, GRAPH, True), (True, SMALL_GRAPH, True), (True, GRAPH, False))

Run = Callable[[nn.Module, dict[str, Any]], Tensor]  # of a copy of the layer and of arguments drawn for it


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

    def drawn(self, graph: tuple[int, int, int], fixed: bool, seed: int) -> dict[str, Any]:
        """Arguments for a graph, in float64. With `fixed` they want no gradients, so that what is made of them may be
        cached, and half of what rows of nodes hold is zero."""
        generator = torch.Generator().manual_seed(seed)
        nodes, others, edges = graph
        new = {"edges": edges, "sources": nodes, "targets": nodes if self.square else others}

        def one(name: str, value: Tensor) -> Tensor:
            if name == "edge_index":
                return edges_of(new, self.square, generator).to(value.dtype)
            return self._tensor(name, value, new, fixed, generator)

        drawn = {name: pytree.tree_map_only(Tensor, partial(one, name), value) for name, value in self.given.items()}
        if self.given.get("size") is not None:
            drawn["size"] = (new["sources"], new["targets"])
        return drawn

    def _kind(self, name: str, value: Tensor) -> str | None:
        kinds = ("sources", "targets") if name in self.nodes_first else ("edges", "sources", "targets")
        return next((k for k in kinds if value.dim() > 0 and value.shape[0] == self.sizes[k]), None)

    def _tensor(self, name: str, value: Tensor, new: dict, fixed: bool, generator: torch.Generator) -> Tensor:
        value = value.detach().clone()
        kind = self._kind(name, value)
        if kind is None and value.dim() == 3 and value.shape[1] == self.sizes["sources"]:  # a static graph (B, N, F)
            shape = value.shape[0], new["sources"], value.shape[2]
            return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(not fixed)
        if kind is None:
            return value.double() if value.is_floating_point() else value
        rows = value.index_select(0, torch.randint(value.shape[0], (new[kind],), generator=generator))
        if not rows.is_floating_point():
            return rows
        if kind == "edges":
            return rows.double().requires_grad_(not fixed)
        rows = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        return rows * (torch.rand(rows.shape, generator=generator) < 0.5) if fixed else rows.requires_grad_()


def edges_of(sizes: dict[str, int], square: bool, generator: torch.Generator) -> Tensor:
    """(2, E): some edges twice, some self-loops, isolated targets. No node has two self-loops, whose weights PyG's
    `add_remaining_self_loops` leaves to chance."""
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


def copied(module: nn.Module) -> nn.Module:
    """A deep copy; torch makes none of results that want a gradient, which some layers keep when they were trained."""
    held = [value for one in module.modules() for value in vars(one).values() if isinstance(value, Tensor)]
    with guarded_sequential():
        return copy.deepcopy(module, {id(value): value.detach().clone() for value in held if not value.is_leaf})


def difference(layer: nn.Module, own: Run, forms: Sequence[Run], arguments: Arguments) -> tuple[float, str]:
    """The largest relative difference between what `own` and each of `forms`, called in turn, make of a copy of
    `layer`, and what differs; infinite where one of them raises."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        sparse.of_any_size(),
    ):
        try:
            other = copied(layer).double().requires_grad_(True)
        except Exception as error:  # modules may refuse in any way
            return math.inf, f"it cannot be copied: {one_line(error)}"
        worst = 0.0, ""
        for training, graph, fixed in RUNS:
            given = arguments.drawn(graph, fixed, seed=1)
            worst = max(worst, _one(other.train(training), own, forms, given))
            if worst[0] > ALLOWED:
                return worst[0], f"{worst[1]} in {'training' if training else 'eval'}"
        return worst


def _one(layer: nn.Module, own: Run, forms: Sequence[Run], given: dict[str, Any]) -> tuple[float, str]:
    buffers = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        expected = _values(layer, own, given)
    except Exception as error:  # of the layer's own code, on a graph that it was not made for
        return math.inf, f"the layer itself fails on a drawn graph: {one_line(error)}"
    # a gradient that is zero but for rounding, as that of a bias before a softmax, is compared with the others
    least = SMALL * max((float(g.abs().max()) for n, g in expected.items() if "gradient" in n and g.numel()), default=1)
    for form in forms:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        try:
            values = _values(layer, form, given)
        except Exception as error:  # whatever the form or the layer's own code raises
            return math.inf, str(error) if isinstance(error, SwapError) else f"it fails: {one_line(error)}"
        names = expected.keys() | values.keys()
        error = max(_off(name, expected.get(name), values.get(name), least) for name in names)
        if error[0] > ALLOWED:
            return error
    return error


def _values(layer: nn.Module, run: Run, given: dict[str, Any]) -> dict[str, Tensor]:
    inputs = {name: t for name, t in _tensors(given) if t.is_floating_point()}
    versions = {name: t._version for name, t in inputs.items()}
    torch.default_generator.manual_seed(3)
    out = run(layer, given)
    values = {"the next random number": torch.rand(1)}
    if not isinstance(out, Tensor):
        raise TypeError(f"the layer gives a {type(out).__name__}")
    if any(t._version != versions[name] for name, t in inputs.items()):
        raise ValueError("it writes to its inputs")
    if out.requires_grad:
        wanted = {f"argument {name}": t for name, t in inputs.items() if t.requires_grad}
        wanted |= dict(layer.named_parameters())
        direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        gradients = torch.autograd.grad(out, list(wanted.values()), direction, allow_unused=True)
        values |= {f"the gradient of {n}": g for n, g in zip(wanted, gradients, strict=True) if g is not None}
    values |= {f"what it leaves in {name}": v.detach() for name, v in vars(layer).items() if isinstance(v, Tensor)}
    return values | {"the output": out.detach()}


def _off(name: str, expected: Tensor | None, value: Tensor | None, least: float) -> tuple[float, str]:
    if expected is None or value is None:  # no gradient, or one of zeros
        one = value if expected is None else expected
        return (0.0, "") if not one.any() else (math.inf, f"{name} is missing")
    if expected.shape != value.shape:
        return math.inf, f"{name} has another shape"
    if expected.numel() == 0:
        return 0.0, ""
    expected, value = expected.double(), value.double()  # what is left may be a mask
    error = float((expected - value).abs().max() / expected.abs().max().clamp_min(max(least, 1e-12)))
    return (math.inf if math.isnan(error) else error), f"{name} differs by {error:.1e}"


def _tensors(given: dict[str, Any]) -> list[tuple[str, Tensor]]:
    return [
        (f"{name}{place or ''}", one)
        for name, value in given.items()
        for place, one in enumerate(value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(one, Tensor)
    ]
