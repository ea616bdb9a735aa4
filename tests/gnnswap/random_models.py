"""Random models, graphs and sequences of calls and changes: the fast model must stay equal to the original.

    python tests/gnnswap/random_models.py 20000 --start 0    # 20,000 sequences
    python tests/gnnswap/random_models.py 1 --start 17 -v    # sequence 17 alone, step by step

All of a sequence follows from one integer. Each change is applied alike to the original, which is a copy with weights
of its own, and to the fast model. After each call outputs, gradients, some second derivatives, buffers, counters of
the layers and the state of the random generator are compared. All is in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import random
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "shared")]

import random_layers
import torch
from layer_cases import EDGE
from random_layers import ACTIVATIONS, LINEAR_STEPS, NEEDS_WEIGHT, SETTINGS, WIDTH, Own, network
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MaxAggregation, MeanAggregation, MessagePassing, SumAggregation

from gnnswap import swap

TOLERANCE, FLOOR = 1e-8, 1e-12  # of the largest value of a tensor; of the largest gradient: one may be zero
AUTOCAST = 0.05
FLOATS = "weight", "attr", "wide"


class Chain(nn.Module):
    """Layers one after the other, each with an activation behind it."""

    def __init__(self, layers: list[tuple[nn.Module, tuple[str, ...]]], act: nn.Module) -> None:
        super().__init__()
        self.layers, self.takes, self.act = nn.ModuleList(m for m, _ in layers), [takes for _, takes in layers], act

    def forward(self, x: Tensor, edge_index: Tensor, given: dict[str, Any]) -> Tensor:
        for layer, takes in zip(self.layers, self.takes, strict=True):
            x = F.pad(x, (0, WIDTH - x.shape[-1]))  # or cut
            x = self.act(layer(x, edge_index, *(given[name] for name in takes)))
        return x


@dataclass
class Inputs:
    """What both models are called with: the same objects in each call, until a change replaces or writes them."""

    x: Tensor  # (N, WIDTH)
    edges: Tensor  # (2, E)
    given: dict[str, Any]  # weight (E,), attr (E, EDGE), wide (E, WIDTH), types (E,), tau, mode

    @property
    def floats(self) -> list[Tensor]:
        return [self.x, *map(self.given.get, FLOATS)]


@dataclass
class Outcome:
    """One sequence: what was done in it, how much was compared, and what was wrong ("" nothing)."""

    seed: int
    steps: list[str] = field(default_factory=list)
    calls: int = 0
    raised: int = 0  # calls that the original refuses; the fast model has to refuse them, too
    layers: int = 0
    replaced: int = 0
    with_gradients: int = 0
    fast: int = 0  # of those with gradients: calls in whose graph of gradients a function stands that is not torch's
    wrong: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.wrong or 'equal'} | {' | '.join(self.steps)}"


class Different(Exception):
    """The fast model did something else than the original."""


class Sequence:
    """A pair of models and what is done with both."""

    def __init__(self, seed: int) -> None:
        self.rng, self.outcome = random.Random(seed), Outcome(seed)
        torch.manual_seed(seed)
        random_layers.GAIN, SETTINGS["slope"] = 1.0, 0.5
        self.inputs = drawn_inputs(self.rng)
        layers = [random_layers.layer(self.rng) for _ in range(self.rng.choice([1, 1, 1, 2, 2, 3]))]
        if self.rng.random() < 0.1:
            layers.append(layers[0])  # one layer in two places
        model = Chain(layers, ACTIVATIONS[self.rng.choice(list(ACTIVATIONS))]()).double()
        model.train(self.rng.random() < 0.5)
        self.undo: list[tuple[Callable[[], None], ...]] = []  # takes a hook off again, by model
        self.original, self.model = copy.deepcopy(model), model

    def run(self) -> Outcome:
        """Calls and changes in turns; ends at the first difference."""
        try:
            self._swap()
            self._call()
            for _ in range(self.rng.choice([2, 3, 3, 4])):
                for _ in range(self.rng.choice([0, 1, 1, 2])):
                    self._change()
                self._call()
            layers = [layer for layer in self.original.modules() if isinstance(layer, MessagePassing)]
            self.outcome.layers, self.outcome.replaced = len(layers), len(self.report.replaced)
        except Different as difference:
            self.outcome.wrong = str(difference)
        return self.outcome

    def both(self, change: Callable[[nn.Module], Any]) -> list[Any]:
        """The same change of both models, drawing the same numbers; what each of the two gave."""
        (expected, _), (got, _) = self._of_each(change)
        if isinstance(expected, Exception) != isinstance(got, Exception):
            raise Different(f"the change raises for one of the models alone: {_short(expected)}, {_short(got)}")
        if isinstance(expected, Exception):  # changed alike up to there
            raise expected
        return [expected, got]

    def _of_each(self, function: Callable[[nn.Module], Any]) -> list[tuple[Any, Tensor]]:
        """(what it gives or raises, the random generator's state behind it), of the original and the fast model."""
        salt, found = self.rng.randrange(2**30), []
        for model in self.models:
            torch.manual_seed(salt)
            try:
                result = function(model)
            except Exception as error:
                result = error
            found.append((result, torch.get_rng_state()))
        return found

    def pick(self, *kinds: type[nn.Module]) -> str:
        """The path of a module of these kinds."""
        return self.rng.choice([p for p, one in self.original.named_modules() if isinstance(one, kinds) and p])

    def _swap(self) -> None:
        example = (self.inputs.x, self.inputs.edges, self.inputs.given) if self.rng.random() < 0.4 else None
        try:
            copy.deepcopy(self.model)(*(example or ()))
        except Exception:
            example = None  # there is none, or the model does not run on it
        try:
            self.report = swap(self.model, example, measure=False)
        except Exception as error:
            raise Different(f"swap raises {_short(error)}") from error
        self.models = (self.original, self.report.model)
        shown = " > ".join(f"{type(one).__name__}{getattr(one, 'steps', '')}" for one in self.model.layers)
        sizes = f"{self.inputs.x.shape[0]} nodes, {self.inputs.edges.shape[1]} edges"
        self.outcome.steps.append(f"{shown}, {sizes}{', example' if example else ''}")

    def _change(self) -> None:
        name = self.rng.choice(list(CHANGES))
        self.outcome.steps.append(name)
        try:
            self.outcome.steps[-1] += f" {CHANGES[name](self) or ''}"
        except Different:
            raise
        except Exception as error:  # the original cannot be changed so
            self.outcome.steps[-1] += f" not possible: {type(error).__name__}"

    def _call(self) -> None:
        how = drawn_call(self.rng, self.inputs)
        self.outcome.steps.append(f"call {how}")
        (expected, drawn), (got, drawn_too) = self._of_each(lambda model: how.results(model, self.inputs))
        if isinstance(expected, Exception):
            self.outcome.raised += 1
            if not isinstance(got, Exception):
                raise Different(f"the original raises {_short(expected)}, the fast model does not")
            return
        if isinstance(got, Exception):
            raise Different(f"raises {_short(got)}")
        self.outcome.calls += 1
        output = got[0][1]
        if output.grad_fn is not None:
            self.outcome.with_gradients += 1
            self.outcome.fast += _not_torchs(output.grad_fn)
        _require_equal(expected, got, AUTOCAST if how.through == "autocast" else TOLERANCE)
        if not torch.equal(drawn, drawn_too):
            raise Different("the random generator stands elsewhere after the call")
        _require_equal(*(list(model.state_dict().items()) for model in self.models), TOLERANCE)
        left = [_left_behind(model) for model in self.models]
        if not _close(*left):
            raise Different(f"counters and logs are {left[1]}, of the original {left[0]}")


def drawn_inputs(rng: random.Random) -> Inputs:
    n = rng.choice([1, 2, 5, *range(10, 71, 4), *range(75, 150, 10)])
    e = rng.choice([0, 1, n, 2 * n, 3 * n, 5 * n])
    kind = rng.choice(["any", "any", "any", "repeated", "loops", "one target", "few nodes", "int32"])
    edges = torch.randint(n, (2, e))
    if kind == "repeated":
        edges = edges[:, torch.randint(max(e, 1), (e,)) // 2]
    elif kind == "loops" and e:
        edges[1, : e // 2] = edges[0, : e // 2]
    elif kind == "one target":
        edges[1] = n - 1
    elif kind == "few nodes":
        edges %= max(n // 2, 1)
    x, kind = torch.randn(n, WIDTH, dtype=torch.float64), rng.random()
    if kind < 0.05:
        x[rng.randrange(n), rng.randrange(WIDTH)] = rng.choice([math.nan, math.inf, -math.inf])
    elif kind < 0.15:
        x = (torch.rand(n, WIDTH) < 0.1).double()
    elif kind < 0.25:
        x = x * 100
    return Inputs(x, edges.int() if kind == "int32" else edges, of_edges(e) | {"tau": 1.0, "mode": "plain"})


def of_edges(e: int) -> dict[str, Tensor]:
    floats = {"weight": torch.rand(e) + 0.1, "attr": torch.rand(e, EDGE), "wide": torch.rand(e, WIDTH)}
    return {name: one.double() for name, one in floats.items()} | {"types": torch.randint(3, (e,))}


def drawn_call(rng: random.Random, inputs: Inputs) -> Call:
    grad = rng.choice(["grad"] * 6 + ["no_grad", "inference"])
    through = rng.choice(["plain"] * 12 + list(WAYS))
    if through == "func.grad":
        through, grad = ("plain" if inputs.edges.dtype is torch.int32 else through), "grad"
    for tensor in inputs.floats:
        if not tensor.is_inference():
            tensor.requires_grad_(grad == "grad" and rng.random() < 0.5)
    second = grad == "grad" and through in ("plain", "checkpoint", "functional_call") and rng.random() < 0.3
    return Call(grad, through, second)


WAYS = {  # outputs of a model for x, edges and what else is given
    "plain": lambda m, x, *more: (m(x, *more),),
    "checkpoint": lambda m, x, *more: (checkpoint(m, x, *more, use_reentrant=False),),
    "functional_call": lambda m, *given: (
        torch.func.functional_call(m, {name: 1.5 * p for name, p in m.named_parameters()}, given),
    ),
    "jvp": lambda m, x, *more: torch.func.jvp(lambda x: m(x, *more), (x.detach(),), (torch.ones_like(x),)),
    "func.grad": lambda m, x, *more: (torch.func.grad(lambda x: m(x, *more).square().mean())(x.detach()),),
    "vmap": lambda m, x, *more: (torch.vmap(lambda x: m(x, *more))(torch.stack([x, 2 * x])),),
    "autocast": lambda m, x, *more: (torch.autocast("cpu", torch.bfloat16)(m)(x, *more),),
}


@dataclass
class Call:
    """How the models are called, and how often their outputs are differentiated."""

    grad: str  # grad, no_grad or inference
    through: str
    second: bool = False

    def __str__(self) -> str:
        parts = self.grad, self.through, "second derivatives" if self.second else ""
        return ", ".join(part for part in parts if part not in ("", "plain"))

    def results(self, model: nn.Module, inputs: Inputs) -> list[tuple[str, Tensor | None]]:
        """Named outputs, gradients and gradients of gradients."""
        mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(self.grad, torch.enable_grad)
        with mode():
            outputs = WAYS[self.through](model, inputs.x, inputs.edges, inputs.given)
        found = [(f"output {at}", output) for at, output in enumerate(outputs)]
        if self.grad != "grad" or self.through == "autocast" or not outputs[0].requires_grad:
            return found
        if inputs.edges.dtype is torch.int32:  # torch's own gradient of `scatter_add` is wrong for them
            return found
        wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
        wanted |= {f"input {at}": t for at, t in enumerate(inputs.floats) if t.requires_grad}
        names, leaves = list(wanted), list(wanted.values())
        output = outputs[0]
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum()
        loss = loss + output.square().mean()
        first = torch.autograd.grad(loss, leaves, create_graph=self.second, allow_unused=True)
        found += [(f"gradient of {name}", g) for name, g in zip(names, first, strict=True)]
        again = [g for g in first if g is not None and g.requires_grad]
        if self.second and again:
            second = torch.autograd.grad(sum(g.square().sum() for g in again), leaves, allow_unused=True)
            found += [(f"second derivative of {name}", g) for name, g in zip(names, second, strict=True)]
        return found


# ---- changes: each draws what it does from the sequence's numbers, does it to both models, and says what it was ------

CHANGES: dict[str, Callable[[Sequence], str | None]] = {}


def change(function: Callable[[Sequence], str | None]) -> Callable[[Sequence], str | None]:
    CHANGES[function.__name__.replace("_", " ")] = function
    return function


@change
def mode(run: Sequence) -> str:
    training = run.rng.random() < 0.5
    run.both(lambda model: model.train(training))
    return "train" if training else "eval"


ATTRIBUTES = {
    "negative_slope": [0.05, 0.9],
    "eps": [0.5, 1e-3],
    "normalize": [True, False],
    "improved": [True, False],
    "add_self_loops": [True, False],
    "flow": ["target_to_source", "source_to_target"],
    "dropout": [0.0, 0.5],
    "fill_value": ["mean", "min", 0.3, torch.tensor(0.0)],
    "concat": [True, False],
    "K": [1, 2],
    "alpha": [0.5, 0.2],
    "root_weight": [False],
    "bias": [None],
    "act": [nn.Tanh(), nn.Sigmoid()],
    "aggr_module": [MaxAggregation(), MeanAggregation(), SumAggregation()],
    "diag_lambda": [0.3],
    "lin_r": [None],
    "res": [None],
    "scale": [0.1, 7.0, torch.tensor(2.0)],
    "epoch": [0, 5],
    "joined": ["difference", "sum", "product", "concatenated"],
}


@change
def attribute(run: Sequence) -> str:
    path = run.pick(MessagePassing)
    layer = run.original.get_submodule(path)
    name = run.rng.choice([name for name in ATTRIBUTES if hasattr(layer, name)])
    value = run.rng.choice(ATTRIBUTES[name])
    run.both(lambda model: setattr(model.get_submodule(path), name, copy.deepcopy(value)))
    return f"{path}.{name} = {value!r}"


@change
def steps_of_a_message(run: Sequence) -> str:
    path = run.pick(Own)
    names = LINEAR_STEPS if run.rng.random() < 0.5 else list(random_layers.STEPS)
    weighted = run.original.get_submodule(path).weighted
    steps = run.rng.choices([n for n in names if weighted or n not in NEEDS_WEIGHT], k=run.rng.randint(0, 2))
    run.both(lambda model: setattr(model.get_submodule(path), "steps", list(steps)))
    return f"{path} {steps}"


@change
def closure(run: Sequence) -> str:
    path, power = run.pick(Own), run.rng.choice([1, 1, 2])
    run.both(lambda model: setattr(model.get_submodule(path), "closure", lambda rows: 0.7 * rows**power))
    return f"{path} power {power}"


@change
def settings(run: Sequence) -> str:
    random_layers.GAIN, SETTINGS["slope"] = run.rng.choice([0.2, 3.0]), run.rng.choice([0.1, 2.0])
    return f"gain {random_layers.GAIN}, slope {SETTINGS['slope']}"


@change
def arguments(run: Sequence) -> str:
    tau, mode = run.rng.choice([0.1, 2, 5.0, torch.tensor(3.0).double()]), run.rng.choice(["plain", "weighted"])
    run.inputs.given |= {"tau": tau, "mode": mode}
    return f"tau {tau}, mode {mode}"


def _counted(module: nn.Module, *_: Any) -> None:
    module.seen = getattr(module, "seen", 0) + 1


HOOKS = {
    "forward": lambda module: module.register_forward_hook(lambda module, given, out: out * 2),
    "pre": lambda module: module.register_forward_pre_hook(lambda module, given: (given[0] * 2, *given[1:])),
    "count": lambda module: module.register_forward_hook(_counted),
    "backward": lambda module: module.register_full_backward_hook(
        lambda module, into, out: tuple(g if g is None else 3 * g for g in into)
    ),
    "message": lambda module: module.register_message_forward_hook(lambda module, given, out: out * 0.5),
    "aggregate": lambda module: module.register_aggregate_forward_hook(lambda module, given, out: out * 0.5),
    "propagate": lambda module: module.register_propagate_forward_hook(lambda module, given, out: out * 0.5),
}


@change
def hook(run: Sequence) -> str:
    path, kind = run.pick(nn.Module), run.rng.choice(list(HOOKS))
    run.undo.append(tuple(one.remove for one in run.both(lambda model: HOOKS[kind](model.get_submodule(path)))))
    return f"{kind} at {path}"


@change
def unhook(run: Sequence) -> None:
    for remove in run.undo.pop(run.rng.randrange(len(run.undo))):
        remove()


class _Adapter(nn.Module):
    """A linear layer with a correction of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@change
def inner_module(run: Sequence) -> str:
    """A network or a linear layer inside of a layer is replaced or wrapped."""
    path = run.pick(nn.Linear, nn.Sequential, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Identity)
    parent, _, name = path.rpartition(".")
    module, number = run.original.get_submodule(path), run.rng.randrange(1000)
    if isinstance(module, nn.Linear):
        made = _Adapter if number % 2 else lambda old: nn.Linear(old.in_features, old.out_features, old.bias is None)
    elif isinstance(module, nn.Sequential):
        linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
        made = lambda old: network(random.Random(number), linears[0].in_features, linears[-1].out_features)  # noqa: E731
    else:
        made = lambda old: list(ACTIVATIONS.values())[number % len(ACTIVATIONS)]()  # noqa: E731

    def replace(model: nn.Module) -> None:
        one = made(model.get_submodule(path)).double().train(module.training)
        setattr(model.get_submodule(parent), name, one)

    run.both(replace)
    return f"{number} at {path}"


REPARAMETRIZED = {
    "weight norm": parametrizations.weight_norm,
    "prune": lambda module: prune.l1_unstructured(module, "weight", 0.5),
    "spectral norm": parametrizations.spectral_norm,
}


@change
def reparametrized(run: Sequence) -> str:
    weights = [(path, module._parameters.get("weight")) for path, module in run.original.named_modules()]
    path = run.rng.choice([path for path, weight in weights if weight is not None and weight.dim() == 2])
    kind = run.rng.choice(list(REPARAMETRIZED))
    run.both(lambda model: REPARAMETRIZED[kind](model.get_submodule(path)))
    return f"{kind} at {path}"


def _doubled_message(self: nn.Module, *given: Any, **named: Any) -> Any:
    return 2 * type(self).message(self, *given, **named)


@change
def patched_message(run: Sequence) -> str:
    path = run.pick(MessagePassing)
    layers = run.both(lambda model: model.get_submodule(path))
    for layer in layers:
        layer.message = types.MethodType(_doubled_message, layer)
    return path


@change
def optimizer_steps(run: Sequence) -> str:
    """Adam with a large `eps`: else it would turn the rounding of a gradient that is zero into a whole step."""
    if run.inputs.edges.dtype is torch.int32:
        return "not with these edges"
    kind = run.rng.choice(["SGD", "Adam", "Adagrad"])
    fused, to_none = run.rng.random() < 0.6, run.rng.random() < 0.5
    more = {} if kind == "SGD" else {"eps": 1e-2}

    def train(model: nn.Module) -> None:
        optimizer = getattr(torch.optim, kind)(model.parameters(), 0.01, fused=fused, **more)
        for _ in range(2):
            out = model(run.inputs.x, run.inputs.edges, run.inputs.given)
            (out.square().mean() / (1 + out.detach().square().mean())).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    run.both(train)
    return f"{kind}{' fused' if fused else ''}"


def _new_parameter(model: nn.Module, name: str, p: nn.Parameter) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Parameter(0.5 * p.detach()))


def _loaded(model: nn.Module, assign: bool) -> None:
    state = {n: t.clone() * 0.5 if t.is_floating_point() else t for n, t in model.state_dict().items()}
    model.load_state_dict(state, assign=assign)


WEIGHTS_WRITTEN = {
    "data.mul_": lambda model, name, p: p.data.mul_(0.5),
    "copy_": lambda model, name, p: torch.no_grad()(p.copy_)(0.5 * p + 0.1),
    "data =": lambda model, name, p: setattr(p, "data", p.data * 0.5),
    "swap rows": lambda model, name, p: p.data.copy_(p.data.flip(0)),
    "new parameter": _new_parameter,
    "load_state_dict": lambda model, name, p: _loaded(model, False),
    "assign": lambda model, name, p: _loaded(model, True),
    "frozen": lambda model, name, p: p.requires_grad_(False),
    "trained": lambda model, name, p: p.requires_grad_(True),
}


@change
def weights_written(run: Sequence) -> str:
    kind, index = run.rng.choice(list(WEIGHTS_WRITTEN)), run.rng.randrange(len(list(run.original.parameters())))
    run.both(lambda model: WEIGHTS_WRITTEN[kind](model, *list(model.named_parameters())[index]))
    return f"{kind} {index}"


EDGES_WRITTEN = {
    "copy_": lambda edges, new: edges.copy_(new),
    "one": lambda edges, new: edges[1, -1:].zero_(),
    "data.copy_": lambda edges, new: edges.data.copy_(new),
    "numpy": lambda edges, new: edges.numpy().__setitem__(..., new.numpy()),
    "data =": lambda edges, new: setattr(edges, "data", new),
    "row": lambda edges, new: edges[0].copy_(new[0]),
}


@change
def edges_written(run: Sequence) -> str:
    """In place, so that the tensor stays the same object."""
    edges, kind = run.inputs.edges, run.rng.choice(list(EDGES_WRITTEN))
    EDGES_WRITTEN[kind](edges, torch.randint(run.inputs.x.shape[0], edges.shape, dtype=edges.dtype))
    return kind


@change
def edges_replaced(run: Sequence) -> str:
    edges, kind = run.inputs.edges, run.rng.choice(["clone", "int32", "int64", "other", "strided"])
    if kind == "other":
        e = run.rng.choice([0, 3, edges.shape[1], edges.shape[1] + 7])
        run.inputs.edges = torch.randint(run.inputs.x.shape[0], (2, e))
        run.inputs.given |= of_edges(e)
        return f"by {e} others"
    to = {"clone": edges.clone(), "int32": edges.int(), "int64": edges.long(), "strided": edges.t().contiguous().t()}
    run.inputs.edges = to[kind]
    return kind


def _written(tensor: Tensor, kind: str) -> None:
    torch.no_grad()(tensor.mul_)(1.5) if kind == "mul_" else tensor.data.mul_(0.5)


@change
def x_changed(run: Sequence) -> str:
    rng, x = run.rng, run.inputs.x.detach()
    kind = rng.choice(["mul_", "data.mul_", "other", "more nodes", "bag of words", "not a number"])
    if "mul_" in kind:
        _written(run.inputs.x, kind)
        return kind
    run.inputs.x = {
        "other": lambda: torch.randn_like(x),
        "more nodes": lambda: torch.cat([x, torch.randn(rng.choice([1, 9]), WIDTH, dtype=x.dtype)]),
        "bag of words": lambda: (torch.rand(x.shape) < 0.1).to(x.dtype),
        "not a number": lambda: x.index_fill(
            0, torch.tensor([rng.randrange(len(x))]), rng.choice([math.nan, math.inf])
        ),
    }[kind]()
    return kind


@change
def edge_weights_changed(run: Sequence) -> str:
    given, kind = run.inputs.given, run.rng.choice(["mul_", "data.mul_", "other", "negative", "zero"])
    weight = given["weight"].detach()
    if "mul_" in kind:
        _written(given["weight"], kind)
    else:
        given["weight"] = {"other": torch.rand_like(weight), "negative": -weight, "zero": 0 * weight}[kind]
    return kind


@change
def copied(run: Sequence) -> None:
    run.models, run.undo = run.both(copy.deepcopy), []
    run.original = run.models[0]


@change
def swapped_again(run: Sequence) -> None:
    run.report = swap(run.models[1], measure=False)
    run.models, run.undo = (run.original, run.report.model), []


@change
def forgotten(run: Sequence) -> None:
    run.report.forget()


# ---- running and comparing -------------------------------------------------------------------------------------------


def sequence(seed: int) -> Outcome:
    """The sequence of this seed, run from its first to its last step."""
    with warnings.catch_warnings(), _settings():
        warnings.simplefilter("ignore")
        return Sequence(seed).run()


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """What a sequence changes for the process is put back. One thread: on a busy machine two wait for each other."""
    before, random_state = (random_layers.GAIN, SETTINGS["slope"]), torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        random_layers.GAIN, SETTINGS["slope"] = before
        torch.set_rng_state(random_state)
        torch.set_num_threads(threads)


def _require_equal(expected: list, got: list, tolerance: float) -> None:
    """Named tensors, one by one: present, of one shape and dtype, not finite at the same places, and close."""
    if [name for name, _ in expected] != [name for name, _ in got]:
        raise Different(f"gives {[name for name, _ in got]}, the original {[name for name, _ in expected]}")
    largest = max((_largest(t) for name, t in expected if t is not None and "output" not in name), default=0.0)
    for (name, want), (_, have) in zip(expected, got, strict=True):
        if (want is None) != (have is None):
            raise Different(f"{name} is {'None' if have is None else 'no None'}, of the original the other way round")
        if want is None:
            continue
        if want.shape != have.shape or want.dtype != have.dtype:
            raise Different(f"{name} is {have.dtype} {tuple(have.shape)}, not {want.dtype} {tuple(want.shape)}")
        want, have = want.detach().double(), have.detach().double()
        if not torch.equal(want.isfinite(), have.isfinite()):
            if "output" in name:
                raise Different(f"{name} is not finite at other places")
            continue  # a gradient of weights is a sum over all nodes: 0 * inf in one order of products, none in another
        allowed = tolerance * _largest(want) + (0.0 if "output" in name else FLOOR * largest)
        if (off := _largest(have - want)) > allowed:
            raise Different(f"{name} is off by {off / max(_largest(want), 1e-300):.1e} of its largest")


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach()[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _left_behind(model: nn.Module) -> list[Any]:
    """Counters and logs of the layers and of hooks."""
    names = ("calls", "log", "seen")
    return [getattr(module, name) for module in model.modules() for name in names if hasattr(module, name)]


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) or (not math.isfinite(a) and not math.isfinite(b))


def _not_torchs(end: Any) -> bool:
    """Does a function that is not torch's stand in the graph of gradients that ends here?"""
    todo, seen = [end], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        made_by = getattr(node, "_forward_cls", None)
        if made_by is not None and not made_by.__module__.startswith("torch."):
            return True
        todo += [following for following, _ in node.next_functions]
    return False


def _short(error: Any) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="number of sequences")
    parser.add_argument("--start", type=int, default=0, help="seed of the first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every sequence")
    chosen = parser.parse_args()
    sums: Counter = Counter()
    for seed in range(chosen.start, chosen.start + chosen.count):
        outcome = sequence(seed)
        counted = {n: getattr(outcome, n) for n in ("calls", "raised", "layers", "replaced", "with_gradients", "fast")}
        sums += Counter(sequences=1, failures=bool(outcome.wrong), **counted)
        if outcome.wrong or chosen.verbose:
            print(outcome, flush=True)
    print(
        f"{sums['sequences']} sequences, {sums['calls']} calls compared, {sums['raised']} refused by both, "
        f"{sums['replaced']} of {sums['layers']} layers fast, {sums['fast']} of {sums['with_gradients']} calls with "
        f"gradients through a fast kernel, {sums['failures']} failures"
    )
    raise SystemExit(1 if sums["failures"] else 0)


if __name__ == "__main__":
    main()
