"""A layer of PyG, or the user's own, that runs a faster kernel where the two are equal and its conditions hold.

    make_fast(layer, caches)       # this one instance; its class, other instances and PyG stay as they are

The instance gets a subclass of its class: `forward` runs the kernel written for a layer of PyG (`direct`), `propagate`
a sparse sum (`generic`). The first call of each compares it with the layer's code (`equivalence`). Every call checks
that the conditions of this comparison still hold (`guards`); elsewhere, and for calls that no kernel serves, the
layer's code runs. A layer that changed is compared again, up to `MAX_RETESTS` times.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn.conv import MessagePassing, SimpleConv

from gnnswap import backends, compile_ops, direct, equivalence, generic, guards
from gnnswap import fused_layers as _more_kernels  # noqa: F401  adds to `direct.KERNELS`
from gnnswap.cache import TensorCache, cuda_tensors, nbytes_of
from gnnswap.errors import SwapError, one_line
from gnnswap.neighbours import GraphCache
from gnnswap.probe import NotLinear
from gnnswap.sparse import ANY_SIZE, USUAL, Limits, SparseInputs
from gnnswap.sums import NeighbourSum

DIRECT, SUM, LINEAR, TILES = "own kernel", "sparse sum", "linear layer on nodes", "attention in tiles"
NONE = "as PyG computes it"
MAX_RETESTS = 3  # of a kernel whose layer keeps changing
MOST_UNDONE = 2**20  # bytes of a buffer that is set back where a message has to run again


class Caches:
    """What the layers of one model keep between calls: sorted graphs, sparse inputs, what PyG derives from edges."""

    def __init__(self, limits: Limits = USUAL) -> None:
        self.graphs = GraphCache()
        self.inputs = SparseInputs(limits)
        self.results, self.prepared = TensorCache(), TensorCache(self.graphs.max_bytes)
        self.captured: list[Tensor] = []  # what captured CUDA graphs read

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are kept."""
        return nbytes_of((self.graphs, self.inputs, self.results, self.prepared))

    def forget(self) -> None:
        """Drop all of them."""
        for one in (self.graphs, self.inputs, self.results, self.prepared):
            one.forget()

    def keep_for_capture(self) -> None:
        """Keep all of it as long as the model: a CUDA graph that is being captured will read some of it."""
        self.captured += cuda_tensors((self.graphs, self.inputs, self.results, self.prepared))


class State:
    """What a fast layer knows beside its parameters.

    direct: is its kernel equal, by the kind of call (`_kind`); None where an option of the layer rules the kernel out.
    sums: by device type and sum kernel, the argument of `propagate` over which a sparse sum is equal; ON_NODES where a
        linear layer on nodes is; "" where nothing is. A comparison on a CPU does not hold on a GPU.
    sum_kernel: what computes sums with fixed weights (`NeighbourSum.kernel`); by_kernel: does the layer have one?
    last_device: the type of device of the last call.
    nonlinear: by mode (training or not), why the message is not linear.
    why: by mechanism, how the comparison failed.
    record: the conditions of the comparison; refused: those of a layer that cannot be recorded.
    """

    def __init__(self, layer: MessagePassing, caches: Caches) -> None:
        self.caches, self.retests = caches, 0
        self.why: dict[str, str] = {}
        self.sums: dict[tuple[str, str], str] = {}
        self.sum_kernel, self.by_kernel, self.last_device = "", False, "cpu"
        self.nonlinear: dict[bool, str] = {}
        self.direct: dict[tuple, bool] | None = None
        self.record: guards.Record | None = None
        self.refused: guards.Record | None = None
        self.is_lazy = any(map(is_lazy, layer.parameters()))  # for the first call, which gives its weights their shape
        self.choose(layer)

    def choose(self, layer: MessagePassing) -> None:
        """Choose the kernel written for the layer, if there is one. It has to be compared again."""
        kind = original_class(layer)
        self.direct, self.record = None, None
        kernel = direct.kernel_of(kind)
        if kernel is None:
            return
        reason = direct.why_not(layer)
        if not reason and not guards.is_stock(kind, kernel.kind):
            reason = "a subclass with code of its own"
        if not reason:
            record = guards.Record(layer, kernel.opened(layer), kernel.kind, kind)
            reason = record.reason
        self.why[DIRECT] = reason
        if not reason:
            self.direct, self.record = {}, record

    def holds(self, layer: MessagePassing, kernel: direct.LayerKernel, x: Tensor) -> bool:
        """Do the conditions of the comparison hold, for parameters of the type and device of x? Where the layer changed
        they are recorded again."""
        dtype, device = x.dtype, x.device
        if self.direct is None:
            return False
        if self.record is None:  # it was unpickled
            self.choose(layer)
            return self.record is not None and self.record.holds(dtype, device)
        if self.record.layer is layer and self.record.holds(dtype, device):
            return True
        if any((p.dtype, p.device) != (dtype, device) for p in layer.parameters()) or direct.why_not(layer):
            return False
        if self.refused is not None and self.refused.layer is layer and self.refused.holds(dtype, device):
            return False
        now = self.record.of_copy(layer).again(kernel.opened(layer))
        if now.reason:
            self.refused = now
            return False
        if not self.record.same_facts(now):
            self.retests += 1
            self.direct = {}
        self.record = now
        if self.retests > MAX_RETESTS:
            self.direct, self.why[DIRECT] = None, "the layer keeps changing"
        return self.direct is not None and now.holds(dtype, device)

    def adopt(self, layer: MessagePassing, other: State) -> None:
        """Take over the results of the comparison of a copy of this layer."""
        own = self.record
        self.__dict__.update({**copy.deepcopy(other).__dict__, "caches": self.caches, "refused": None})
        if own is not None and self.record is not None and own.same_facts(self.record.of_copy(layer)):
            self.record = own

    def mechanism(self, device: str) -> str | None:
        """One of DIRECT, SUM, LINEAR, NONE on devices of this type; None before the first call there."""
        where = device, self.sum_kernel
        if any(equal for (_, *key), equal in (self.direct or {}).items() if tuple(key) == where):
            return DIRECT
        argument = self.sums.get(where)
        if argument == generic.ON_NODES:
            return LINEAR
        return None if argument is None else SUM if argument else NONE

    def __deepcopy__(self, memo: dict) -> State:
        """Of a copied layer: the comparison holds for it, too, once its record is the same."""
        made = object.__new__(State)
        made.__dict__.update(self.__dict__)
        made.why, made.nonlinear, made.sums = dict(self.why), dict(self.nonlinear), dict(self.sums)
        made.direct = None if self.direct is None else dict(self.direct)
        made.caches = memo.setdefault(id(self.caches), Caches())
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "caches": Caches(),
            "record": None,
            "refused": None,
            "direct": None if self.direct is None else {},
        }


def make_fast(layer: MessagePassing, caches: Caches) -> None:
    """Give this layer its fast class; layers of one model share their caches."""
    own = getattr(vars(layer).get("propagate"), "__func__", None)
    if own is not None and own is getattr(type(layer), "_jinja_propagate", None):
        del layer.propagate  # PyG's setters of `explain` and `decomposed_layers` leave that of its class there
    layer.__class__ = fast_class(type(layer))
    layer._fast = State(layer, caches)


def make_original(layer: nn.Module) -> None:
    """Give the layer back the class that it had."""
    layer.__class__ = original_class(layer)
    layer.__dict__.pop("_fast", None)


def original_class(layer: nn.Module) -> type[nn.Module]:
    """The class that the layer had before it was made fast."""
    return getattr(type(layer), "_original", type(layer))


_CLASSES: WeakValueDictionary[type, type] = WeakValueDictionary()


def fast_class(kind: type[MessagePassing]) -> type[MessagePassing]:
    """The class of the fast layers of this class. It has no code of `kind` but by inheritance."""
    made = _CLASSES.get(kind)
    if made is None:
        names = {
            "__module__": __name__,
            "__doc__": kind.__doc__,
            "_original": kind,
            "propagate": _propagate(kind),
            "_orig_propagate": getattr(kind, "_orig_propagate", MessagePassing.propagate),  # what explanations use
            "__setattr__": _setattr(kind),
            "__setstate__": nn.Module.__setstate__,  # PyG's makes a propagate for a class that it does not know
            "__prepare_scriptable__": as_it_was,  # torch.jit.script asks for it
            "__reduce_ex__": lambda self, _: (_blank, (kind,), vars(self)),
        }
        names |= {name: _memoized(kind, name) for name in generic.memoized_names(kind)}
        if generic.is_pyg_code(kind.forward) and direct.kernel_of(kind) is not None:
            names["forward"] = _forward(kind)
        if (
            generic.is_pyg_code(getattr(kind, "edge_update", None))
            and kind.edge_update is not MessagePassing.edge_update
        ):
            names["edge_updater"] = _edge_updater(kind)
        made = _CLASSES[kind] = type(f"Fast{kind.__name__}", (kind,), names)
    return made


def as_it_was(layer: MessagePassing) -> MessagePassing:
    """The same layer, with the same parameters, of the class that it had before it was made fast."""
    layer = copy.copy(layer)
    make_original(layer)
    return layer


def _setattr(kind: type[MessagePassing]) -> Callable:
    """PyG's setters leave the propagate of its class in the layer itself, where ours would never be found again."""

    def set_attribute(self, name, value):
        if name == "propagate" and getattr(value, "__func__", None) is getattr(kind, "_jinja_propagate", value):
            self.__dict__.pop(name, None)
        else:
            kind.__setattr__(self, name, value)

    return set_attribute


def _blank(kind: type[MessagePassing]) -> MessagePassing:
    made = fast_class(kind)
    return made.__new__(made)


# ---- the kernel written for the layer -------------------------------------------------------------------------------


def _forward(kind: type[MessagePassing]) -> Callable:
    kernel = direct.kernel_of(kind)
    names = list(inspect.signature(kind.forward).parameters)[3:]  # behind self, x, edge_index
    own = _memoized(kind, "forward")

    @functools.wraps(kind.forward)
    def forward(self, x, edge_index, *more, **named):
        state, values = self._fast, None
        if more or named:
            given = {n: v for n, v in (*zip(names, more, strict=False), *named.items()) if v is not None}
            values = given.pop(kernel.values, None)
            if given:
                return own(self, x, edge_index, *more, **named)
        if torch.compiler.is_compiling():
            out = None if torch.compiler.is_exporting() else _traced(self, kernel, x, edge_index, values)
            return kind.forward(self, x, edge_index, *more, **named) if out is None else out
        prepared = None
        usual = _usual(x, edge_index, values) and guards.plain_call() and getattr(type(self), "_original", None) is kind
        usual = usual and not self.__dict__["_explain"]
        if usual and state.holds(self, kernel, x):
            prepared = _prepared(self, kernel, x, edge_index, values)
        return own(self, x, edge_index, *more, **named) if prepared is None else kernel.run(self, x, prepared)

    return forward


def _usual(x: Any, edge_index: Any, values: Any) -> bool:
    """Are these dense tensors of one graph, on one device with kernels?"""
    if not guards.computable(x) or x.dim() != 2 or not guards.is_edge_index(edge_index):
        return False
    if x.device != edge_index.device:
        return False
    return edge_index.shape[1] > 0 and x.shape[0] > 0 and (values is None or type(values) in guards.PLAIN)


def _kind(x: Tensor, values: Tensor | None, sum_kernel: str) -> tuple[int | None, str, str]:
    """The kind of a call: a kernel serves only those that it was compared in."""
    return None if values is None else values.dim(), backends.device_type(x), sum_kernel


def _prepared(
    layer: MessagePassing, kernel: direct.LayerKernel, x: Tensor, edge_index: Tensor, values: Tensor | None
) -> Any:
    """What the kernel takes for the graph of this call; None where it does not serve the call."""
    state = layer._fast
    if values is not None and not kernel.takes(values, x, edge_index):
        return None
    kind, options = _kind(x, values, state.sum_kernel), kernel.options(layer)
    state.last_device = kind[1]

    def prepare() -> Any:
        graph = state.caches.graphs.get(edge_index, x.shape[0])
        return kernel.prepared(options, graph, values, x.dtype, state.sum_kernel)

    try:
        if kind not in state.direct:
            if backends.cannot_compare(x):
                return None
            state.caches.graphs.get(edge_index, x.shape[0])  # raises for edges that name no node
            state.direct[kind] = _compare_direct(layer, kernel, x, edge_index, values)
        if not state.direct[kind]:
            return None
        if values is not None and values.requires_grad:
            prepared = prepare()
        else:
            tensors = (edge_index,) if values is None else (edge_index, values)
            key = kernel.kind, options, x.shape[0], x.dtype, state.sum_kernel
            prepared = state.caches.prepared.get(tensors, key, prepare)
        state.by_kernel = type(prepared) is NeighbourSum
        if x.is_cuda and backends.capturing():
            state.caches.keep_for_capture()
        return prepared
    except SwapError:  # an edge names a node that does not exist: PyG raises its own error
        return None


def _traced(layer: MessagePassing, kernel: direct.LayerKernel, x: Any, edge_index: Any, values: Any) -> Tensor | None:
    """What the kernel gives within torch.compile; None where it does not serve the call, such as one with dropout."""
    if not (isinstance(x, Tensor) and isinstance(edge_index, Tensor)) or edge_index.layout is not torch.strided:
        return None
    if x.dim() != 2 or not backends.computes(x) or (layer.training and getattr(layer, "dropout", 0)):
        return None
    if torch.is_autocast_enabled(x.device.type) or x.device != edge_index.device:
        return None
    state = layer._fast
    if values is not None and (values.requires_grad or not kernel.takes(values, x, edge_index)):
        return None
    if not (state.direct or {}).get(_kind(x, values, state.sum_kernel)) or not state.record.holds_in_trace(layer):
        return None
    return kernel.run(layer, x, compile_ops.Traced(kernel, kernel.options(layer), edge_index, values, state.sum_kernel))


def _compare_direct(
    layer: MessagePassing, kernel: direct.LayerKernel, x: Tensor, edge_index: Tensor, values: Tensor | None
) -> bool:
    given = {"x": x, "edge_index": edge_index} | ({} if values is None else {kernel.values: values})
    arguments = equivalence.Arguments(given, x.shape[0], x.shape[0], edge_index.shape[1], nodes_first=("x",))

    def allowed(copied: MessagePassing, given: dict[str, Any]) -> None:
        state = _for_comparison(copied)
        state.direct = {_kind(given["x"], given.get(kernel.values), state.sum_kernel): True}

    def fast(copied: MessagePassing, given: dict[str, Any]) -> Tensor:
        allowed(copied, given)
        return copied(**given)

    def traced(copied: MessagePassing, given: dict[str, Any]) -> Tensor:
        allowed(copied, given)
        out = _traced(copied, kernel, given["x"], given["edge_index"], given.get(kernel.values))
        return copied(**given) if out is None else out

    own = _as_original(lambda one, given: one(**given))
    return _equal(layer, DIRECT, own, [*[fast] * equivalence.CALLS, traced], arguments)


def _for_comparison(copied: MessagePassing) -> State:
    """The state of a copy that is compared; inputs of any size may be sparse there."""
    state = copied._fast
    if not getattr(state, "compared", False):
        state.caches, state.compared = Caches(ANY_SIZE), True
        state.sums = {(device, state.sum_kernel): "" for device in ("cpu", "cuda")}
        kernel = direct.kernel_of(original_class(copied))
        if kernel is not None and state.record is not None:
            state.record = state.record.of_copy(copied).again(kernel.opened(copied))
    return state


def _equal(
    layer: MessagePassing,
    how: str,
    own: equivalence.Run,
    fast: list[equivalence.Run],
    given: equivalence.Arguments,
) -> bool:
    """Do the runs in `fast` give what `own` gives? `why` says what differs."""
    error, what = equivalence.difference(layer, own, fast, given)
    layer._fast.why[how] = "" if error <= equivalence.ALLOWED else what
    return error <= equivalence.ALLOWED


def _as_original(run: equivalence.Run) -> equivalence.Run:
    def own(layer: nn.Module, given: dict[str, Any]) -> Tensor:
        fast, layer.__class__ = type(layer), original_class(layer)
        try:
            return run(layer, given)
        finally:
            layer.__class__ = fast

    return own


# ---- PyG's own code, and one sum ------------------------------------------------------------------------------------


def _memoized(kind: type[MessagePassing], name: str) -> Callable:
    """A function of the class; in PyG's own code functions of edges are memoized."""

    @functools.wraps(getattr(kind, name))
    def run(self, *arguments, **named):
        own = getattr(kind, name)
        if torch.compiler.is_compiling() or not generic.is_pyg_code(own) or not guards.plain_call():
            return own(self, *arguments, **named)
        memoized = generic.memoized_code(own)
        if memoized is own:
            return own(self, *arguments, **named)
        with generic.memoized_in(self._fast.caches.results):
            return memoized(self, *arguments, **named)

    return run


def _propagate(kind: type[MessagePassing]) -> Callable:
    def propagate(self, edge_index, size=None, **given):
        state = self._fast
        where = (backends.device_type(edge_index), state.sum_kernel) if type(edge_index) in guards.PLAIN else None
        argument = state.sums.get(where)
        if argument == "" or self.training in state.nonlinear or torch.compiler.is_compiling():
            return kind.propagate(self, edge_index, size=size, **given)
        if state.is_lazy:
            if any(map(is_lazy, self.parameters())):
                return kind.propagate(self, edge_index, size=size, **given)
            self._fast = state = State(self, state.caches)
        if not guards.plain_call() or not generic.supported(self, kind, edge_index):
            return kind.propagate(self, edge_index, size=size, **given)
        if argument is None:
            if not generic.comparable(given, edge_index.device) or backends.cannot_compare(edge_index):
                return kind.propagate(self, edge_index, size=size, **given)
            state.last_device = where[0]
            try:
                argument = state.sums[where] = _compare_sums(self, kind, edge_index, size, given)
            except SwapError:  # an edge names a node that does not exist: PyG raises its own error
                return kind.propagate(self, edge_index, size=size, **given)
            if not argument:
                return kind.propagate(self, edge_index, size=size, **given)
        own = not generic.is_pyg_code(kind.message) or "message" in self.__dict__
        if edge_index.is_cuda and backends.capturing():
            state.caches.keep_for_capture()
        undo_draws, undo = backends.random_state(edge_index.device), _undo(self) if own else None
        why = ""
        try:
            return generic.as_sparse_sum(self, state.caches.graphs, argument, edge_index, size, given)
        except NotLinear as problem:
            why = str(problem) if type(problem) is NotLinear else ""
        except Exception as problem:  # of the layer's own code, which raises it again below, or of its rows alone
            why = f"its message fails on rows of nodes: {one_line(problem)}"
        undo_draws()
        if undo is not None:
            undo()
        out = kind.propagate(self, edge_index, size=size, **given)
        if why and own:
            state.nonlinear[self.training] = why
        return out

    return propagate


def _undo(layer: MessagePassing) -> Callable[[], None]:
    """A function that takes back what a message left in the layer and in modules inside: attributes such as a counter
    or an entry in a list, and buffers such as those of a batch norm, up to `MOST_UNDONE`."""
    own, buffers = [], []
    for module in layer.modules():
        if module is layer or not type(module).__module__.startswith(("torch.nn.", "torch_geometric.nn.")):
            attributes = module.__dict__
            kept = {name: (value, _mark(value)) for name, value in attributes.items() if name not in _OF_PYG}
            own.append((attributes, kept))
        for name, one in module._buffers.items():  # a batch norm writes to its own without a new version
            before = None if one is None or one.is_inference() or one.nbytes > MOST_UNDONE else one.clone()
            buffers.append((module._buffers, name, one, before))

    def undo() -> None:
        for attributes, kept in own:
            for name in [name for name in attributes if name not in _OF_PYG and name not in kept]:
                del attributes[name]
            for name, (value, before) in kept.items():
                attributes[name] = value
                if type(value) is list:
                    del value[before:]
                elif before is not None:
                    value.clear()
                    value.update(before)
        with torch.no_grad():
            for table, name, buffer, before in buffers:
                table[name] = buffer
                if before is not None:
                    buffer.copy_(before)

    return undo


def _mark(value: Any) -> Any:
    """How long a list was, as logs grow at their end; the entries of a dictionary or a set."""
    return len(value) if type(value) is list else copy.copy(value) if type(value) in (dict, set) else None


# attributes of every layer; not of a bare MessagePassing, whose class PyG would change
_OF_PYG = {*vars(SimpleConv()), "_fast"}


def _compare_sums(layer: MessagePassing, kind: type[MessagePassing], edge_index: Tensor, size: Any, given: dict) -> str:
    """The argument over which one sum gives what `propagate` does, "" where there is none."""
    both, why = generic.sizes(layer, size, given), layer._fast.why
    if both is None:
        why[SUM] = "its nodes stand in a dimension of their own"
        return ""
    layer._fast.caches.graphs.get(edge_index, both[1], both[0])  # raises where nothing can be compared
    arguments = equivalence.Arguments(given | {"edge_index": edge_index, "size": size}, *both, edge_index.shape[1])
    own = _as_original(lambda one, given: kind.propagate(one, **given))
    why[SUM] = "its message reads no source node"
    for name in generic.sources_of(layer, given):

        def fast(copied: MessagePassing, given: dict[str, Any], name: str = name) -> Tensor:
            rest = {key: value for key, value in given.items() if key not in ("edge_index", "size")}
            graphs = _for_comparison(copied).caches.graphs
            try:
                return generic.as_sparse_sum(copied, graphs, name, given["edge_index"], given["size"], rest)
            except NotLinear as problem:
                source = "its message" if name in (generic.ON_NODES, generic.WHOLE) else f"its message, of {name}_j"
                raise NotLinear(f"{source}: {problem}") from None

        before = why[SUM]
        if _equal(layer, SUM, own, [fast] * equivalence.CALLS, arguments):
            return name
        if name == generic.ON_NODES:  # the reason why there is no sum is more useful
            why[SUM] = before
    return ""


def _edge_updater(kind: type[MessagePassing]) -> Callable:
    """PyG's, with edges by which the softmax of PyG's own `edge_update` knows the graph."""

    def edge_updater(self, edge_index, size=None, **given):
        known = [v for v in given.values() if isinstance(v, (tuple, list)) and len(v) == 2 and isinstance(v[0], Tensor)]
        code = None if torch.compiler.is_compiling() else generic.own_code(self, "edge_update")
        if code is None or not known or not guards.plain_call() or not generic.supported(self, kind, edge_index):
            return kind.edge_updater(self, edge_index, size=size, **given)
        source, target = known[0]
        sources = source.shape[0]
        targets = size[1] if size is not None else sources if target is None else target.shape[0]
        try:
            ends = generic.given_edges(self._fast.caches.graphs.get(edge_index, targets, sources))
        except SwapError:
            return kind.edge_updater(self, edge_index, size=size, **given)
        wanted = self._collect(self._edge_user_args, ends.index, [sources, targets], given)
        wanted["index"] = wanted["edge_index_i"] = ends.target
        return code(self, **self.inspector.collect_param_data("edge_update", wanted))

    return edge_updater
