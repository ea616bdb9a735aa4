"""Does what a fast form was tested under still hold? Asked in each call, in a few microseconds.

    plain_call()                    # nothing around the call that a form was not made for: vmap, tracing, autocast ...
    is_stock(kind, base)            # a class of PyG, or a subclass that changes nothing of what its base computes
    record = Record(layer, opened)  # the layer, and the modules inside that the form does not call but reads
    record.holds()                  # they look as they did

A form replaces the code of a layer, and that of the linear layers and networks inside whose weights it reads. What the
form was tested under is therefore what these modules are: their classes and functions, their attributes, which modules
they hold, that nothing is hooked into them. Attributes that PyG's code never names, such as a counter of the user's,
do not count. Weights may change: a form reads them in each call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils._device import DeviceContext
from torch_geometric.nn.aggr import base as aggr_base
from torch_geometric.nn.conv import MessagePassing

from gnnswap import backends

PLAIN = (Tensor, nn.Parameter)
SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# made by PyG from templates when the first layer of a class is
GENERATED = {"propagate", "edge_updater", "collect", "edge_collect", "_orig_propagate", "_jinja_propagate",
             "_orig_edge_updater", "_jinja_edge_updater"}  # fmt: skip
# what a subclass may have of its own without computing anything else
HARMLESS = {"__init__", "__repr__", "extra_repr", "reset_parameters", "__module__", "__doc__", "__annotations__",
            "__qualname__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__",
            "__abstractmethods__", "_abc_impl", *GENERATED}  # fmt: skip
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)  # that a call of a module runs
PYG_HOOKS = [f"_{place}_forward_{when}hooks" for when in ("", "pre_")
             for place in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")]  # fmt: skip
_EVERYWHERE = [vars(torch_module)[f"_global{name}"] for name in HOOKS]  # hooks of all modules
_KEYS = torch._C._TorchDispatchModeKey


# ---- the call -------------------------------------------------------------------------------------------------------


def plain_call() -> bool:
    """Is this an ordinary call of a module in eager mode?

    Not one under torch.func, vmap or forward-mode derivatives, within a trace or an export, under autocast, with hooks
    on what is saved for gradients (checkpoints compare what two passes save), or with hooks of all modules. There the
    layer's own code runs.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    if torch._C._is_any_autocast_enabled() or torch._C._get_tracing_state() is not None:
        return False
    if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return False
    if torch._C._len_torch_dispatch_stack() and _traced_by_mode():
        return False
    if torch._C._len_torch_function_stack() and not _only_a_default_device():
        return False
    hooks, pre_hooks, back, pre_back = _EVERYWHERE
    return not (hooks or pre_hooks or back or pre_back or torch_module._global_is_full_backward_hook)


def _traced_by_mode() -> bool:
    """Are operators recorded by make_fx, or run on fake tensors, rather than counted by a profiler?"""
    return any(torch._C._get_dispatch_mode(key) is not None for key in (_KEYS.PROXY, _KEYS.FAKE, _KEYS.FUNCTIONAL))


def _only_a_default_device() -> bool:
    modes = (torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack()))
    return all(type(mode) is DeviceContext for mode in modes)


def computable(x: Any) -> bool:
    """Is it a dense tensor of torch's own class, on a device and in a type that there are kernels for?"""
    return type(x) in PLAIN and backends.computes(x) and x.layout is torch.strided


def is_edge_index(edge_index: Any) -> bool:
    """Is it a dense tensor of edges (2, E) on a device with kernels, and nothing that PyG takes in its place?"""
    return (
        type(edge_index) in PLAIN
        and backends.device_type(edge_index) != ""
        and edge_index.layout is torch.strided
        and edge_index.dtype in (torch.int64, torch.int32)
        and edge_index.dim() == 2
        and edge_index.shape[0] == 2
    )


# ---- classes --------------------------------------------------------------------------------------------------------


def is_pyg(kind: type) -> bool:
    """Is the class one of PyG's own?"""
    return kind.__module__.startswith("torch_geometric.")


def is_stock(kind: type[nn.Module], base: type[nn.Module]) -> bool:
    """Does `kind` compute what PyG's class `base` does: is it `base`, or a subclass that overrides nothing of it?"""
    for one in kind.__mro__[: kind.__mro__.index(base)]:
        for name, value in vars(one).items():
            overrides = hasattr(base, name) or isinstance(value, property) or name.startswith("__")
            made = ("torch_geometric.", f"{one.__module__}_{one.__name__}_")  # modules of what PyG generates
            harmless = name in HARMLESS - GENERATED or (name in GENERATED and value.__module__.startswith(made))
            if overrides and not harmless:
                return False
    return all(written_by_pyg(function) for _, function in functions_of(base))


def functions_of(kind: type[nn.Module]) -> list[tuple[str, Any]]:
    """The functions of a layer's class that its result follows from, by name."""
    names = [name for name in vars(MessagePassing) if not name.startswith(("__", "register", "reset"))]
    found = {
        name: inspect.getattr_static(kind, name, None) for name in (*names, "forward", "__getattr__", "_call_impl")
    }
    return [(name, value) for name, value in found.items() if isinstance(value, types.FunctionType)]


@functools.cache
def names_read(base: type[nn.Module]) -> list[tuple[Callable[[], tuple], tuple]]:
    """What the functions of a class of PyG find under the names of their module that are functions of PyG, as PyG has
    them: pairs of a function that reads them and what it gave when this module first asked."""
    found: dict[int, tuple[dict, set[str]]] = {id(vars(aggr_base)): (vars(aggr_base), {"scatter", "segment"})}
    for _, function in functions_of(base):
        names = function.__globals__
        used = {n for n in function.__code__.co_names if isinstance(names.get(n), types.FunctionType)}
        found.setdefault(id(names), (names, set()))[1].update(used)
    readers = [
        functools.partial(itemgetter(*sorted(used), "__name__"), names) for names, used in found.values() if used
    ]
    return [(read, read()) for read in readers]


def written_by_pyg(function: types.FunctionType) -> bool:
    """By the module whose names it reads: `functools.wraps` gives the name of another."""
    return function.__globals__.get("__name__", "").startswith(("torch_geometric.", "torch.nn."))


@functools.cache
def names_in(base: type[nn.Module]) -> frozenset[str]:
    """Every name that the code of a class of PyG or torch holds: what is not among them cannot change its result."""
    found: set[str] = set()
    for one in base.__mro__[: base.__mro__.index(nn.Module)]:
        for value in vars(one).values():
            code = getattr(getattr(value, "fget", value), "__code__", None)
            found.update(_names(code) if code else ())
    return frozenset(found)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (constant for constant in code.co_consts if isinstance(constant, str))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


# ---- hooks ----------------------------------------------------------------------------------------------------------


def hooked(module: nn.Module) -> bool:
    """Are there hooks that a call of this module would run, or has it a method of its own?"""
    attributes = module.__dict__
    for name in HOOKS:  # plain loops here and below: asked in each call, a generator takes three times as long
        if attributes[name]:
            return True
    return "forward" in attributes


def hooked_within(layer: nn.Module, deep: bool) -> bool:
    """Is the layer explained, are there hooks within its propagation or on its aggregation; `deep`: or on any module
    inside?"""
    attributes = layer.__dict__
    if attributes["_explain"]:
        return True
    for name in PYG_HOOKS:
        if attributes[name]:
            return True
    for name, module in layer._modules.items():
        if module is not None and (deep or name == "aggr_module") and _hooked_inside(module):
            return True
    return False


def _hooked_inside(module: nn.Module) -> bool:
    attributes = module.__dict__
    if hooked(module) or ("_explain" in attributes and any(map(attributes.get, PYG_HOOKS))):
        return True
    return any(child is not None and _hooked_inside(child) for child in module._modules.values())


# ---- what a form was tested under -----------------------------------------------------------------------------------


class Record:
    """What a layer and the modules that its form opens look like.

    `reason`: why nothing can be recorded, in a few words; "" where all is. Comparing is one comparison of dictionaries
    a module: what is the same object costs nothing.
    """

    def __init__(
        self, layer: nn.Module, opened: Iterable[nn.Module], base: type[nn.Module], kind: type[nn.Module]
    ) -> None:
        self.layer, self.base, self.kind = layer, base, kind
        self.modules = [layer, *(one for one in opened if one is not layer)]
        self.functions = [(kind, name, function) for name, function in functions_of(kind)]
        inner = {type(module) for module in self.modules[1:]}
        self.functions += [(one, n, getattr(one, n)) for one in inner for n in _CALLED if hasattr(one, n)]
        self.names = names_read(base)
        self.reason = ""
        self.facts = self._facts()
        self._renew()

    def _renew(self) -> None:
        self._before = [(module, type(module), _frozen(module)) for module in self.modules]
        self._tables = [module._parameters for module in self.modules]

    def holds(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Is all as it was, and are the parameters in `dtype` on `device`?"""
        try:
            for kind, name, function in self.functions:
                if getattr(kind, name) is not function:
                    return False
            for read, values in self.names:
                if read() != values:
                    return False
            for module, kind, (in_eval, in_training) in self._before:
                attributes = module.__dict__
                if type(module) is not kind or attributes != (in_training if attributes["training"] else in_eval):
                    return False
            for table in self._tables:
                for one in table.values():
                    if one is not None and (type(one) not in PLAIN or one.dtype is not dtype or one.device != device):
                        return False
        except Exception:  # tensors of several numbers have no truth: something else stands there now
            return False
        return True

    def of_copy(self, layer: nn.Module) -> Record:
        """The same of a copied layer; `same_facts` tells whether it holds for it."""
        other = copy.copy(self)
        other.layer = layer
        return other

    def holds_in_trace(self, layer: nn.Module) -> bool:
        """The same, asked of every attribute by name: so torch.compile compiles anew where one has changed."""
        if self.layer is not layer:
            return False
        for module, kind, (before, _) in self._before:
            if type(module) is not kind:
                return False
            for name, value in before.items():
                if isinstance(value, SCALARS) and name != "training" and getattr(module, name) != value:
                    return False
            for name, child in before["_modules"].items():
                if getattr(module, name) is not child:
                    return False
        return True

    def again(self, opened: Iterable[nn.Module]) -> Record:
        """What the same layer looks like now."""
        return Record(self.layer, opened, self.base, self.kind)

    def same_facts(self, other: Record) -> bool:
        """Is what differs of no account, such as other weights, or a counter?"""
        return (self.facts, self.functions, self.names) == (other.facts, other.functions, other.names)

    def _facts(self) -> list[tuple]:
        facts = []
        for module in self.modules:
            base = self.base if module is self.layer else type(module)
            known = names_in(base)
            values = {n: self._fact(n, v) for n, v in vars(module).items() if n in known and n not in _APART}
            if any(module.__dict__[name] for name in PYG_HOOKS) if module is self.layer else hooked(module):
                self.reason = self.reason or f"hooks of {type(module).__name__}"
            children = [(n, None if c is None else type(c)) for n, c in module._modules.items()]
            tensors = [(n, p is None) for table in (module._parameters, module._buffers) for n, p in table.items()]
            facts.append((self.kind if module is self.layer else type(module), values, children, tensors))
        return facts

    def _fact(self, name: str, value: Any) -> Any:
        """What is compared by value; for all else the object itself."""
        if isinstance(value, SCALARS):
            return type(value), value
        if _is_data(value):
            return copy.deepcopy(value)
        if isinstance(value, Tensor):
            self.reason = self.reason or f"its attribute {name} is a tensor"
        elif getattr(value, "__self__", None) is self.layer or isinstance(value, types.FunctionType):
            self.reason = self.reason or f"its method {name} is replaced"
        return value if callable(value) else id(value)


_CALLED = ("forward", "__call__", "reduce")  # functions of an inner module's class that its result follows from
# torch's own tables, which are looked at by themselves, what changes between calls, and what is of no account
_APART = {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_fast", "inspector",
          "_explain", "_edge_mask", "_loop_mask", "_apply_sigmoid",
          *vars(nn.Identity()), *PYG_HOOKS}  # fmt: skip


def _frozen(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of a module in eval and in training: tables and data by value, so that writes into them are seen;
    parameters and buffers by their table, as their values may change."""
    attributes = dict(module.__dict__)
    attributes["_modules"] = dict(module._modules)
    for name in (*HOOKS, *PYG_HOOKS):
        if name in attributes:
            attributes[name] = copy.copy(attributes[name])
    for name, value in attributes.items():
        if name not in _APART and _is_data(value):
            attributes[name] = copy.deepcopy(value)
    return attributes | {"training": False}, attributes | {"training": True}


def _is_data(value: Any) -> bool:
    """Lists, tuples, dictionaries and sets of numbers and text, at any depth."""
    if isinstance(value, dict):
        return all(
            isinstance(key, SCALARS) and (isinstance(one, SCALARS) or _is_data(one)) for key, one in value.items()
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(isinstance(one, SCALARS) or _is_data(one) for one in value)
    return False
