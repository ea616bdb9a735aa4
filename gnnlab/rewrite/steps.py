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
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data

from gnnlab import machine
from gnnlab.errors import GnnlabError, one_line
from gnnlab.profiling import findings
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.rewrite import around, engines, forward_edits
from gnnlab.rewrite import dense as small
from gnnlab.rewrite import sparse_inputs as sparse
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
    """`apart`: kinds of steps that it does not go with. `code`: how the written module calls it. `starts`: how long it
    takes to try, in starts of a process that loads torch and the model. `slow`: it is made anew for a new size, so that
    the proof asks it on fewer graphs."""

    name: str
    does: str
    look: Look
    apply: Apply
    code: str
    kind: str  # constant|rewrite|layers|engine|condition
    apart: frozenset[str] = frozenset()
    training: bool = True
    exact: bool = True
    starts: float = 0.02
    slow: bool = False


def yours(factory: Callable[..., nn.Module], data: Data, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """The model that a factory of the user's makes, and what its forward takes of the graph `data`."""
    _, model, batch = models.of_the_user(factory, data, options)
    return model, batch


# ---- what each does -------------------------------------------------------------------------------------------------


def constant_output(model: nn.Module, batch: Any) -> nn.Module:
    """The output computed once and kept while the weights stay as they are."""
    return around.constant(model)


def mean_first(model: nn.Module, batch: Any) -> nn.Module:
    """A mean over nodes before the linear layer that it follows."""
    return forward_edits.mean_first(model, batch)


def without_unused(model: nn.Module, batch: Any) -> nn.Module:
    """What nothing uses is not computed."""
    return forward_edits.without_unused(model, batch)


def without_copies(model: nn.Module, batch: Any) -> nn.Module:
    """No copies before what only reads."""
    return forward_edits.without_copies(model, batch)


def dense_layers(model: nn.Module, batch: Any) -> nn.Module:
    """Layers of PyG as products with a dense adjacency, on small graphs."""
    return small.dense(model)


def sparse_inputs(model: nn.Module, batch: Any) -> nn.Module:
    """Linear layers that leave out the zeros of the input."""
    return sparse.sparse_inputs(model, batch)


def fast_layers(model: nn.Module, batch: Any) -> nn.Module:
    """Layers of PyG on the lab's own sum; see `swap`."""
    return swap(model).model


def compiled(model: nn.Module, batch: Any) -> nn.Module:
    """The forward through torch.compile and its own backend."""
    return around.compiled(model, "inductor")


def compiled_sums(model: nn.Module, batch: Any, then: str = "eager") -> nn.Module:
    """The forward through torch.compile and the lab's backend, which hands the rest to `then` (eager|inductor)."""
    from gnnlab.rewrite.backend import backend  # which takes a second to load

    return around.compiled(model, functools.partial(backend, options={"then": then}))


def openvino(model: nn.Module, batch: Any) -> nn.Module:
    """The whole model in OpenVINO."""
    return engines.openvino(model)


def onnxruntime(model: nn.Module, batch: Any) -> nn.Module:
    """The whole model in ONNX Runtime."""
    return engines.onnxruntime(model)


def inference(model: nn.Module, batch: Any) -> nn.Module:
    """Eval mode, and no graph for gradients."""
    return around.inference(model)


def threads(model: nn.Module, batch: Any, count: int) -> nn.Module:
    """So many threads of torch in each call."""
    return around.threads(model, count)


def this_size_only(model: nn.Module, batch: Any) -> nn.Module:
    """Refuses tensors of other shapes, on which the form was wrong."""
    return around.this_size_only(model, batch)


def bfloat16(model: nn.Module, batch: Any) -> nn.Module:
    """Products and sums in bfloat16."""
    return around.autocast(model)


def medium_products(model: nn.Module, batch: Any) -> nn.Module:
    """Float32 products that may be computed in bfloat16."""
    return around.products(model, "medium")


def int8_weights(model: nn.Module, batch: Any) -> nn.Module:
    """Linear layers in int8, activations quantized at each call."""
    from torch.ao.quantization import quantize_dynamic

    for path in _linear(model):
        layer = model.get_submodule(path)
        if type(layer) is not nn.Linear:
            plain = nn.Linear(layer.in_channels, layer.out_channels, layer.bias is not None)
            plain.load_state_dict(layer.state_dict())
            model.set_submodule(path, plain)
    return quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)


def _linear(model: nn.Module) -> tuple[str, ...]:
    """Paths of the linear layers of torch and PyG in a model, which is none itself."""
    return tuple(path for path, layer in model.named_modules() if path and type(layer) in (nn.Linear, pyg.Linear))


# ---- does it apply? -------------------------------------------------------------------------------------------------


def _always(why: str) -> Look:
    return lambda model, batch: Applicability(True, why)


def _look_constant(model: nn.Module, batch: Any) -> Applicability:
    if any(True for _ in tensors_in(batch)):
        return Applicability(False, "tensors go in")
    return Applicability(True, "no tensor goes in: in eval the output follows from the weights")


def _look_edit(places: Callable[[nn.Module, Any], tuple[str, ...]], found: str) -> Look:
    """Where a forward can be edited; `found` says of the places what they are."""

    def look(model: nn.Module, batch: Any) -> Applicability:
        try:
            at = places(model, batch)
        except GnnlabError as error:
            return Applicability(False, str(error))
        return Applicability(True, found.format(", ".join(at)), at if found.startswith("a mean") else None)

    return look


def _dense_places(model: nn.Module, batch: Any) -> tuple[str, ...]:
    if isinstance(batch, Data):
        return small.places(model, batch.num_nodes)
    x = batch.get("x") if isinstance(batch, dict) else next(iter(tensors_in(batch)), None)
    if x is None:
        raise GnnlabError("no x goes in that says how many nodes there are")
    return small.places(model, len(x))


def _look_sparse(model: nn.Module, batch: Any) -> Applicability:
    try:
        found = sparse.places(model, batch)
    except GnnlabError as error:
        return Applicability(False, str(error))
    return Applicability(True, f"{', '.join(found)}: {min(found.values()):.1%} of the input is not zero", tuple(found))


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
    paths = _linear(model)
    if not paths:
        return Applicability(False, "it has no linear layers of torch or PyG")
    return Applicability(True, f"{len(paths)} linear layer{'s' * (len(paths) > 1)}", paths)


# ---- the registry ---------------------------------------------------------------------------------------------------

GUARD = "this size only"
_ALONE = frozenset({"engine", "layers"})


def _thread_counts() -> list[int]:
    counts, most = [1], machine.cores()
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def _threads_step(count: int) -> RewriteStep:
    def look(model: nn.Module, batch: Any) -> Applicability:
        now = torch.get_num_threads()
        return Applicability(count != now, f"torch has {now}" if count != now else "torch has as many already")

    return RewriteStep(
        f"{count} thread{'s' * (count > 1)}",
        f"runs each call on {count} of the machine's cores",
        look,
        lambda model, batch: threads(model, batch, count),
        f"steps.threads(model, batch, {count})",
        "condition",
        frozenset({"condition"}),
    )


_ALL = (  # tried in this order: first what brings most models most
    RewriteStep(
        "fast layers",
        "sums over neighbours without a row an edge",
        _look_layers,
        fast_layers,
        "steps.fast_layers(model, batch)",
        "layers",
    ),
    RewriteStep(
        "constant output",
        "keeps an output that no input changes",
        _look_constant,
        constant_output,
        "steps.constant_output(model, batch)",
        "constant",
        frozenset({"rewrite", "layers", "engine", "mode", "condition"}),
        training=False,
    ),
    RewriteStep(
        "mean before linear",
        "pools before a linear layer in place of after it",
        _look_edit(forward_edits.mean_places, "a mean over nodes follows {}"),
        mean_first,
        "steps.mean_first(model, batch)",
        "rewrite",
    ),
    RewriteStep(
        "no unused results",
        "leaves out what neither the output nor anything else uses",
        _look_edit(forward_edits.unused_places, "nothing uses {}"),
        without_unused,
        "steps.without_unused(model, batch)",
        "rewrite",
    ),
    RewriteStep(
        "no needless copies",
        "leaves out clone and contiguous before what only reads",
        _look_edit(forward_edits.copy_places, "{}"),
        without_copies,
        "steps.without_copies(model, batch)",
        "rewrite",
    ),
    RewriteStep(
        "sparse inputs",
        "leaves out the zeros of an input that comes again",
        _look_sparse,
        sparse_inputs,
        "steps.sparse_inputs(model, batch)",
        "rewrite",
    ),
    RewriteStep(
        "dense small graph",
        "multiplies with a dense adjacency, on graphs of some hundred nodes",
        _look_edit(_dense_places, "{}"),
        dense_layers,
        "steps.dense_layers(model, batch)",
        "rewrite",
    ),
    RewriteStep(
        "inference mode",
        "records nothing for gradients",
        _always("eval mode, torch.no_grad"),
        inference,
        "steps.inference(model, batch)",
        "mode",
        training=False,
    ),
    *map(_threads_step, _thread_counts()),
    RewriteStep(
        "OpenVINO",
        "runs the whole model in OpenVINO",
        _look_installed("openvino"),
        openvino,
        "steps.openvino(model, batch)",
        "engine",
        _ALONE | {"mode"},
        training=False,
        starts=1.0,
    ),
    RewriteStep(
        "ONNX Runtime",
        "runs the whole model in ONNX Runtime",
        _look_installed("onnxruntime"),
        onnxruntime,
        "steps.onnxruntime(model, batch)",
        "engine",
        _ALONE | {"mode"},
        training=False,
        starts=2.0,
    ),
    RewriteStep(
        "medium products",
        "lets torch compute float32 products in bfloat16",
        _always("a setting of torch"),
        medium_products,
        "steps.medium_products(model, batch)",
        "precision",
        exact=False,
    ),
    RewriteStep(
        "bfloat16",
        "products and sums in bfloat16",
        _always("torch.autocast"),
        bfloat16,
        "steps.bfloat16(model, batch)",
        "precision",
        exact=False,
    ),
    RewriteStep(
        "int8",
        "linear layers in int8",
        _look_int8,
        int8_weights,
        "steps.int8_weights(model, batch)",
        "precision",
        training=False,
        exact=False,
    ),
    RewriteStep(
        "torch.compile, gnnlab",
        "makes sums of gathers and scatters",
        _always("gathers and scatters of the traced graph become sums"),
        compiled_sums,
        "steps.compiled_sums(model, batch)",
        "engine",
        _ALONE,
        starts=2.0,
        slow=True,
    ),
    RewriteStep(
        "torch.compile, gnnlab, Inductor",
        "makes sums of gathers and scatters and fuses the rest",
        _always("the same, and the rest goes to Inductor"),
        lambda model, batch: compiled_sums(model, batch, "inductor"),
        'steps.compiled_sums(model, batch, "inductor")',
        "engine",
        _ALONE,
        starts=4.0,
        slow=True,
    ),
    RewriteStep(
        "torch.compile",
        "fuses operators by Inductor",
        _always("its default backend"),
        compiled,
        "steps.compiled(model, batch)",
        "engine",
        _ALONE,
        starts=4.0,
        slow=True,
    ),
    RewriteStep(
        GUARD,
        "refuses tensors of other shapes, on which the form is wrong",
        lambda model, batch: Applicability(False, "it guards other steps"),
        this_size_only,
        "steps.this_size_only(model, batch)",
        "guard",
    ),
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
    own. Copies within layers of PyG are none of theirs."""
    try:
        found = findings.inspect(model, batch)
    except Exception as error:  # a model may refuse what is tried on it
        return [f"The model could not be looked at: {one_line(error)}"]
    installed = {
        path for path, m in model.named_modules() if type(m).__module__.startswith(("torch.", "torch_geometric."))
    }
    theirs = (f for f in found if not installed.issuperset(f.evidence.get("modules", [None])))
    return [finding.sentence for finding in theirs if finding.kind != "constant_output"]
