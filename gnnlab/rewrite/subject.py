"""The user's model on the user's graph, as it is measured and proven; what is refused before anything is measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, shown
from gnnlab.profiling.context import ProfilingContext, call
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.profiling.races import relative_error
from gnnlab.workloads import models

RANDOM = 1e-3  # relative; threads that add in another order differ by less


@dataclass(frozen=True)
class UserModel:
    """A model of the user's, on a graph. With `train` it is in training mode with every dropout rate at 0, so that two
    passes can be compared; else it is in eval mode."""

    spec: str
    data: Data
    model: nn.Module
    batch: Any
    train: bool

    @property
    def keeps_its_graph(self) -> bool:
        """Has it a layer of PyG with `cached=True`, which keeps the first graph and takes no other?"""
        return any(getattr(module, "cached", False) is True for module in self.model.modules())


def load(spec: str, graph: str, train: bool) -> UserModel:
    """The subject of `module:factory` on a graph that `workloads.graphs` takes.

    Raises:
        GnnlabError: in one line, for whatever cannot be built or called.
    """
    if ":" not in spec:
        raise GnnlabError(
            f"{shown(spec)} is no module:factory; write a function that makes your model, as my_models:make"
        )
    if train:  # for good: this process is the subject's alone, and what it draws is no other form's
        nn.functional.dropout = torch.dropout = _kept
    made = models.build(spec, graph)
    context = ProfilingContext(made.model.train(train), disable_dropout=train, eval_mode=not train)
    context.__enter__()  # for good as well
    return UserModel(spec, made.graph, made.model, made.batch, train)


def _kept(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout that drops nothing, and is seen by what follows a forward."""
    if has_torch_function_unary(input):
        return handle_torch_function(_kept, (input,), input, p=p, training=training, inplace=inplace)
    return input


def check(subject: UserModel) -> None:
    """Can the model be measured and compared? Raises `GnnlabError`: its output is no tensor or not finite, it is random
    in eval mode (to be trained, also beyond dropout), it changes its weights or inputs in eval mode."""
    tensors = _state(subject)
    before = {name: (tensor._version, tensor.detach().clone()) for name, tensor in tensors.items()}
    with torch.no_grad():
        for train in sorted({False, subject.train}):
            subject.model.train(train)
            first = copy.deepcopy(call(subject.model, subject.batch))
            _tensors_alone(subject.spec, first)
            if not train:
                _unchanged(subject, before)
            if (apart := relative_error(first, call(subject.model, subject.batch))) > RANDOM:
                mode = "training mode, with dropout at 0" if train else "eval mode"
                raise GnnlabError(
                    f"{subject.spec} is random in {mode}: two calls differ by {apart:.1g} relative; make it depend on "
                    "self.training, or fix what it draws"
                )


def _state(subject: UserModel) -> dict[str, Tensor]:
    held = dict(subject.model.named_parameters()) | dict(subject.model.named_buffers())
    fields = subject.batch if isinstance(subject.batch, Mapping) else subject.data.to_dict()
    inputs = {f"its argument {name}": value for name, value in fields.items() if isinstance(value, Tensor)}
    return {f"its weight {name}": value for name, value in held.items()} | inputs


def _unchanged(subject: UserModel, before: Mapping[str, tuple[int, Tensor]]) -> None:
    """A write that leaves the same numbers counts, too: the forward before this one has changed them."""
    now = _state(subject)
    for name, (version, value) in before.items():
        if name not in now or now[name]._version != version or not torch.equal(now[name], value):
            raise GnnlabError(
                f"{subject.spec}: its forward changes {name} in eval mode, so that no two calls compute the same; "
                "write to a copy"
            )


def _tensors_alone(spec: str, output: Any) -> None:
    found = _other(output)
    if found is not None:
        raise GnnlabError(
            f"{spec}: its forward returns {found}; a tensor, or tuples, lists and dicts of tensors are needed"
        )
    if not list(tensors_in(output)):
        raise GnnlabError(f"{spec}: its forward returns no tensor; nothing can be compared")
    if not all(tensor.isfinite().all() for tensor in tensors_in(output)):
        raise GnnlabError(f"{spec}: its output holds NaN or infinity, which agrees with anything; look at that first")


def _other(output: Any) -> str | None:
    """What in an output is no tensor, None where there is nothing."""
    if output is None or isinstance(output, Tensor):
        return None
    if isinstance(output, Mapping):
        return next((found for value in output.values() if (found := _other(value))), None)
    if isinstance(output, tuple | list):
        return next((found for value in output if (found := _other(value))), None)
    return f"{type(output).__name__} {shown(output)}"
