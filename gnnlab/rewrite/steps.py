"""What can make a user's model faster, one `RewriteStep` each: does it apply, what it changes, how to apply it.

    found = STEPS["fast layers"].look(model, batch)      # applies or not, and why
    model = fast_layers(model, batch)                    # a new model, or the same one changed

A function of a step is called with a model that may be changed, and with what it is called with. A step that is not
`exact` changes results beyond float32's rounding: it is measured and told, and never applied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab import machine
from gnnlab.errors import GnnlabError, one_line
from gnnlab.kernels import linears
from gnnlab.kernels.linears import sparse_inputs
from gnnlab.profiling import findings
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.rewrite import dense
from gnnlab.rewrite.around import (
    bfloat16,
    compiled,
    constant_output,
    inference,
    onnxruntime,
    openvino,
    products,
    this_size_only,
    threads,
)
from gnnlab.rewrite.dense import dense_layers
from gnnlab.rewrite.swap import swap
from gnnlab.workloads import models


@dataclass(frozen=True)
class Applicability:
    """Does a step apply to a model, and why or why not. `modules`: paths of those that it touches, None for all."""

    applies: bool
    why: str
    modules: tuple[str, ...] | None = None


Look = Callable[[nn.Module, Any], Applicability]
Apply = Callable[[nn.Module, Any], nn.Module]


@dataclass(frozen=True)
class RewriteStep:
    """`apply`: a function of this module, or a partial one with further arguments by name. `apart`: kinds of steps that
    it does not go with. `starts`: how long it takes to try, in starts of a process that loads torch and the model.
    `slow`: it is made anew for a new size, so that the proof asks it on fewer graphs."""

    name: str
    kind: str  # constant|rewrite|layers|engine|mode|condition|precision|guard
    look: Look
    apply: Apply
    apart: frozenset[str] = frozenset()
    training: bool = True
    exact: bool = True
    starts: float = 0.02
    slow: bool = False

    @property
    def code(self) -> str:
        """How the written module calls it."""
        function, named = getattr(self.apply, "func", self.apply), getattr(self.apply, "keywords", {})
        more = "".join(f", {name}={value!r}" for name, value in named.items())
        return f"steps.{function.__name__}(model, batch{more})"


def yours(factory: Callable[..., nn.Module], data: Data, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """The model that a factory of the user's makes, and what its forward takes of the graph `data`."""
    _, model, batch = models.of_the_user(factory, data, options)
    return model, batch


# ---- what each does, beside those that are imported -----------------------------------------------------------------


def fast_layers(model: nn.Module, batch: Any) -> nn.Module:
    """Layers of PyG on the lab's own sum; see `swap`."""
    return swap(model).model


def compiled_sums(model: nn.Module, batch: Any, then: str = "eager") -> nn.Module:
    """The forward through torch.compile and the lab's backend, which hands the rest to `then` (eager|inductor)."""
    from gnnlab.rewrite.backend import backend  # which takes a second to load

    return compiled(model, batch, functools.partial(backend, options={"then": then}))


def int8_weights(model: nn.Module, batch: Any) -> nn.Module:
    """Linear layers in int8, activations quantized at each call."""
    return linears.int8_weights(model)


# ---- does it apply? -------------------------------------------------------------------------------------------------


def _always(why: str) -> Look:
    return lambda model, batch: Applicability(True, why)


def _look_constant(model: nn.Module, batch: Any) -> Applicability:
    if any(True for _ in tensors_in(batch)):
        return Applicability(False, "tensors go in")
    return Applicability(True, "no tensor goes in: in eval the output follows from the weights")


def _look_at(find: Callable[[nn.Module, Any], tuple[str, ...]], found: str) -> Look:
    """Where a model can be changed; `found` says of the places what they are."""

    def look(model: nn.Module, batch: Any) -> Applicability:
        try:
            at = find(model, batch)
        except GnnlabError as error:
            return Applicability(False, str(error))
        return Applicability(True, found.format(", ".join(at)))

    return look


def _dense_places(model: nn.Module, batch: Any) -> tuple[str, ...]:
    if isinstance(batch, Data):
        return dense.places(model, batch.num_nodes)
    x = batch.get("x") if isinstance(batch, dict) else next(iter(tensors_in(batch)), None)
    if x is None:
        raise GnnlabError("no x goes in that says how many nodes there are")
    return dense.places(model, len(x))


def _look_sparse(model: nn.Module, batch: Any) -> Applicability:
    try:
        found = linears.sparse_places(model, batch)
    except GnnlabError as error:
        return Applicability(False, str(error))
    return Applicability(
        True, f"{', '.join(found)}: {100 * min(found.values()):.1f} % of the input is not zero", tuple(found)
    )


def _look_layers(model: nn.Module, batch: Any) -> Applicability:
    try:
        report = swap(model)
    except GnnlabError as error:
        return Applicability(False, str(error))
    if not report.replaced:
        return Applicability(
            False, "; ".join(f"{kind}: {why}" for _, kind, why in report.kept) or "it has no layers of PyG"
        )
    kept = f"; not {_named(report.kept)}" if report.kept else ""
    return Applicability(True, f"{_named(report.replaced)}{kept}", tuple(path for path, *_ in report.replaced))


def _named(layers: Sequence[tuple[str, ...]]) -> str:
    """ "2 of GATConv, GCNConv": kinds of layers, and how many where there are several."""
    kinds = [kind for _, kind, *_ in layers]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _look_installed(package: str) -> Look:
    def look(model: nn.Module, batch: Any) -> Applicability:
        version = machine.version(package)
        return Applicability(version is not None, f"{package} {version}" if version else f"{package} is not installed")

    return look


def _look_int8(model: nn.Module, batch: Any) -> Applicability:
    paths = tuple(path for path, layer in model.named_modules() if path and type(layer) in linears.LINEAR)
    if not paths:
        return Applicability(False, "it has no linear layers of torch or PyG")
    return Applicability(True, f"{len(paths)} linear layer{'s' * (len(paths) > 1)}", paths)


# ---- the registry ---------------------------------------------------------------------------------------------------

GUARD = "this size only"


def _thread_counts() -> list[int]:
    """The powers of two up to the cores, and the cores."""
    cores = machine.cores()
    return sorted({cores, *(2**power for power in range(cores.bit_length()))})


def _threads_step(count: int) -> RewriteStep:
    def look(model: nn.Module, batch: Any) -> Applicability:
        now = torch.get_num_threads()
        return Applicability(count != now, f"torch has {now}" if count != now else "torch has as many already")

    name = f"{count} thread{'s' * (count > 1)}"
    return RewriteStep(name, "condition", look, functools.partial(threads, count=count), frozenset({"condition"}))


_ENGINE = functools.partial(RewriteStep, kind="engine", apart=frozenset({"engine", "layers"}))
_RUNTIME = functools.partial(_ENGINE, apart=frozenset({"engine", "layers", "mode"}), training=False)
_MEDIUM = functools.partial(products, precision="medium")
_NOT_CONSTANT = frozenset({"rewrite", "layers", "engine", "mode", "condition"})

_ALL = (  # tried in this order: first what brings most models most
    RewriteStep("fast layers", "layers", _look_layers, fast_layers),
    RewriteStep("constant output", "constant", _look_constant, constant_output, _NOT_CONSTANT, training=False),
    RewriteStep("sparse inputs", "rewrite", _look_sparse, sparse_inputs),
    RewriteStep("dense small graph", "rewrite", _look_at(_dense_places, "{}"), dense_layers),
    RewriteStep("inference mode", "mode", _always("eval mode, torch.no_grad"), inference, training=False),
    *map(_threads_step, _thread_counts()),
    _RUNTIME("OpenVINO", look=_look_installed("openvino"), apply=openvino, starts=1.0),
    _RUNTIME("ONNX Runtime", look=_look_installed("onnxruntime"), apply=onnxruntime, starts=2.0),
    _ENGINE(
        "torch.compile, gnnlab",
        look=_always("gathers and scatters of the traced graph become sums"),
        apply=compiled_sums,
        starts=2.0,
        slow=True,
    ),
    RewriteStep("medium products", "precision", _always("a setting of torch"), _MEDIUM, exact=False),
    RewriteStep("bfloat16", "precision", _always("torch.autocast"), bfloat16, exact=False),
    RewriteStep("int8", "precision", _look_int8, int8_weights, training=False, exact=False),
    _ENGINE(
        "torch.compile, gnnlab, Inductor",
        look=_always("the same, and the rest goes to Inductor"),
        apply=functools.partial(compiled_sums, then="inductor"),
        starts=4.0,
        slow=True,
    ),
    _ENGINE("torch.compile", look=_always("its default backend"), apply=compiled, starts=4.0, slow=True),
    RewriteStep(GUARD, "guard", lambda model, batch: Applicability(False, "it guards other steps"), this_size_only),
)
STEPS: Mapping[str, RewriteStep] = {step.name: step for step in _ALL}
_KINDS = ("constant", "rewrite", "layers", "engine", "mode", "condition", "precision", "guard")  # as they are applied


def tried(train: bool) -> list[str]:
    """The steps that may be applied to a model, or in training, in the order in which they are tried."""
    return [step.name for step in _ALL if step.kind != "guard" and (step.training or not train)]


def ordered(plan: Iterable[str]) -> tuple[str, ...]:
    """Steps in the order in which they are applied."""
    return tuple(sorted(plan, key=lambda name: _KINDS.index(STEPS[name].kind)))


def go_together(first: str, second: str) -> bool:
    """Can two steps be in one plan?"""
    a, b = STEPS[first], STEPS[second]
    return a.kind not in b.apart and b.kind not in a.apart


def apply(plan: Sequence[str], model: nn.Module, batch: Any) -> nn.Module:
    """`model`, which is changed, after the steps of a plan."""
    for name in plan:
        model = STEPS[name].apply(model, batch)
    return model


def told(model: nn.Module, batch: Any) -> list[str]:
    """What was found and only its author can change: inputs, buffers and parameters without effect, copies of their
    own. Buffers of layers of PyG and copies within them are none of theirs."""
    try:
        found = findings.inspect(model, batch)
    except Exception as error:  # a model may refuse what is tried on it
        return [f"The model could not be looked at: {one_line(error)}"]
    installed = {
        path for path, m in model.named_modules() if type(m).__module__.startswith(("torch.", "torch_geometric."))
    }

    def places(finding: findings.Finding) -> list[str | None]:
        owner = finding.where.rpartition(".")[0] if finding.kind == "unused_buffer" else None
        return finding.evidence.get("modules", [owner])

    theirs = (finding for finding in found if not installed.issuperset(places(finding)))
    return [finding.sentence for finding in theirs if finding.kind != "constant_output"]
