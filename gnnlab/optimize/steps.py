"""What can make a user's model faster, one `RewriteStep` each: why it applies, and the function that applies it.

    applies, why = applies_to("fast layers", model, batch)
    model = fast_layers(model, batch)                    # a new model, or the same one changed
    model = threads(model, batch, 1)                     # one thread of torch in each call

A function of a step is called with a model that may be changed, and with what the model is called with. Most wrap its
`forward`: its class becomes a subclass of its own, so that parameters keep their names and checkpoints load as before;
`torch.save` takes its state_dict, not the model itself. Constant output and inference hold in eval mode alone; in
training such a model runs as it was. A step that is not `exact` changes results beyond float32's rounding: it is
measured and shown, and never applied.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab import machine
from gnnlab.errors import GnnlabError
from gnnlab.measure.conditions import Conditions, products
from gnnlab.measure.tensors import device_of
from gnnlab.optimize.captured import Captured, require
from gnnlab.optimize.constant_output import ConstantOutput
from gnnlab.workloads import models
from gnnswap import swap
from gnnswap.errors import one_line
from gnnswap.inputs import call, tensors_in

CONSTANT, FAST_LAYERS, CAPTURED, ALLOCATOR = "constant output", "fast layers", "captured", "mallopt"
COMPILED = "torch.compile"
COUNTS = sorted({machine.cores(), *(2**power for power in range(machine.cores().bit_length()))})  # of threads
_KEEPING = {  # variable of the environment: parameter of mallopt (M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX), value
    "MALLOC_MMAP_MAX_": (-4, 0),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_ARENA_MAX": (-8, 1),
}


@dataclass(frozen=True)
class RewriteStep:
    """`why` says of a model and its batch why the step applies, and raises `GnnlabError` where it does not. `apply` is
    a function of this module, or a partial one with further arguments by name. `conflicts_with`: steps before it.
    `training`: it holds in training, too. `exact`: results stay equal up to the rounding of float32.
    `compiles`: it is made again for graphs of another size, which takes long."""

    name: str
    why: Callable[[nn.Module, Any], str]
    apply: Callable[[nn.Module, Any], nn.Module]
    conflicts_with: Sequence[str] = ()
    training: bool = True
    exact: bool = True
    compiles: bool = False

    @property
    def code(self) -> str:
        """How the written module calls it."""
        function, named = getattr(self.apply, "func", self.apply), getattr(self.apply, "keywords", {})
        more = "".join(f", {name}={value!r}" for name, value in named.items())
        return f"steps.{function.__name__}(model, batch{more})"


def user_model(
    factory: Callable[..., nn.Module], data: Data, options: dict[str, Any], device: str | None = None
) -> tuple[nn.Module, Any]:
    """The model that a factory of the user's makes, and what its forward takes of the graph `data`; both on `device`
    where one is named.

    Raises:
        GnnlabError: as of `workloads.models.user_model`: the factory or the forward pass fails.
    """
    _, model, batch = models.user_model(factory, data, options)
    if device is None:
        return model, batch
    return model.to(device), models.converted(batch, lambda tensor: tensor.to(device))


def fast_layers(model: nn.Module, batch: Any) -> nn.Module:
    """A model with faster layers, each compared with the original at its first call; it shares the parameters of
    `model`. See `gnnswap.swap`."""
    return swap(model, measure=False).model


def mallopt(model: nn.Module, batch: Any) -> nn.Module:
    """`model`; from now on this process keeps the memory that it frees, so that large results take no new pages from
    the system: `mallopt` of the GNU C library, which a variable of the environment takes the place of."""
    for variable, (parameter, value) in _KEEPING.items():
        if variable not in os.environ:
            ctypes.CDLL(None).mallopt(parameter, value)
    return model


def around(model: nn.Module, run: Callable[..., Any], *, training: bool = False) -> nn.Module:
    """`model`, whose forward is `run(model, forward, *arguments, **named)` in eval; with `training` always. The
    `forward` that it gets is the one before."""
    kind = type(model)
    before = kind.forward

    @functools.wraps(before)
    def forward(self, *arguments, **named):
        inner = functools.partial(before, self)
        if self.training and not training:
            return inner(*arguments, **named)
        return run(self, inner, *arguments, **named)

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return model


def inference(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, where it records nothing for gradients."""

    def run(model, forward, /, *arguments, **named):
        with torch.no_grad():
            return forward(*arguments, **named)

    return around(model.eval(), run)


def threads(model: nn.Module, batch: Any, count: int) -> nn.Module:
    """`model`, which runs on `count` threads of torch in each call; those around it are as before. In training torch
    keeps them after a call, for the backward pass that follows."""

    def run(model, forward, /, *arguments, **named):
        if model.training:
            torch.set_num_threads(count)
            return forward(*arguments, **named)
        with Conditions(count, products()).applied():
            return forward(*arguments, **named)

    return around(model, run, training=True)


def bfloat16(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose operators run in bfloat16 where torch's autocast chooses it; weights stay as they are."""

    def run(model, forward, /, *arguments, **named):
        with torch.autocast(device_of(model, arguments, named).type, torch.bfloat16):
            return forward(*arguments, **named)

    return around(model, run, training=True)


def compiled(model: nn.Module, batch: Any, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """`model`, whose forward goes through `torch.compile(backend=...)`, in training, too."""
    fast = torch.compile(type(model).forward, backend=backend)
    return around(model, lambda model, forward, /, *more, **named: fast(model, *more, **named), training=True)


def constant_output(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, which is called without tensors, so that its output follows from what it holds: computed
    without gradients once for each argument, and again when anything in the model differs; see `ConstantOutput`."""
    return around(model.eval(), ConstantOutput())


def captured(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose step is replayed as a CUDA graph: forward, and backward where gradients are wanted.

    It is captured for `batch` now, and for a few other shapes and modes when they first come; see `captured.Captured`.

    Raises:
        GnnlabError: no CUDA device, edges or other whole numbers go in, or it cannot be captured, with why.
    """
    require(model, batch)
    replays = Captured()
    model = around(model, replays, training=True)
    call(model, batch)
    if replays.reasons:
        raise GnnlabError(replays.reasons[-1])
    return model


# ---- why a step applies ---------------------------------------------------------------------------------------------


def _no_tensor_goes_in(model: nn.Module, batch: Any) -> str:
    if any(True for _ in tensors_in(batch)):
        raise GnnlabError("tensors go in")
    return "no tensor goes in: in eval the output follows from the weights"


def _replaced_layers(model: nn.Module, batch: Any) -> str:
    report = swap(model, measure=False)
    with torch.no_grad():
        call(report.model.eval(), batch)  # compares each layer
    if not report.replaced:
        kept = "; ".join(f"{kind}: {why}" for _, kind, why in report.kept)
        raise GnnlabError(kept or "it has no message passing layers")
    return _counted(report.replaced) + (f"; not {_counted(report.kept)}" if report.kept else "")


def _counted(layers: Sequence[tuple[str, ...]]) -> str:
    """ "2 GATConv, 1 GCNConv": the kinds of layers, and how many of each."""
    kinds = [kind for _, kind, *_ in layers]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _can_be_captured(model: nn.Module, batch: Any) -> str:
    require(model, batch)
    return "one launch for the whole step; the edges are the model's own"


def _computes_on_cpu(model: nn.Module, batch: Any) -> None:
    if (where := device_of(model, batch)).type != "cpu":
        raise GnnlabError(f"it computes on {where.type}, not on the CPU")


def _gives_memory_back(model: nn.Module, batch: Any) -> str:
    _computes_on_cpu(model, batch)
    if platform.libc_ver()[0] != "glibc":
        raise GnnlabError("it is a function of the GNU C library")
    if "MALLOC_MMAP_MAX_" in os.environ:
        raise GnnlabError("the environment sets MALLOC_MMAP_MAX_ already")
    return "the process keeps the memory that it frees"


def _thread_step(count: int) -> RewriteStep:
    def why(model: nn.Module, batch: Any) -> str:
        _computes_on_cpu(model, batch)
        now = torch.get_num_threads()
        if count == now:
            raise GnnlabError("torch has as many already")
        return f"torch has {now}"

    others = (CONSTANT, *map(_threads, COUNTS))
    return RewriteStep(_threads(count), why, functools.partial(threads, count=count), others)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


_ALL = (  # in the order in which they are applied
    RewriteStep(CONSTANT, _no_tensor_goes_in, constant_output, training=False),
    RewriteStep(FAST_LAYERS, _replaced_layers, fast_layers, (CONSTANT,)),
    RewriteStep(COMPILED, lambda model, batch: "its default backend", compiled, (CONSTANT, FAST_LAYERS), compiles=True),
    RewriteStep(
        "inference mode", lambda model, batch: "eval mode, torch.no_grad", inference, (CONSTANT,), training=False
    ),
    *map(_thread_step, COUNTS),
    RewriteStep(CAPTURED, _can_be_captured, captured, (CONSTANT, COMPILED)),
    RewriteStep(ALLOCATOR, _gives_memory_back, mallopt),
    RewriteStep("bfloat16", lambda model, batch: "torch.autocast", bfloat16, (CAPTURED,), exact=False),
)
STEPS: Mapping[str, RewriteStep] = {step.name: step for step in _ALL}


def tried(train: bool) -> list[str]:
    """The steps for a model in eval, or in training, in the order in which they are tried: the fast layers first, then
    what is made at once, what is compiled, what changes results, and what acts on the whole process."""
    names = [step.name for step in _ALL if step.training or not train]
    last = {name: (name == ALLOCATOR, not STEPS[name].exact, STEPS[name].compiles) for name in names}
    return sorted(names, key=lambda name: (name != FAST_LAYERS, *last[name]))


def applies_to(name: str, model: nn.Module, batch: Any) -> tuple[bool, str]:
    """(does the step of this name apply to a model, why or why not in one line)."""
    try:
        return True, STEPS[name].why(model, batch)
    except Exception as error:  # of the user's model, which may raise anything
        return False, one_line(error)


def in_order(plan: Iterable[str]) -> tuple[str, ...]:
    """The steps of a plan, each once, in the order in which they are applied; names of no step are left out."""
    wanted = set(plan)
    return tuple(name for name in STEPS if name in wanted)


def compatible(first: str, second: str) -> bool:
    """Can two steps be in one plan?"""
    return first not in STEPS[second].conflicts_with and second not in STEPS[first].conflicts_with


def environment(plan: Sequence[str]) -> dict[str, str]:
    """The variables that a plan asks for in the environment of its process when that starts; none for most plans."""
    return {name: str(value) for name, (_, value) in _KEEPING.items()} if ALLOCATOR in plan else {}


def apply(plan: Sequence[str], model: nn.Module, batch: Any) -> nn.Module:
    """`model` after the steps of a plan in their order; it may be changed.

    Raises:
        GnnlabError: a step cannot be applied, as `captured` without a CUDA device.
    """
    for name in plan:
        model = STEPS[name].apply(model, batch)
    return model
