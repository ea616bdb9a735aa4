"""The whole step of a model as a CUDA graph: one launch in place of one for each kernel.

    fast = captured(model, batch)       # forward, and backward where gradients are wanted
    step = training_step(model, optimizer, loss, (x,))      # forward, backward and update
    step(x)

A CUDA graph computes on memory of its own: inputs are copied into it, results out of it. What does not come in through
an input stays as it was when the graph was captured. So edges must be fixed: those of a model that holds them, as a
buffer does. Before a captured step is used it is compared with the model on other inputs.
"""

from __future__ import annotations

import gc
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.measure.conditions import products
from gnnlab.measure.restore import unchanged
from gnnlab.measure.tensors import device_of
from gnnlab.user_code import forked_random
from gnnswap import parity
from gnnswap.errors import one_line
from gnnswap.guards import plain_call
from gnnswap.inputs import tensors_in

NOT_HERE = "not here: CUDA graphs need a CUDA device"
EDGES = "edges may change between calls: a captured step would go on using the first ones"
NUMBERS = "whole numbers or masks go in: what is made of the first ones would be used for all later ones"
MOST = 4  # graphs of one model, each for other shapes or another mode
WARM_UP = 3  # calls before a capture, as torch advises
_PLAIN = (type(None), bool, int, float, str)


def require(model: nn.Module, batch: Any) -> None:
    """Raises `GnnlabError`: what may be captured of `model`, called with `batch`, is not here or not safe."""
    if device_of(model, batch).type != "cuda":
        raise Unavailable(NOT_HERE)
    for tensor in tensors_in(batch):
        if tensor.layout is not torch.strided or (not _copied(tensor) and tensor.dim() == 2 and len(tensor) == 2):
            raise GnnlabError(EDGES)
        if not _copied(tensor):
            raise GnnlabError(NUMBERS)
    for leaf in pytree.tree_leaves(batch):
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            raise GnnlabError(f"a {type(leaf).__name__} goes in, which cannot be copied into a captured step")


def _copied(tensor: Tensor) -> bool:
    """May each call bring other values of it?"""
    return tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex())


class Captured:
    """Replays of a module's forward, to be called as `steps.around` calls it: one graph for each kind of call.

    The module's own code runs where a call is not an ordinary one (traced, under autocast), where other things go in
    than floating-point tensors and plain values, where `MOST` kinds of calls were captured, and where a capture failed,
    for one of the `reasons`. A kind of call: shapes, types and devices of inputs, plain values, modes, and where the
    weights lie in memory. Other attributes of the module count as fixed.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple, _Replay | None] = {}
        self.reasons: list[str] = []

    def __deepcopy__(self, memo: dict) -> Captured:
        return Captured()  # a graph computes with the weights that it was captured with

    def __call__(self, module: nn.Module, forward: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """What `forward(*arguments, **named)` gives."""
        leaves, tree = pytree.tree_flatten((arguments, named))
        usable = all(_copied(leaf) if isinstance(leaf, Tensor) else isinstance(leaf, _PLAIN) for leaf in leaves)
        if not usable or torch.compiler.is_compiling() or not plain_call():
            return forward(*arguments, **named)
        weights = [*module.parameters(), *module.buffers()]
        key = (*map(_kind, leaves), tree, *_modes(module), *((w.data_ptr(), w.requires_grad) for w in weights))
        if key not in self._kept and len(self._kept) < MOST:
            self._kept[key] = self._capture(module, forward, leaves, tree, weights)
        replay = self._kept.get(key)
        return forward(*arguments, **named) if replay is None else replay(leaves)

    def _capture(
        self, module: nn.Module, forward: Callable[..., Any], leaves: list[Any], tree: Any, weights: list[Tensor]
    ) -> _Replay | None:
        try:
            with unchanged(module), forked_random():
                replay = _Replay(forward, leaves, tree, weights)
                if not module.training:  # what is drawn in training differs from call to call
                    _compare(replay, forward, leaves, tree)
                return replay
        except Exception as error:  # whatever the model does that a graph cannot hold
            self.reasons.append(_reason(error))
            return None


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return type(leaf), leaf


def _modes(module: nn.Module) -> Iterator[Any]:
    yield from (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), products())
    yield from (part.training for part in module.modules())


class _Replay:
    """One kind of call: `forward` of the `leaves` of a `tree` as a graph, and its backward pass as another one."""

    def __init__(self, forward: Callable[..., Any], leaves: list[Any], tree: Any, weights: list[Tensor]) -> None:
        own = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        pairs = [(one, leaf) for one, leaf in zip(own, leaves, strict=True) if isinstance(leaf, Tensor)]
        self.inputs = [one.requires_grad_(leaf.requires_grad) for one, leaf in pairs]
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.starts = [one for one in self.inputs if one.requires_grad] + self.weights
        self.number = 0  # of the last pass, which is the one in memory
        arguments, named = pytree.tree_unflatten(own, tree)

        def run() -> Any:
            return forward(*arguments, **named)

        with _apart():
            for _ in range(WARM_UP):
                _backward(_ends(run()), self.starts)
            with _no_waiting():
                _backward(_ends(run()), self.starts)
        self.graph, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            results = run()
        self.results, self.tree = pytree.tree_flatten(results)
        self.held = _held_by(forward)
        self.ends = _ends(results)
        self.directions = [torch.zeros_like(end) for end in self.ends]
        if self.ends:
            with torch.cuda.graph(self.back, pool=self.graph.pool()):
                self.gradients = _backward(self.ends, self.starts, self.directions)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self.ends:
            found = iter(_Replayed.apply(self, given, *(one for one in given if one.requires_grad), *self.weights))
        else:
            found = iter(self.forward(given))
        results = [next(found) if isinstance(result, Tensor) else result for result in self.results]
        return pytree.tree_unflatten(results, self.tree)

    @torch.no_grad()
    def forward(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Copies of the tensors that come out; the next call writes over them."""
        for one, other in zip(self.inputs, given, strict=True):
            one.copy_(other)
        self.graph.replay()
        self.number += 1
        return [result.detach().clone() for result in self.results if isinstance(result, Tensor)]

    @torch.no_grad()
    def backward(self, number: int, directions: Sequence[Tensor]) -> list[Tensor | None]:
        """A gradient for each of `starts`, of pass `number`, whose memory they take."""
        if number != self.number:
            raise RuntimeError(
                "a captured model holds one pass at a time: call backward once, before the next forward pass"
            )
        self.number += 1
        for one, other in zip(self.directions, directions, strict=True):
            one.copy_(other)
        self.back.replay()
        return [None if gradient is None else gradient.clone() for gradient in self.gradients]


class _Replayed(torch.autograd.Function):
    """A forward pass of a `_Replay` that autograd knows."""

    @staticmethod
    def forward(ctx: Any, replay: _Replay, given: Sequence[Tensor], *starts: Tensor) -> tuple[Tensor, ...]:
        results = replay.forward(given)
        ctx.replay, ctx.number = replay, replay.number
        ctx.learns = [result.requires_grad for result in replay.results if isinstance(result, Tensor)]
        ctx.mark_non_differentiable(*(r for r, learns in zip(results, ctx.learns, strict=True) if not learns))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [each for each, learns in zip(directions, ctx.learns, strict=True) if learns]
        if torch.is_grad_enabled():  # gradients of the gradients are wanted
            raise RuntimeError("a captured model has no second derivative: use the model uncaptured")
        return None, None, *ctx.replay.backward(ctx.number, wanted)


def _ends(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]


def _backward(
    ends: Sequence[Tensor], starts: Sequence[Tensor], directions: Sequence[Tensor] | None = None
) -> Sequence[Tensor | None]:
    """Gradients, None where a start has none; nothing where no end wants one."""
    directions = [torch.ones_like(end) for end in ends] if directions is None else directions
    return torch.autograd.grad(ends, starts, directions, allow_unused=True) if ends else ()


@contextmanager
def _apart() -> Iterator[None]:
    """A stream of its own, as a warm-up needs it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, what makes the CPU wait for the device raises: a graph could not hold it."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _held_by(root: Any) -> list[Tensor]:
    """All CUDA tensors that a function or object refers to. What was prepared for edges has to live as long as the
    graph that reads it, also where a cache gives it up."""
    found, seen, waiting = [], set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found += [one] * one.is_cuda
        elif isinstance(one, types.FunctionType):  # not its globals, which are all of a module
            waiting += [one.__closure__, one.__defaults__]
        else:
            waiting += gc.get_referents(one)
    return found


def _reason(error: Exception) -> str:
    """Why a capture failed. Ending one that failed raises an error of its own, so the first counts."""
    while error.__context__ is not None and "captur" in str(error).lower():
        error = error.__context__
    if "synchronizing CUDA operation" not in str(error):
        return one_line(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent != Path(__file__).parent]
    at = f": {Path(frames[-1].filename).name}, line {frames[-1].lineno}, {frames[-1].line}" if frames else ""
    return f"it asks the device for a value in each call, and waits for it{at}"


@torch.no_grad()
def _compare(replay: _Replay, forward: Callable[..., Any], leaves: list[Any], tree: Any) -> None:
    """Raises `GnnlabError` unless the graph gives what `forward` does of inputs of other values."""
    for factor in (1.0, 0.75):
        others = [factor * leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        arguments, named = pytree.tree_unflatten(others, tree)
        wanted, again = (forward(*arguments, **named) for _ in range(2))
        got = replay(others)
        allowed = max(parity.RTOL_FLOAT32, parity.FP32_SLACK * parity.error(again, wanted))
        if not (error := parity.error(got, wanted)) <= allowed:
            raise GnnlabError(f"captured, it is off by {error:.1e} on inputs of other values: it keeps the first ones")


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor], batch: Any
) -> Callable[..., Tensor]:
    """A whole step as one CUDA graph: `loss(model, *inputs)`, its backward pass, and the update of the weights.

    `batch` is a tuple of inputs; what is returned is called with others of the same shapes and gives the loss. The
    `WARM_UP` first steps, on `batch`, are made here. The optimizer has to be capturable: `Adam(..., capturable=True)`.

    Raises:
        GnnlabError: no CUDA device, edges or other whole numbers go in, or the step cannot be captured, with why.
    """
    require(model, batch)
    own = [tensor.detach().clone() for tensor in batch]

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, *own)
        value.backward()
        optimizer.step()
        return value.detach()

    graph = torch.cuda.CUDAGraph()
    try:
        with _apart():
            for _ in range(WARM_UP - 1):
                step()
            with _no_waiting():
                step()
        with torch.cuda.graph(graph):
            value = step()
    except Exception as error:
        raise GnnlabError(_reason(error)) from error

    def replay(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            for one, other in zip(own, inputs, strict=True):
                one.copy_(other)
        graph.replay()
        return value.clone()

    return replay
