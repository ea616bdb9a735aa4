"""`swap`: your model with faster message-passing layers, PyG's and your own.

    >>> from torch_geometric.nn import GCN
    >>> x, edge_index = torch.randn(100, 16), torch.randint(100, (2, 400))
    >>> report = swap(GCN(16, 32, num_layers=2, out_channels=7), (x, edge_index), measure=False)
    >>> report.replaced  # print(report) also says why the rest was kept, time and memory
    (('convs.0', 'GCNConv', 'own kernel'), ('convs.1', 'GCNConv', 'own kernel'))
    >>> report.model(x, edge_index).shape  # the same parameters, the same state_dict; trains, too
    torch.Size([100, 7])

Each layer is compared with a faster implementation, in eval and in training (`equivalence`). It is replaced if outputs
and all gradients are equal, and if the implementation is faster on your example. Without an example each layer is
compared at its first call, and nothing is timed. docs/swap.md lists the layers, and the calls in which the original's
code runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch_geometric.nn.conv import MessagePassing

from gnnswap import backends, compile_ops, parity
from gnnswap.cost import LEAST_ROUNDS, LONG_SECONDS, Ratio, compare_times, peak_memory
from gnnswap.equivalence import copied
from gnnswap.errors import SwapError, one_line, raised_at
from gnnswap.fused_layers import compilation
from gnnswap.inputs import bind, call, cloned, in_float64, tensors_in
from gnnswap.layer import DIRECT, NONE, SUM, TILES, Caches, as_it_was, make_fast, make_original, original_class

LEAST_GAIN = 1.02  # geometric mean of forward and training; a layer that gains less is kept
SECONDS = 0.25  # of timing, for each layer and mode
WHOLE_SECONDS = 1.0  # of timing, for the whole model
CLEAR = 2.0  # a gain that needs no interval, if every round has it
TO_COMPARE = "compared at its first call"
NOT_REACHED = "not reached by the example"
NO_FASTER = "no faster here"
MIB = 2**20
SERVED = "cpu", "cuda"  # devices with kernels
SCRIPTED = "__prepare_scriptable__"  # torch.jit.script asks a module for it


class TiledAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` that is computed in tiles where no attention weights are wanted.

    In inference torch's makes a matrix of nodes by nodes, also for a mask that masks nothing. In training it calls
    `scaled_dot_product_attention`, which works in tiles and is several times as fast. Arguments, shapes and results are
    torch's, up to rounding.
    """

    _original = nn.MultiheadAttention

    def __prepare_scriptable__(self) -> nn.Module:
        return as_it_was(self)

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
            if query is key and key is value:  # another query object rules out the path with the matrix
                query = query.view_as(query)
        return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask, **named)


@dataclass(frozen=True)
class Memory:
    """Bytes: the peaks of a forward pass in eval on the example, of the original, the fast model and its first call;
    and what its layers keep between calls, after a forward pass and after a training step."""

    before: int
    after: int
    first_call: int
    kept: int
    kept_in_training: int
    differs: str = ""  # the peak of the process, where it is not that of torch's allocator

    def __str__(self) -> str:
        if self.before < MIB:
            return "memory: less than 1 MiB on this example, too little to compare"
        peaks = f"{_mib(self.before)} MiB before, {_mib(self.after)} after, {_mib(self.first_call)} in the first call"
        kept = f"{_mib(self.kept)} MiB after a forward pass, {_mib(self.kept_in_training)} after a training step"
        differs = self.differs and f"; {self.differs}"
        return f"memory at its peak: {peaks}; kept between calls: {kept}{differs}"


@dataclass
class SwapReport:
    """The new model, what was replaced in it and what was not. Paths are those of `named_modules`, "" the model.

    Attributes:
        model: a new tree of modules that shares parameters and buffers with yours: an optimizer of one trains both.
        parity_error: of the outputs on the example, max |difference| over max |output|; None without one.
        time: of a forward pass on the example, yours over the fast one's (2: twice as fast); None where not measured.
        memory: peaks of that pass, in bytes; None where they were not measured.
        device: the example's, by name; "" without one.
        runs: how many times your model and the fast one ran, as copies.
    """

    model: nn.Module
    parity_error: float | None = None
    time: Ratio | None = None
    memory: Memory | None = None
    device: str = ""
    runs: int = 0
    _refused: tuple[tuple[str, str, str], ...] = ()
    _caches: Caches = field(default_factory=Caches, repr=False)

    @property
    def replaced(self) -> tuple[tuple[str, str, str], ...]:
        """(path, class, how) of the layers that are fast, or are compared at their first call."""
        layers = [(path, layer, _mechanism(layer)) for path, layer in self.model.named_modules()]
        return tuple((path, _class(layer), how) for path, layer, how in layers if how not in (None, NONE))

    @property
    def kept(self) -> tuple[tuple[str, str, str], ...]:
        """(path, class, why) of the layers that stay as they were."""
        modules = dict(self.model.named_modules())
        compared = [(path, _class(m), _why(m)) for path, m in modules.items() if _mechanism(m) == NONE]
        places = {path: at for at, path in enumerate(modules)} | {"": len(modules)}
        return tuple(sorted([*self._refused, *compared], key=lambda one: places[one[0]]))

    def revert(self) -> nn.Module:
        """`model`, in which every layer has its original class again."""
        self._refused += tuple((path, kind, "reverted") for path, kind, _ in self.replaced)
        return _reverted(self.model)

    def forget(self) -> None:
        """Drop all that the layers keep between calls: sorted graphs, their weights, sparse inputs."""
        self._caches.forget()
        for layer in self.model.modules():
            if "_fast" in vars(layer):
                layer._fast.caches.forget()
        compile_ops.forget()

    def __str__(self) -> str:
        lines = []
        for path, kind, how in self.replaced:
            state = vars(self.model.get_submodule(path)).get("_fast")
            why = state.why.get(DIRECT) if state is not None and how.startswith(SUM) else ""
            lines.append(f"replaced {path or 'the model'} ({kind}): {how}" + (f" ({DIRECT}: {why})" if why else ""))
        lines += [f"kept {path or 'the model'} ({kind}): {why}" for path, kind, why in self.kept]
        if any(NO_FASTER in why for _, _, why in self.kept):
            lines.append("kept for its time alone: swap(..., measure=False) replaces each layer that is equal")
        if not self.replaced:
            return "\n".join([*lines, "nothing was replaced" if lines else "nothing to replace: no layers of PyG"])
        if self.parity_error is None:
            return "\n".join([*lines, "outputs not compared: no example given"])
        where = "" if self.device == "cpu" else f"on {self.device} "
        lines.append(f"{where}outputs differ by {self.parity_error:.1e}; the models ran {self.runs} times, on copies")
        if self.time is not None:
            before, after = f"{1e3 * self.time.before_s:.3g} ms before", f"{1e3 * self.time.after_s:.3g} after"
            lines.append(f"a forward pass on the example: {before}, {after} ({self.time})")
        if self.memory is not None:
            lines.append(str(self.memory))
        return "\n".join(lines + compilation() + self._device_lines())

    def _device_lines(self) -> list[str]:
        """Was the model moved since it was measured? Is TF32 on?"""
        lines, now = [], _device_of(self.model)
        if next(tensors_in(self.model), None) is not None and self.device != _device_name(now):
            where = f"measured on {self.device}; the model is on {_device_name(now)} now"
            lines.append(f"{where}: nothing was measured there")
        if now.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32":
            lines.append(
                "float32 products are rounded to TF32 in both models: torch.backends.cuda.matmul.fp32_precision"
            )
        return lines


@torch.inference_mode(False)  # copies that it makes there would have no gradients
def swap(
    model: nn.Module, example: Any = None, *, tolerance: float = parity.RTOL_FLOAT32, measure: bool = True
) -> SwapReport:
    """A new model whose layers have faster implementations, with the same outputs and gradients.

    Args:
        model: your model; it stays as it is.
        example: the model's inputs: a tuple is spread, a mapping gives keywords, a PyG `Data` or `HeteroData` gives the
            fields that forward names or is itself the argument, anything else is one argument. If the outputs of both
            models on it differ in eval mode, nothing is replaced.
        tolerance: of each output tensor, max |difference| over max |output|; float64 decides where it is exceeded.
        measure: replace only layers that are faster on the example; False times nothing.

    Returns:
        a report whose `model` shares parameters and buffers with yours. A model whose weights have no shape yet is
        called on the example first, which gives them one.

    Raises:
        SwapError: this is no model, it cannot be copied, the example lacks what its forward needs, or it does not run.
    """
    if not isinstance(model, nn.Module):
        raise SwapError(f"swap needs a torch.nn.Module, not {type(model).__name__}")
    batch = None if example is None else cloned(bind(model, example, type(model).__name__))
    runs = 0
    if batch is not None and any(map(is_lazy, model.parameters())):
        with _as_before(), torch.no_grad():
            _guarded(model, model, batch)
        runs += 1
    fast = _copy(model)
    layers = [(p, m) for p, m in fast.named_modules() if isinstance(m, (MessagePassing, nn.MultiheadAttention))]
    already = {path for path, layer in layers if hasattr(type(layer), "_original")}
    caches = Caches()
    report = SwapReport(fast, _caches=caches, runs=runs)
    report._refused = tuple((path, _class(layer), "already fast") for path, layer in layers if path in already)
    for path, layer in layers:
        if path in already:
            continue
        if isinstance(layer, MessagePassing):
            make_fast(layer, caches)
        elif type(layer) is nn.MultiheadAttention:
            layer.__class__ = TiledAttention
    for module in fast.modules():
        if not hasattr(type(module), "_original") and any(hasattr(type(one), "_original") for one in module.modules()):
            vars(module)[SCRIPTED] = partial(_to_script, module)
    if batch is not None and len(already) < len(layers):
        with _as_before():
            _on_example(report, model, batch, tolerance, measure)
    return report


def _on_example(report: SwapReport, model: nn.Module, batch: Any, tolerance: float, measure: bool) -> None:
    """Compare and time each layer and the whole model on the example; revert what is not equal or not faster."""
    device = _device_of((batch, model))
    report.device = _device_name(device)
    own = _copy(model, buffers=True).eval()
    inputs: dict[str, tuple[tuple, dict]] = {}
    first_batch = cloned(batch)
    versions = [tensor._version for tensor in tensors_in(first_batch)]
    expected = _with_inputs(own, model, first_batch, inputs)
    written = versions != [tensor._version for tensor in tensors_in(first_batch)]
    give = partial(cloned, batch) if written else lambda: batch  # a model may write to its inputs
    report.runs += 1
    twin = _copy(report.model, buffers=True).eval()
    for path, layer in list(twin.named_modules()):
        if "_fast" not in vars(layer):
            continue
        why = _why_kept(layer, inputs.get(path), measure)
        fast = report.model.get_submodule(path)
        if why:
            make_original(fast)
            report._refused += ((path, _class(fast), why),)
        else:
            fast._fast.adopt(fast, layer._fast)
    if not report.replaced:
        return
    twin = _copy(report.model, buffers=True).eval()  # the state of the first one has moved
    run = _forward(twin, give)
    try:
        # not on a CPU where torch's profiler runs already, which measures the memory there, nor on other devices
        profiled = torch.autograd.profiler._is_profiler_enabled
        first = None
        if measure and (device.type == "cuda" or (device.type == "cpu" and not profiled)):
            first = peak_memory(run, device)
        got = run() if first is None else first.result
        report.runs += 1
        error = parity.error(_outputs(got), _outputs(expected), name="the output")
        if error > tolerance and not error.why:
            error = _beyond_rounding(model, report.model, give, tolerance)
            report.runs += 3
        why = error.why or (
            f"outputs differ by {error:.1e} relative, allowed is {tolerance:.0e}" if error > tolerance else ""
        )
    except Exception as problem:  # of the user's model, which may check the classes of its layers
        why = f"with fast layers: {one_line(problem)}"
    if not why:
        report.parity_error = float(error)
        if measure:
            kept = _kept_bytes(twin)
            report.time = _whole(report, own, twin, give, device)
            if report.time.high < 1:
                fast = ", ".join(path for path, *_ in report.replaced)
                why = f"with fast layers ({fast}) the whole model is slower here: {report.time} forward"
            elif first is not None:
                report.memory = _memory(own, twin, give, first.peak, kept, device)
    if why:
        _reverted(report.model)
        report.time = report.parity_error = None
        report._refused += (("", _class(model), why),)


def _with_inputs(own: nn.Module, model: nn.Module, batch: Any, inputs: dict[str, tuple[tuple, dict]]) -> Any:
    """The output of the original; `inputs` receives those of each layer, by path."""

    def note(path: str) -> Callable:
        return lambda layer, args, named: inputs.setdefault(path, (args, named)) and None

    layers = [(path, layer) for path, layer in own.named_modules() if isinstance(layer, MessagePassing)]
    hooks = [layer.register_forward_pre_hook(note(path), with_kwargs=True) for path, layer in layers]
    try:
        with torch.enable_grad():  # to see which inputs want gradients
            return _guarded(own, model, batch)
    finally:
        for hook in hooks:
            hook.remove()


def _guarded(run: nn.Module, model: nn.Module, batch: Any) -> Any:
    try:
        return call(run, batch)
    except Exception as error:  # of the user's model
        raise SwapError(
            f"{type(model).__name__} does not run on the example: {one_line(error)}{raised_at(error)}"
        ) from error


def _why_kept(layer: nn.Module, given: tuple[tuple, dict] | None, measure: bool) -> str:
    """Why a layer is kept on these inputs; "" where it is replaced."""
    if given is None:
        return NOT_REACHED
    args, named = pytree.tree_map_only(Tensor, _leaf, given)
    device = _device_of((args, named, layer))
    kind = next((one.dtype for one in tensors_in((args, named)) if one.is_floating_point()), torch.float32)
    found: dict[str, tuple[float, str]] = {}  # by kernel: its gain, and why it is not taken
    for kernel in ("", *backends.sum_kernels(device, kind)[1:]):
        layer._fast.sum_kernel = kernel
        try:
            layer(*args, **named)  # compares
        except Exception as problem:  # of the user's code, on inputs that another layer may have changed since
            return f"it does not run by itself: {one_line(problem)}"
        how = layer._fast.mechanism(device.type)
        if how in (None, NONE):
            found[kernel] = 0.0, _why(layer)
        else:
            found[kernel] = _slower(layer, args, named, device) if measure else (1.0, "")
        if not measure or not layer._fast.by_kernel:
            break
    best = max(found, key=lambda kernel: (not found[kernel][1], found[kernel][0]))
    layer._fast.sum_kernel = best
    return found[best][1]


def _slower(layer: nn.Module, args: tuple, named: dict, device: torch.device) -> tuple[float, str]:
    """(speed-up, why the layer is kept: "" where it gains)."""
    run = partial(layer, *args, **named)
    forward = training = _ratio(layer, run, torch.no_grad, device)
    wanted = [t for t in tensors_in((args, named)) if t.requires_grad]
    wanted += [p for p in layer.parameters() if p.requires_grad]
    if wanted and forward.before_s <= LONG_SECONDS:
        training = _ratio(layer, lambda: _step(run(), wanted), torch.enable_grad, device)
    slower, gain = any(ratio.high < 1 for ratio in (forward, training)), math.sqrt(forward.value * training.value)
    if slower or gain < LEAST_GAIN:
        in_training = "" if training is forward else f"; in training {training}"
        return gain, f"{NO_FASTER}: forward {forward}{in_training}"
    return gain, ""


def _step(out: Any, wanted: list[Tensor]) -> None:
    ends = [t for t in tensors_in(out) if t.requires_grad]
    if ends:
        torch.autograd.grad(ends, wanted, [torch.ones_like(t) for t in ends], allow_unused=True)


def _ratio(layer: nn.Module, run: Callable[[], Any], mode: Callable, device: torch.device) -> Ratio:
    def own() -> Any:
        fast, layer.__class__ = type(layer), original_class(layer)
        try:
            return run()
        finally:
            layer.__class__ = fast

    with mode():
        run(), run()  # fills the caches
        return compare_times(own, run, SECONDS, _decided, device)


def _decided(ratio: Ratio) -> bool:
    if ratio.n < LEAST_ROUNDS:
        return ratio.low >= CLEAR
    return ratio.low > LEAST_GAIN or ratio.high < 1


def _whole(report: SwapReport, own: nn.Module, twin: nn.Module, give: Callable[[], Any], device: torch.device) -> Ratio:
    before, after = (_forward(one, give) for one in (own, twin))
    before(), after()
    ratio = compare_times(before, after, WHOLE_SECONDS, lambda r: r.n >= 30 and _decided(r), device)
    report.runs += 2 + 2 * ratio.n * ratio.calls
    return ratio


def _memory(
    own: nn.Module, twin: nn.Module, give: Callable[[], Any], first_call: int, kept: int, device: torch.device
) -> Memory:
    before, after = (peak_memory(_forward(one, give), device) for one in (own, twin))
    with suppress(Exception), torch.enable_grad():  # a model need not be trainable
        _step(call(twin, give()), [p for p in twin.parameters() if p.requires_grad])
    differs = (f"{name}: {peak}" for name, peak in (("before", before), ("after", after)) if peak.agrees is False)
    return Memory(before.peak, after.peak, first_call, kept, _kept_bytes(twin), "; ".join(differs))


def _kept_bytes(model: nn.Module) -> int:
    """Bytes that the fast layers of a model keep between calls."""
    states = [vars(layer)["_fast"] for layer in model.modules() if "_fast" in vars(layer)]
    return sum(caches.nbytes for caches in {id(state.caches): state.caches for state in states}.values())


def _beyond_rounding(model: nn.Module, fast: nn.Module, give: Callable[[], Any], tolerance: float) -> parity.Deviation:
    """The error against the model in float64, whose own float32 sets the tolerance; infinite where it does not run in
    float64."""
    own, fast = (_copy(one, buffers=True).eval() for one in (model, fast))
    try:
        exact = _forward(copied(own).double(), lambda: in_float64(cloned(give())))()
    except Exception:  # its forward makes float32 tensors
        why = "outputs differ, and the model does not run in float64, which would decide"
        return parity.Deviation(math.inf, "", why)
    got, expected = _forward(fast, give)(), _forward(own, give)()
    return parity.error(_outputs(got), _outputs(expected), _outputs(exact), rtol=tolerance, name="the output")


def _forward(model: nn.Module, give: Callable[[], Any]) -> Callable[[], Any]:
    return torch.no_grad()(lambda: call(model, give()))


def _outputs(result: Any) -> list[Tensor]:
    return [one.detach() for one in tensors_in(result)]


def _reverted(model: nn.Module) -> nn.Module:
    for module in model.modules():
        vars(module).pop(SCRIPTED, None)
        if hasattr(type(module), "_original"):
            make_original(module)
    return model


def _to_script(module: nn.Module) -> nn.Module:
    """What torch.jit.script compiles in place of a module: the original's code, with the same parameters. A new tree,
    because torch replaces the modules that it is given."""
    return _reverted(_copy(module))


def _copy(model: nn.Module, buffers: bool = False) -> nn.Module:
    """A new tree of modules with the parameters of `model`; its buffers, too, or copies of them."""
    shared = [*model.parameters(), *(() if buffers else model.buffers())]
    try:
        return copied(model, {id(tensor): tensor for tensor in shared})
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise SwapError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error


@contextmanager
def _as_before() -> Iterator[None]:
    """Restores the random states of `random`, numpy and torch at its end, also after an error."""
    states = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _leaf(tensor: Tensor) -> Tensor:
    """A leaf with the same values; leaves stay the same objects."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)


def _mechanism(layer: nn.Module) -> str | None:
    if type(layer) is TiledAttention:
        return TILES
    state = vars(layer).get("_fast")
    if state is None:
        return None
    device = _device_type(layer)
    how = state.mechanism(device)
    if how is None:
        return TO_COMPARE if device in SERVED else NONE
    return f"{how}, {state.sum_kernel}" if state.sum_kernel and how != NONE and device == "cuda" else how


def _why(layer: nn.Module) -> str:
    """How the comparisons failed, in a line."""
    device = _device_type(layer)
    if device not in SERVED:
        return f"no kernel for {device}: PyG's code runs there"
    why = "; ".join(f"{how}: {what}" for how, what in layer._fast.why.items() if what)
    return why or "its own aggregation: no sum, mean or maximum over neighbours"


def _device_type(layer: nn.Module) -> str:
    """That of its parameters and buffers; without any, that of its last comparison."""
    own = next((one.device.type for one in tensors_in(layer)), None)
    return own or vars(layer)["_fast"].last_device


def _device_of(tree: Any) -> torch.device:
    """That of the first CUDA tensor, if there is any, else of the first tensor."""
    devices = [one.device for one in tensors_in(tree)]
    return next((one for one in devices if one.type == "cuda"), (devices or [torch.device("cpu")])[0])


def _device_name(device: torch.device) -> str:
    """As a person would call it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _class(layer: nn.Module) -> str:
    return original_class(layer).__name__


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"
