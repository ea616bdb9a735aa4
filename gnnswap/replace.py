"""A model of yours with fast layers in place of its own: layers of PyG, and your own.

    from gnnswap import swap

    report = swap(model, (x, edge_index))     # report.model is a copy; print(report) says what was replaced and why
    report.model(x, edge_index)               # the same parameters, the same state_dict; trains, too

A layer is known by trial and not by its name: its fast form runs beside it, in eval and in training, and takes its
place where outputs and all gradients are equal (`equivalence`), and where it is faster on your example. Without one
each layer is tried at its first call, and no clock is asked.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch_geometric.nn.conv import MessagePassing

from gnnlab.profiling.context import ProfilingContext
from gnnlab.profiling.memory import hold
from gnnlab.profiling.races import RTOL_FLOAT32, Reference
from gnnlab.rewrite import proof
from gnnlab.user_code import guarded
from gnnswap import fused_layers
from gnnswap.equivalence import copied
from gnnswap.errors import SwapError, one_line
from gnnswap.inputs import bind, call, in_float64, tensors_in
from gnnswap.layer import DIRECT, NONE, SUM, TILES, make_fast, original_class
from gnnswap.neighbours import GraphCache

LEAST_GAIN = 1.02  # geometric mean of forward and training, below which a layer stays as it was
MOST_LOSS = 0.97  # of either
ROUNDS, SECONDS = 5, 0.05  # of the clock, for each layer and mode; one round always
CLEAR = 2.0  # a gain that needs no second round
LONG_SECONDS = 1.0  # a layer of PyG that takes so long is timed once, and forward alone
UNDECIDED = "tried at its first call"


class TiledAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` that goes by tiles where no attention weights are asked for.

    Attention of all nodes to all others, as GPS has it: in inference torch's takes a path that makes a matrix of nodes
    by nodes in memory, and with a mask, also one that masks nothing, adds to it. What it does in training,
    `scaled_dot_product_attention` in tiles, is several times as fast.
    """

    _original = nn.MultiheadAttention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        nested = any(getattr(one, "is_nested", False) for one in (query, key, value))
        if not (need_weights or nested or torch.compiler.is_compiling() or torch.jit.is_tracing()):
            if key_padding_mask is not None and key_padding_mask.dtype is torch.bool and not key_padding_mask.any():
                key_padding_mask = None
            if query is key and key is value:  # a query of its own rules out the path with the matrix
                query = query.view_as(query)
        return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask, **named)


@dataclass(frozen=True)
class ForwardCost:
    """Of the whole model on the example: seconds of a forward pass in eval, and bytes held at its peak."""

    seconds: float
    peak_bytes: int


@dataclass
class SwapReport:
    """The new model, what was replaced in it and what was not. Paths are those of `named_modules`, "" the model.

    `parity_error`: the largest relative difference of the outputs on the example, None without one. `before`, `after`:
    what a forward pass on the example costs.
    """

    model: nn.Module
    _refused: tuple[tuple[str, str, str], ...] = ()
    parity_error: float | None = None
    before: ForwardCost | None = None
    after: ForwardCost | None = None

    @property
    def replaced(self) -> tuple[tuple[str, str, str], ...]:
        """(path, class, mechanism) of the layers that are fast, or are tried at their first call."""
        layers = [(path, layer, _mechanism(layer)) for path, layer in self.model.named_modules()]
        return tuple((path, _class(layer), how) for path, layer, how in layers if how not in (None, NONE))

    @property
    def kept(self) -> tuple[tuple[str, str, str], ...]:
        """(path, class, why) of the layers that stay as they were."""
        tried = [(path, layer) for path, layer in self.model.named_modules() if _mechanism(layer) == NONE]
        return self._refused + tuple((path, _class(layer), _why(layer)) for path, layer in tried)

    def __str__(self) -> str:
        lines = []
        for path, kind, how in self.replaced:
            why = getattr(self.model.get_submodule(path), "_fast", None)
            why = why.why.get(DIRECT) if why and how == SUM else ""
            lines.append(f"replaced {path or 'the model'} ({kind}): {how}" + (f" ({DIRECT}: {why})" if why else ""))
        lines += [f"kept {path or 'the model'} ({kind}): {why}" for path, kind, why in self.kept]
        if not self.replaced:
            return "\n".join([*lines, "nothing to replace" if lines else "nothing to replace: no layers of PyG"])
        if self.parity_error is None:
            return "\n".join([*lines, "outputs not compared: no example given"])
        lines.append(f"outputs differ by {self.parity_error:.1e}")
        if self.before and self.after:
            gain = self.before.seconds / self.after.seconds
            peaks = f"{self.before.peak_bytes / 2**20:.1f} MiB before, {self.after.peak_bytes / 2**20:.1f} after"
            times = f"{1e3 * self.before.seconds:.3g} ms before, {1e3 * self.after.seconds:.3g} after ({gain:.2f}x)"
            lines += [f"a forward pass on the example: {times}", f"memory at its peak: {peaks}"]
        lines += fused_layers.compilation()
        return "\n".join(lines)


def swap(model: nn.Module, example: Any = None, tolerance: float = RTOL_FLOAT32) -> SwapReport:
    """A copy of `model` in which every layer that has a faster form, equal to it by trial, takes that form.

    `example` is what the model is called with: a tuple is spread, a mapping gives keywords, a PyG `Data` or
    `HeteroData` gives what forward names or is itself the argument, anything else is one argument. On it the outputs
    of both models must be equal in eval mode, within `tolerance` of the largest; where they are not, nothing is
    replaced. Parameters keep their names, so checkpoints load into either model; layers share the graphs that they
    prepared. Gradients of gradients are refused. A model whose weights have no shape yet is called on the example
    first, which gives them one.

    Raises:
        SwapError: this is no model, it cannot be copied, or it does not run on the example.
    """
    if not isinstance(model, nn.Module):
        raise SwapError(f"swap needs a torch.nn.Module, not {type(model).__name__}")
    layers = [(p, m) for p, m in model.named_modules() if isinstance(m, (MessagePassing, nn.MultiheadAttention))]
    already = {path for path, layer in layers if hasattr(layer, "_fast") or type(layer) is TiledAttention}
    refused = tuple((path, _class(layer), "already fast") for path, layer in layers if path in already)
    todo = [path for path, _ in layers if path not in already]
    if not todo:
        return SwapReport(model, refused)
    batch = None if example is None else bind(model, example, type(model).__name__)
    if batch is not None and any(map(is_lazy, model.parameters())):
        with ProfilingContext(model), torch.no_grad(), guarded(f"{type(model).__name__} does not run on the example:"):
            call(model, batch)
    try:
        fast = copied(model)
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise SwapError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error
    graphs = GraphCache()
    for layer in map(fast.get_submodule, todo):
        if isinstance(layer, MessagePassing):
            make_fast(layer, graphs)
        elif type(layer) is nn.MultiheadAttention:
            layer.__class__ = TiledAttention
    return SwapReport(fast, refused) if batch is None else _tried(model, fast, batch, tolerance, refused)


def _tried(model: nn.Module, fast: nn.Module, batch: Any, tolerance: float, refused: tuple) -> SwapReport:
    with ProfilingContext(model), ProfilingContext(fast):
        before, after = (_Timed(partial(call, one, batch)) for one in (model, fast))
        try:
            reference = Reference(before, "your model")
        except Exception as error:  # of the user's model
            raise SwapError(f"{type(model).__name__} does not run on the example: {one_line(error)}") from error
        try:
            inputs = _inputs(fast, batch)
        except Exception as error:  # of the user's model, which may ask what its layers are
            return SwapReport(model, (*refused, ("", _class(model), f"with fast layers: {one_line(error)}")))
        refused += tuple(_reverted(fast, inputs))
        try:
            error = reference.error_of(after, tolerance, "the model with fast layers")
            error = error if error <= tolerance else min(error, _beyond_rounding(model, fast, batch))
            why = "" if error <= tolerance else f"outputs differ by {error:.1e} relative, allowed is {tolerance:.0e}"
        except Exception as problem:  # two results for one input, other types, a model that asks for its layers
            why = one_line(problem)
        if why:
            return SwapReport(model, (*refused, ("", _class(model), why)))
        report = SwapReport(fast, refused, error)
        if report.replaced:
            _race(before, after)
            if _whole_slower(before, after):  # a loss is looked at twice
                _race(before, after)
            why = _whole_slower(before, after)
            if why:
                return SwapReport(model, (*refused, ("", _class(model), why)))
            report.before, report.after = before.cost(), after.cost()
    return report


def _race(before: _Timed, after: _Timed) -> None:
    """Times both in turns."""
    end, rounds = time.perf_counter() + SECONDS, 0
    while rounds < ROUNDS and time.perf_counter() < end:
        before(), after()
        rounds += 1


def _whole_slower(before: _Timed, after: _Timed) -> str:
    """Why the clock keeps the whole model as it was; empty where fast layers, each ahead by itself, gain."""
    gain = min(before.seconds) / min(after.seconds)
    return f"with fast layers the whole model is slower here: {gain:.2f}x forward" if gain < MOST_LOSS else ""


class _Timed:
    """A forward pass without gradients, and the seconds that each of its calls took."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run, self.seconds = torch.no_grad()(run), []

    def __call__(self) -> Any:
        start = time.perf_counter()
        out = self.run()
        self.seconds.append(time.perf_counter() - start)
        return out

    def cost(self) -> ForwardCost:
        return ForwardCost(min(self.seconds), hold(self.run, torch.device("cpu")).peak)


def _beyond_rounding(model: nn.Module, fast: nn.Module, batch: Any) -> float:
    """The difference by the rule of `proof`: float64 is the truth, and the model's own float32 says how far off from it
    a right result may be. Infinite where the model does not run in float64."""

    def outputs(one: nn.Module, given: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {f"output {at}": out.double().numpy() for at, out in enumerate(tensors_in(call(one, given)))}

    try:
        exact = outputs(copied(model).double(), in_float64(batch))
    except Exception:  # a forward that makes float32 tensors of its own
        return math.inf
    return proof.difference(outputs(model, batch), outputs(fast, batch), exact)


def _inputs(fast: nn.Module, batch: Any) -> dict[str, tuple[tuple, dict]]:
    """What each fast layer is called with, by its path; the call has every layer tried."""
    inputs: dict[str, tuple[tuple, dict]] = {}

    def note(path: str) -> Callable:
        return lambda layer, args, named: inputs.setdefault(path, (args, named)) and None

    layers = [(path, layer) for path, layer in fast.named_modules() if hasattr(layer, "_fast")]
    hooks = [layer.register_forward_pre_hook(note(path), with_kwargs=True) for path, layer in layers]
    try:
        with torch.enable_grad():  # to see which inputs want gradients
            call(fast, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def _reverted(fast: nn.Module, inputs: dict[str, tuple[tuple, dict]]) -> Iterator[tuple[str, str, str]]:
    """Layers that are not equal, or not faster, are given back their class: (path, class, why)."""
    for path, layer in list(fast.named_modules()):
        if not hasattr(layer, "_fast"):
            continue
        why = "the example does not reach it" if path not in inputs else ""
        if not why:
            why = _why(layer) if layer._fast.mechanism in (None, NONE) else _slower(layer, *inputs[path])
        if why:
            layer.__class__ = original_class(layer)
            del layer._fast, layer._number
            yield path, _class(layer), why


def _slower(layer: nn.Module, args: tuple, named: dict) -> str:
    """Why the clock keeps the layer as it was; empty where its fast form gains."""
    args, named = pytree.tree_map_only(Tensor, _leaf, (args, named))
    forward, seconds = _ratio(layer, lambda: layer(*args, **named), torch.no_grad)
    wanted = [t for t in tensors_in((args, named)) if t.requires_grad]
    wanted += [p for p in layer.parameters() if p.requires_grad]
    training = forward
    if wanted and seconds <= LONG_SECONDS:
        training, _ = _ratio(layer, lambda: _step(layer(*args, **named), wanted), torch.enable_grad)
    if (forward * training) ** 0.5 < LEAST_GAIN or min(forward, training) < MOST_LOSS:
        return f"its fast form is no faster here: {forward:.2f}x forward, {training:.2f}x in training"
    return ""


def _step(out: Any, wanted: list[Tensor]) -> None:
    ends = [t for t in tensors_in(out) if t.requires_grad]
    if ends:
        torch.autograd.grad(ends, wanted, [torch.ones_like(t) for t in ends], allow_unused=True)


def _ratio(layer: nn.Module, run: Callable[[], Any], mode: Callable) -> tuple[float, float]:
    """(time of the layer as it was over that of its fast form, the seconds that it took as it was)."""
    with mode():
        run(), run()  # the fast form prepares what it keeps
        end, ratios = time.perf_counter() + SECONDS, []
        while len(ratios) < ROUNDS and (not ratios or time.perf_counter() < end):
            fast = min(_seconds(run), _seconds(run))
            with _as_it_was(layer):
                own = _seconds(run)
            ratios.append(own / fast)
            if ratios[0] >= CLEAR or own > LONG_SECONDS:
                break
    return statistics.median(ratios), own


@contextmanager
def _as_it_was(layer: nn.Module) -> Iterator[None]:
    fast, layer.__class__ = type(layer), original_class(layer)
    try:
        yield
    finally:
        layer.__class__ = fast


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _leaf(tensor: Tensor) -> Tensor:
    """One whose gradient flows no further; tensors that are no results stay the same objects."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)


def _mechanism(layer: nn.Module) -> str | None:
    if type(layer) is TiledAttention:
        return TILES
    state = getattr(layer, "_fast", None)
    return None if state is None else state.mechanism or UNDECIDED


def _why(layer: nn.Module) -> str:
    """What the trials found wrong, in a line."""
    why = "; ".join(f"{door}: {what}" for door, what in layer._fast.why.items() if what)
    return why or "its own aggregation: no sum, mean or maximum over neighbours"


def _class(layer: nn.Module) -> str:
    return original_class(layer).__name__
