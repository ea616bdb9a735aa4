"""A layer of PyG, or of anybody's own, that takes its fast form where a trial found it equal.

    make_fast(layer, graphs)       # this one instance; its class, other instances and PyG stay as they are

The instance gets a class of its own, made from its class, with two doors: `forward` takes the direct form (`direct`),
where the layer has one, and `propagate` the one sum (`generic`). At the first call of each the form is tried on drawn
graphs (`equivalence`). What is not equal is not taken, nor a call that a form does not cover (a sparse adjacency,
attention weights to return, explanations, hooks, autocast, another device): there PyG's own code runs.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn.conv import MessagePassing

from gnnswap import compile_ops, direct, equivalence, fused_layers
from gnnswap.cache import TensorCache
from gnnswap.errors import SwapError, one_line
from gnnswap.generic import HOOKS, ON_NODES, Ends, covered, plain, rebound, sizes, sources_of, summed
from gnnswap.neighbours import GraphCache

direct.FORMS.update(fused_layers.FORMS)
# made by PyG from templates and the signatures of the others when the first layer of a class is
GENERATED = {"propagate", "edge_updater", "collect", "edge_collect", "_orig_propagate", "_jinja_propagate",
             "_orig_edge_updater", "_jinja_edge_updater"}  # fmt: skip
PLAIN = (Tensor, nn.Parameter)
DIRECT, SUM, TILES, NONE = "direct form", "one sum", "tiles", "as PyG computes it"
LINEAR = "linear layer on nodes"


class State:
    """What a fast layer knows beside its parameters.

    `direct`: is its direct form equal, by the kind of call (`_kind`); None where an option of the layer rules it out.
    `argument`: over which argument of `propagate` one sum is equal, or ON_NODES where a linear layer on nodes is; ""
    where nothing is, None before the first call. `why`: what the trials found wrong, by door. `waits`: for the first
    call, which gives its weights their shape; nothing is tried before.
    """

    def __init__(self, layer: MessagePassing, graphs: GraphCache) -> None:
        reason = direct.why_not(layer)
        self.graphs = graphs
        self.direct: dict[int | None, bool] | None = None if reason else {}
        self.argument: str | None = None
        self.why = {} if direct.form_of(type(layer)) is None else {DIRECT: reason}
        self.hooks = [layer.__dict__[name] for name in HOOKS]
        self.prepared = TensorCache(4)
        self.waits = any(map(is_lazy, layer.parameters()))

    @property
    def mechanism(self) -> str | None:
        """One of DIRECT, SUM, LINEAR, NONE; None before the first call."""
        if self.direct and any(self.direct.values()):
            return DIRECT
        if self.argument == ON_NODES:
            return LINEAR
        return None if self.argument is None else SUM if self.argument else NONE


def make_fast(layer: MessagePassing, graphs: GraphCache) -> None:
    """Give this layer its fast class; `graphs` that were prepared are shared with other layers."""
    _without_own_propagate(layer)
    layer._fast = State(layer, graphs)
    layer._number = compile_ops.numbered(layer)
    layer.__class__ = fast_class(type(layer))


def original_class(layer: nn.Module) -> type[nn.Module]:
    """The class that the layer had before it was made fast."""
    return getattr(type(layer), "_original", type(layer))


@functools.cache
def fast_class(kind: type[MessagePassing]) -> type[MessagePassing]:
    """The class of the fast layers of this class."""
    code = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(MessagePassing)]):
        functions = {name: f for name, f in vars(base).items() if inspect.isfunction(f) and name not in GENERATED}
        code |= {name: rebound(function) for name, function in functions.items()}
    made = code | {
        "__module__": __name__,
        "__doc__": kind.__doc__,
        "_original": kind,
        "_form": direct.form_of(kind),
        "forward": _forward(kind, code.get("forward", kind.forward)),
        "propagate": _propagate(kind),
        "_orig_propagate": getattr(kind, "_orig_propagate", MessagePassing.propagate),  # what explanations use
        "__setattr__": _setattr(kind),
        "__setstate__": nn.Module.__setstate__,  # PyG's makes a propagate for a class that it does not know
        "__prepare_scriptable__": as_it_was,  # torch.jit.script asks for it
        "__reduce_ex__": lambda self, _: (_blank, (kind,), {n: v for n, v in vars(self).items() if n != "_number"}),
    }
    if "edge_update" in code:
        made["edge_updater"] = _edge_updater(kind)
    return type(f"Fast{kind.__name__}", (kind,), made)


def as_it_was(layer: MessagePassing) -> MessagePassing:
    """The same layer, with the same parameters, of the class that it had before it was made fast."""
    layer = copy.copy(layer)
    layer.__class__ = original_class(layer)
    del layer._fast, layer._number
    return layer


def _without_own_propagate(layer: MessagePassing) -> None:
    """PyG's setters of `explain` and `decomposed_layers` leave the propagate of its class in the layer itself."""
    own = getattr(vars(layer).get("propagate"), "__func__", None)
    if own is not None and own is getattr(type(layer), "_jinja_propagate", None):
        del layer.propagate


def _setattr(kind: type[MessagePassing]) -> Any:
    """A change of what the constructor takes, as `layer.flow = ...`, has the forms tried again."""
    bases = kind.__mro__[: kind.__mro__.index(MessagePassing) + 1]
    options = {"explain"}.union(*(inspect.signature(base.__init__).parameters for base in bases))

    def set_attribute(self, name, value):
        before = getattr(self, name, None) if name in options else None
        kind.__setattr__(self, name, value)
        if name in options and type(value) in (bool, int, float, str) and value != before:
            _without_own_propagate(self)
            self._fast = State(self, self._fast.graphs)

    return set_attribute


def _blank(kind: type[MessagePassing]) -> MessagePassing:
    made = fast_class(kind)
    layer = made.__new__(made)
    layer.__dict__["_number"] = compile_ops.numbered(layer)
    return layer


def _forward(kind: type[MessagePassing], code: Any) -> Any:
    form = direct.form_of(kind)
    if form is None:
        return code
    names = list(inspect.signature(kind.forward).parameters)[3:]  # behind self, x, edge_index

    @functools.wraps(kind.forward)
    def forward(self, x, edge_index, *more, **named):
        state, values = self._fast, None
        if more or named:
            given = {n: v for n, v in (*zip(names, more, strict=False), *named.items()) if v is not None}
            values = given.pop(form.values, None)
            if given:
                return code(self, x, edge_index, *more, **named)
        if torch.compiler.is_compiling():
            out = _traced(self, form, x, edge_index, values)
            return kind.forward(self, x, edge_index, *more, **named) if out is None else out
        graph = None
        if state.direct is not None and _usual(self, state, form, x, edge_index, values):
            tensors = (edge_index,) if values is None else (edge_index, values)
            prepare = functools.partial(_prepared, self, form, x, edge_index, values)
            if values is not None and values.requires_grad:
                graph = prepare()
            else:
                graph = state.prepared.get(tensors, (x.shape[0], x.dtype), prepare)
        return code(self, x, edge_index, *more, **named) if graph is None else form.run(self, x, graph)

    return forward


def _usual(layer: MessagePassing, state: State, form: direct.Form, x: Any, edge_index: Any, values: Any) -> bool:
    """Are these plain tensors of one graph on the CPU, and is nothing hooked in, explained, traced or cast?"""
    if type(x) not in PLAIN or type(edge_index) not in PLAIN or x.dim() != 2 or not x.is_cpu:
        return False
    if values is not None and type(values) not in PLAIN:
        return False
    if any(state.hooks) or layer._explain or torch.is_autocast_enabled("cpu") or torch.jit.is_tracing():
        return False
    return edge_index.layout is torch.strided and all(map(direct.plain_linear, direct.linears_of(layer, form)))


def _kind(values: Tensor | None) -> int | None:
    """Of a call: a form takes only those that it was tried with."""
    return None if values is None else values.dim()


def _prepared(layer: MessagePassing, form: direct.Form, x: Tensor, edge_index: Tensor, values: Tensor | None) -> Any:
    """What the form takes for the graph of this call; None where it does not cover the call."""
    if x.dtype not in (torch.float32, torch.float64) or not plain(edge_index):
        return None
    if edge_index.shape[1] == 0 or x.shape[0] == 0 or any(p.dtype is not x.dtype for p in layer.parameters()):
        return None
    if values is not None and not form.takes(values, x, edge_index):
        return None
    state, kind = layer._fast, _kind(values)
    if kind not in state.direct:
        state.direct[kind] = _try_direct(layer, form, x, edge_index, values)
    if not state.direct[kind]:
        return None
    return form.prepare(layer, state.graphs.get(edge_index, x.shape[0]), values, x.dtype)


def _traced(layer: MessagePassing, form: direct.Form, x: Any, edge_index: Any, values: Any) -> Tensor | None:
    """The form within a trace; None where it does not cover the call. Nothing is drawn at random there."""
    if not (isinstance(x, Tensor) and isinstance(edge_index, Tensor)) or edge_index.layout is not torch.strided:
        return None
    if x.dim() != 2 or x.device.type != "cpu" or (layer.training and getattr(layer, "dropout", 0)):
        return None
    if values is not None and (values.requires_grad or not form.takes(values, x, edge_index)):
        return None
    if not (layer._fast.direct or {}).get(_kind(values)):
        return None
    return form.run(layer, x, compile_ops.Traced(layer, edge_index, values))


def _try_direct(layer: MessagePassing, form: direct.Form, x: Tensor, edge_index: Tensor, values: Tensor | None) -> bool:
    given = {"x": x, "edge_index": edge_index} | ({} if values is None else {form.values: values})
    arguments = equivalence.Arguments(given, x.shape[0], x.shape[0], edge_index.shape[1], nodes_first=("x",))

    def fast(copied: MessagePassing, given: dict[str, Any]) -> Tensor:
        copied._fast.direct, copied._fast.argument = {_kind(given.get(form.values)): True}, ""
        return copied(**given)

    def traced(copied: MessagePassing, given: dict[str, Any]) -> Tensor:
        out = _traced(copied, form, given["x"], given["edge_index"], given.get(form.values))
        return copied(**given) if out is None else out

    own = _as_original(lambda one, given: one(**given))
    return _equal(layer, DIRECT, own, [*[fast] * equivalence.CALLS, traced], arguments)


def _equal(
    layer: MessagePassing, door: str, own: equivalence.Run, forms: list[equivalence.Run], given: equivalence.Arguments
) -> bool:
    """Are the forms equal to the layer's own? What differs stands in `why`."""
    error, what = equivalence.difference(layer, own, forms, given)
    layer._fast.why[door] = "" if error <= equivalence.ALLOWED else what
    return error <= equivalence.ALLOWED


def _as_original(run: equivalence.Run) -> equivalence.Run:
    def own(layer: nn.Module, given: dict[str, Any]) -> Tensor:
        fast, layer.__class__ = type(layer), original_class(layer)
        try:
            return run(layer, given)
        finally:
            layer.__class__ = fast

    return own


def _propagate(kind: type[MessagePassing]) -> Any:
    def propagate(self, edge_index, size=None, **given):
        state = self._fast
        if state.waits:
            if any(map(is_lazy, self.parameters())):
                return kind.propagate(self, edge_index, size=size, **given)
            self._fast = state = State(self, state.graphs)
        if state.argument == "" or not covered(self, edge_index):
            return kind.propagate(self, edge_index, size=size, **given)
        if state.argument is None:
            state.argument = _try_sums(self, kind, edge_index, size, given)
        out = None
        if state.argument:
            out = summed(self, state.graphs, state.argument, edge_index, size, given)
        return kind.propagate(self, edge_index, size=size, **given) if out is None else out

    return propagate


def _try_sums(layer: MessagePassing, kind: type[MessagePassing], edge_index: Tensor, size: Any, given: dict) -> str:
    """The argument over which one sum gives what `propagate` does, "" where there is none."""
    both, why = sizes(layer, size, given), layer._fast.why
    if both is None:
        why[SUM] = "its nodes stand in a dimension of their own"
        return ""
    arguments = equivalence.Arguments(given | {"edge_index": edge_index, "size": size}, *both, edge_index.shape[1])
    own = _as_original(lambda one, given: kind.propagate(one, **given))
    why[SUM] = "its message reads no source node"
    for name in sources_of(layer, given):

        def fast(copied: MessagePassing, given: dict[str, Any], name: str = name) -> Tensor:
            rest = {key: value for key, value in given.items() if key not in ("edge_index", "size")}
            try:
                out = summed(copied, copied._fast.graphs, name, given["edge_index"], given["size"], rest)
            except Exception as error:  # of the layer's own code
                raise SwapError(f"with rows of ones for {name}_j: {one_line(error)}") from error
            if out is None:
                raise SwapError(f"its message is no weight times {name}_j")
            return out

        before = why[SUM]
        if _equal(layer, SUM, own, [fast] * equivalence.CALLS, arguments):
            return name
        if name == ON_NODES:  # why there is no sum says more
            why[SUM] = before
    return ""


def _edge_updater(kind: type[MessagePassing]) -> Any:
    """PyG's, with edges by which the softmax of `edge_update` knows the graph."""

    def edge_updater(self, edge_index, size=None, **given):
        state = self._fast
        known = [v for v in given.values() if isinstance(v, (tuple, list)) and len(v) == 2 and isinstance(v[0], Tensor)]
        if not known or not covered(self, edge_index):
            return kind.edge_updater(self, edge_index, size=size, **given)
        source, target = known[0]
        sources = source.shape[0]
        targets = size[1] if size is not None else sources if target is None else target.shape[0]
        ends = Ends.of(state.graphs.get(edge_index, targets, sources))
        wanted = self._collect(self._edge_user_args, ends.index, [sources, targets], given)
        wanted["index"] = wanted["edge_index_i"] = ends.target
        return self.edge_update(**self.inspector.collect_param_data("edge_update", wanted))

    return edge_updater
