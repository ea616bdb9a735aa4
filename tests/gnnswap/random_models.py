"""Random models, graphs and sequences of calls and changes: the fast model must stay equal to the original.

    python tests/gnnswap/random_models.py 20000 --start 0    # 20,000 sequences
    python tests/gnnswap/random_models.py 1 --start 17 -v    # sequence 17 alone, step by step

All of a sequence follows from one integer. Each change is applied alike to the original, which is a copy with weights
of its own, and to the fast model. After each call outputs, gradients, some second derivatives, buffers, counters of
the layers and the state of the random generator are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import random
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import random_layers
import torch
from random_layers import EDGE, LINEAR_STEPS, NEEDS_WEIGHT, TYPES, WIDTH, Own, network
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MaxAggregation, MeanAggregation, MessagePassing, SumAggregation

from gnnswap import swap

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # of the largest value of a tensor
FLOOR = {torch.float64: 1e-12, torch.float32: 1e-3}  # of the largest gradient: one may be zero but for rounding
AUTOCAST = 0.05


class Chain(nn.Module):
    """Layers one after the other, each with an activation behind it."""

    def __init__(self, layers: list[tuple[nn.Module, dict[str, str]]], act: nn.Module) -> None:
        super().__init__()
        self.layers, self.takes, self.act = nn.ModuleList(m for m, _ in layers), [takes for _, takes in layers], act

    def forward(self, x: Tensor, edge_index: Tensor, given: dict[str, Any]) -> Tensor:
        for layer, takes in zip(self.layers, self.takes, strict=True):
            x = self.act(layer(x, edge_index, **{argument: given[name] for argument, name in takes.items()}))
        return x


@dataclass
class Inputs:
    """What both models are called with: the same objects in each call, until a change replaces or writes them."""

    x: Tensor  # (N, WIDTH)
    edge_index: Tensor  # (2, E)
    given: dict[str, Any]  # weight (E,), attr (E, EDGE), types (E,), tau, mode

    @property
    def floats(self) -> list[Tensor]:
        return [self.x, self.given["weight"], self.given["attr"]]


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
        random_layers.GAIN, random_layers.SETTINGS["slope"] = 1.0, 0.5
        self.dtype = torch.float32 if self.rng.random() < 0.2 else torch.float64
        self.rounded = self.dtype is torch.float32  # once weights were rounded apart they stay so
        self.inputs = self._inputs()
        layers = [random_layers.layer(self.rng) for _ in range(self.rng.choice([1, 1, 1, 2, 2, 3]))]
        if self.rng.random() < 0.1:
            layers.append(layers[0])  # one layer in two places
        model = Chain(layers, random_layers.ACTIVATIONS[self.rng.choice(list(random_layers.ACTIVATIONS))]())
        model = model.to(self.dtype).train(self.rng.random() < 0.5)
        example = self.rng.random() < 0.4
        n, edges = self.inputs.x.shape[0], self.inputs.edge_index
        self.outcome.steps.append(
            f"{' > '.join(map(_described, model.layers))} {str(self.dtype)[6:]}, "
            f"{'example, ' if example else ''}{n} nodes, {edges.shape[1]} edges"
        )
        self.undo: list[tuple[Callable[[], None], Callable[[], None]]] = []  # takes a hook off again, by model
        self.original, self.model, self.example = copy.deepcopy(model), model, example

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

    def both(self, change: Callable[[nn.Module], Any]) -> tuple[Any, Any]:
        """The same change of both models, drawing the same numbers; what each of the two gave."""
        salt = self.rng.randrange(2**30)
        results, errors = [], []
        for model in self.models:
            torch.manual_seed(salt)
            try:
                results.append(change(model))
            except Exception as error:
                errors.append(error)
        if len(errors) == 2:  # changed alike up to there
            raise errors[0]
        if errors:
            raise Different(f"the change raises for one of the models alone: {_short(errors[0])}")
        return tuple(results)

    def pick(self, *kinds: type[nn.Module]) -> str:
        """The path of a module of these kinds."""
        paths = [path for path, module in self.original.named_modules() if isinstance(module, kinds) and path]
        return self.rng.choice(paths)

    def _swap(self) -> None:
        example = self._arguments() if self.example else None
        try:
            if self.example:
                copy.deepcopy(self.model)(*example)
        except Exception:
            example = None  # the model does not run on this example
        try:
            self.report = swap(self.model, example, measure=False)
        except Exception as error:
            raise Different(f"swap raises {_short(error)}") from error
        self.models = (self.original, self.report.model)

    # the two things that a step can be

    def _change(self) -> None:
        name = self.rng.choice(list(CHANGES))
        try:
            said = CHANGES[name](self)
        except Different as difference:
            self.outcome.steps.append(f"{name}!")
            raise difference
        except Exception as error:  # the original cannot be changed so
            said = f"not possible: {type(error).__name__}"
        self.outcome.steps.append(f"{name} {said}".strip())

    def _call(self) -> None:
        how = self._drawn_call()
        self.outcome.steps.append(f"call {how}")
        salt = self.rng.randrange(2**30)
        results = []
        for model in self.models:
            torch.manual_seed(salt)
            try:
                results.append(how.results(model, self.inputs))
            except Exception as error:
                results.append(error)
            results.append(torch.get_rng_state())
        expected, drawn, got, drawn_too = results
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
        dtype = torch.float32 if self.rounded else torch.float64
        tolerance = AUTOCAST if how.through == "autocast" else TOLERANCE[dtype]
        _require_equal(expected, got, tolerance, FLOOR[dtype])
        if not torch.equal(drawn, drawn_too):
            raise Different("the random generator stands elsewhere after the call")
        _require_equal(*(list(model.state_dict().items()) for model in self.models), TOLERANCE[dtype], 0.0)
        left = [_left_behind(model) for model in self.models]
        if not _close(*left):
            raise Different(f"counters and logs are {left[1]}, of the original {left[0]}")

    # drawing

    def _inputs(self) -> Inputs:
        rng = self.rng
        n = rng.choice([1, 2, 5, *range(10, 71, 4), *range(75, 150, 10)])
        e = rng.choice([0, 1, n, 2 * n, 3 * n, 5 * n])
        kind = rng.choice(["any", "any", "any", "repeated", "loops", "one target", "few nodes"])
        edge_index = torch.randint(n, (2, e))
        if kind == "repeated":
            edge_index = edge_index[:, torch.randint(max(e, 1), (e,)) // 2]
        elif kind == "loops" and e:
            edge_index[1, : e // 2] = edge_index[0, : e // 2]
        elif kind == "one target":
            edge_index[1] = n - 1
        elif kind == "few nodes":
            edge_index %= max(n // 2, 1)
        if rng.random() < 0.08:
            edge_index = edge_index.int()
        x = torch.randn(n, WIDTH, dtype=self.dtype)
        kind = rng.random()
        if kind < 0.05:
            x[rng.randrange(n), rng.randrange(WIDTH)] = rng.choice([math.nan, math.inf, -math.inf])
        elif kind < 0.15:
            x = (torch.rand(n, WIDTH) < 0.1).to(self.dtype)
        elif kind < 0.25:
            x = x * 100
        return Inputs(x, edge_index, self._of_edges(e))

    def _of_edges(self, e: int) -> dict[str, Any]:
        return {
            "weight": torch.rand(e, dtype=self.dtype) + 0.1,
            "attr": torch.rand(e, EDGE, dtype=self.dtype),
            "types": torch.randint(TYPES, (e,)),
            "tau": 1.0,
            "mode": "plain",
        }

    def _arguments(self) -> tuple:
        return self.inputs.x, self.inputs.edge_index, self.inputs.given

    def _drawn_call(self) -> Call:
        rng, floats = self.rng, self.inputs.floats
        grad = rng.choice(["grad"] * 6 + ["no_grad", "inference"])
        through = rng.choice(["plain"] * 12 + ["checkpoint", "functional_call", "jvp", "func.grad", "vmap", "autocast"])
        if through == "func.grad" and self.inputs.edge_index.dtype is torch.int32:
            through = "plain"
        if through == "func.grad":
            grad = "grad"
        for tensor in floats:
            if not tensor.is_inference():
                tensor.requires_grad_(grad == "grad" and rng.random() < 0.5)
        second = grad == "grad" and through in ("plain", "checkpoint", "functional_call") and rng.random() < 0.3
        return Call(grad, through, second)


@dataclass
class Call:
    """How the models are called, and how often their outputs are differentiated."""

    grad: str  # grad, no_grad or inference
    through: str
    second: bool = False

    def __str__(self) -> str:
        parts = [
            self.grad,
            "" if self.through == "plain" else self.through,
            "second derivatives" if self.second else "",
        ]
        return ", ".join(filter(None, parts))

    def results(self, model: nn.Module, inputs: Inputs) -> list[tuple[str, Tensor | None]]:
        """Named outputs, gradients and gradients of gradients."""
        mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(self.grad, torch.enable_grad)
        with mode():
            outputs = self._outputs(model, inputs)
        found = [(f"output {at}", output) for at, output in enumerate(outputs)]
        if self.grad != "grad" or self.through == "autocast" or not outputs[0].requires_grad:
            return found
        if inputs.edge_index.dtype is torch.int32:  # torch's own gradient of `scatter_add` is wrong for them
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
            penalty = sum(g.square().sum() for g in again)
            second = torch.autograd.grad(penalty, leaves, allow_unused=True)
            found += [(f"second derivative of {name}", g) for name, g in zip(names, second, strict=True)]
        return found

    def _outputs(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, ...]:
        x, edge_index, given = inputs.x, inputs.edge_index, inputs.given
        if self.through == "checkpoint":
            return (checkpoint(model, x, edge_index, given, use_reentrant=False),)
        if self.through == "functional_call":
            weights = {name: 1.5 * p for name, p in model.named_parameters()}
            return (torch.func.functional_call(model, weights, (x, edge_index, given)),)
        if self.through == "jvp":
            return torch.func.jvp(lambda x: model(x, edge_index, given), (x.detach(),), (torch.ones_like(x),))
        if self.through == "func.grad":
            return (torch.func.grad(lambda x: model(x, edge_index, given).square().mean())(x.detach()),)
        if self.through == "vmap":
            return (torch.vmap(lambda x: model(x, edge_index, given))(torch.stack([x, 2 * x])),)
        if self.through == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return (model(x, edge_index, given),)
        return (model(x, edge_index, given),)


# Changes: each draws what it does from the sequence's numbers, does it to both models, and says what it was.

CHANGES: dict[str, Callable[[Sequence], str]] = {}


def change(function: Callable[[Sequence], str]) -> Callable[[Sequence], str]:
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
    layer = run.original.get_submodule(path)
    names = [n for n in random_layers.STEPS if layer.weighted or n not in NEEDS_WEIGHT]
    if run.rng.random() < 0.5:
        names = [n for n in names if n in LINEAR_STEPS]
    steps = [run.rng.choice(names) for _ in range(run.rng.randint(0, 2))]
    run.both(lambda model: setattr(model.get_submodule(path), "steps", list(steps)))
    return f"{path} {steps}"


@change
def closure(run: Sequence) -> str:
    path, power = run.pick(Own), run.rng.choice([1, 1, 2])
    run.both(lambda model: setattr(model.get_submodule(path), "closure", lambda rows: 0.7 * rows**power))
    return f"{path} power {power}"


@change
def settings(run: Sequence) -> str:
    random_layers.GAIN, random_layers.SETTINGS["slope"] = run.rng.choice([0.2, 3.0]), run.rng.choice([0.1, 2.0])
    return f"gain {random_layers.GAIN}, slope {random_layers.SETTINGS['slope']}"


@change
def arguments(run: Sequence) -> str:
    given = run.inputs.given
    given["tau"] = run.rng.choice([0.1, 2, 5.0, torch.tensor(3.0, dtype=run.dtype)])
    given["mode"] = run.rng.choice(["plain", "weighted"])
    return f"tau {given['tau']}, mode {given['mode']}"


@change
def hook(run: Sequence) -> str:
    path = run.pick(nn.Module)
    kind = run.rng.choice(["forward", "pre", "count", "backward", "message", "aggregate", "propagate"])
    handles = run.both(lambda model: _hooked(model.get_submodule(path), kind))
    run.undo.append(tuple(handle.remove for handle in handles))
    return f"{kind} at {path}"


def _hooked(module: nn.Module, kind: str) -> Any:
    if kind == "forward":
        return module.register_forward_hook(lambda module, given, out: out * 2)
    if kind == "pre":
        return module.register_forward_pre_hook(lambda module, given: (given[0] * 2, *given[1:]))
    if kind == "count":
        module.seen = getattr(module, "seen", 0)
        return module.register_forward_hook(lambda module, given, out: setattr(module, "seen", module.seen + 1))
    if kind == "backward":
        return module.register_full_backward_hook(
            lambda module, into, out: tuple(g if g is None else 3 * g for g in into)
        )
    register = getattr(module, f"register_{kind}_forward_hook")
    return register(lambda module, given, out: out * 0.5)


def _tripled(module: nn.Module, into: tuple, out: tuple) -> tuple:
    return tuple(gradient if gradient is None else 3 * gradient for gradient in into)


@change
def unhook(run: Sequence) -> str:
    if not run.undo:
        return "nothing"
    for remove in run.undo.pop(run.rng.randrange(len(run.undo))):
        remove()
    return ""


@change
def inner_module(run: Sequence) -> str:
    """A network or a linear layer inside of a layer is replaced or wrapped."""
    path = run.pick(nn.Linear, nn.Sequential, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Identity)
    parent, _, name = path.rpartition(".")
    module = run.original.get_submodule(path)
    if isinstance(module, nn.Linear):
        kind = run.rng.choice(["another", "adapter"])
        made = _Adapter if kind == "adapter" else _another_linear
    elif isinstance(module, nn.Sequential):
        given = next(m for m in module.modules() if isinstance(m, nn.Linear)).in_features
        out = [m for m in module.modules() if isinstance(m, nn.Linear)][-1].out_features
        kind, number = "another network", run.rng.randrange(1000)
        made = lambda old: network(random.Random(number), given, out)  # noqa: E731
    else:
        kind = run.rng.choice(list(random_layers.ACTIVATIONS))
        made = lambda old: random_layers.ACTIVATIONS[kind]()  # noqa: E731

    def replace(model: nn.Module) -> None:
        setattr(model.get_submodule(parent), name, made(model.get_submodule(path)).to(run.dtype).train(module.training))

    run.both(replace)
    return f"{kind} at {path}"


def _another_linear(old: nn.Linear) -> nn.Linear:
    return nn.Linear(old.in_features, old.out_features, bias=old.bias is None)


class _Adapter(nn.Module):
    """A linear layer with a correction of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@change
def reparametrized(run: Sequence) -> str:
    weights = [(path, module._parameters.get("weight")) for path, module in run.original.named_modules()]
    path = run.rng.choice([path for path, weight in weights if weight is not None and weight.dim() == 2])
    kind = run.rng.choice(["weight norm", "prune", "spectral norm"])
    apply = {
        "weight norm": parametrizations.weight_norm,
        "prune": lambda module: prune.l1_unstructured(module, "weight", 0.5),
        "spectral norm": parametrizations.spectral_norm,
    }[kind]
    run.both(lambda model: apply(model.get_submodule(path)))
    return f"{kind} at {path}"


@change
def patched_message(run: Sequence) -> str:
    path = run.pick(MessagePassing)

    def patch(model: nn.Module) -> None:
        layer = model.get_submodule(path)
        layer.message = types.MethodType(
            lambda self, *given, **named: 2 * type(self).message(self, *given, **named), layer
        )

    run.both(patch)
    return path


@change
def precision(run: Sequence) -> str:
    run.dtype = torch.float32 if run.dtype is torch.float64 else torch.float64
    run.rounded = True
    run.both(lambda model: model.to(run.dtype))
    run.inputs.x = run.inputs.x.detach().to(run.dtype)
    for name in ("weight", "attr"):
        run.inputs.given[name] = run.inputs.given[name].detach().to(run.dtype)
    return str(run.dtype)[6:]


@change
def optimizer_steps(run: Sequence) -> str:
    """Adam with a large `eps`: else it would turn the rounding of a gradient that is zero into a whole step."""
    if run.inputs.edge_index.dtype is torch.int32:
        return "not with these edges"
    kind = run.rng.choice(["SGD", "Adam", "Adagrad"])
    fused, to_none = run.rng.random() < 0.6, run.rng.random() < 0.5
    more = {} if kind == "SGD" else {"eps": 1e-2}

    def train(model: nn.Module) -> None:
        optimizer = getattr(torch.optim, kind)(model.parameters(), 0.01, fused=fused, **more)
        for _ in range(2):
            out = model(run.inputs.x, run.inputs.edge_index, run.inputs.given)
            (out.square().mean() / (1 + out.detach().square().mean())).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    run.both(train)
    return f"{kind}{' fused' if fused else ''}"


@change
def weights_written(run: Sequence) -> str:
    kind = run.rng.choice(["data.mul_", "copy_", "data =", "load_state_dict", "assign", "new parameter", "swap rows"])
    index = run.rng.randrange(len(list(run.original.parameters())))

    def write(model: nn.Module) -> None:
        name, p = list(model.named_parameters())[index]
        if kind == "data.mul_":
            p.data.mul_(0.5)
        elif kind == "copy_":
            with torch.no_grad():
                p.copy_(0.5 * p + 0.1)
        elif kind == "data =":
            p.data = p.data * 0.5
        elif kind == "swap rows":
            p.data.copy_(p.data.flip(0))
        elif kind == "new parameter":
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Parameter(0.5 * p.detach()))
        else:
            state = {n: t.clone() * 0.5 if t.is_floating_point() else t for n, t in model.state_dict().items()}
            model.load_state_dict(state, assign=kind == "assign")

    run.both(write)
    return kind


@change
def frozen(run: Sequence) -> str:
    wants, index = run.rng.random() < 0.4, run.rng.randrange(len(list(run.original.parameters())))
    run.both(lambda model: list(model.parameters())[index].requires_grad_(wants))
    return f"parameter {index}, requires_grad {wants}"


@change
def edges_written(run: Sequence) -> str:
    """In place, so that the tensor stays the same object."""
    edges, n = run.inputs.edge_index, run.inputs.x.shape[0]
    new = torch.randint(n, edges.shape, dtype=edges.dtype)
    kind = run.rng.choice(["copy_", "one", "data.copy_", "numpy", "data =", "row"])
    if kind == "copy_":
        edges.copy_(new)
    elif kind == "one":
        edges[1, run.rng.randrange(edges.shape[1])] = 0
    elif kind == "data.copy_":
        edges.data.copy_(new)
    elif kind == "numpy":
        edges.numpy()[...] = new.numpy()
    elif kind == "data =":
        edges.data = new
    else:
        edges[0].copy_(new[0])
    return kind


@change
def edges_replaced(run: Sequence) -> str:
    kind = run.rng.choice(["clone", "int32", "int64", "other", "strided"])
    edges = run.inputs.edge_index
    if kind == "other":
        e = run.rng.choice([0, 3, edges.shape[1], edges.shape[1] + 7])
        run.inputs.edge_index = torch.randint(run.inputs.x.shape[0], (2, e))
        run.inputs.given |= {k: v for k, v in run._of_edges(e).items() if isinstance(v, Tensor)}
        return f"by {e} others"
    to = {"clone": edges.clone(), "int32": edges.int(), "int64": edges.long(), "strided": edges.t().contiguous().t()}
    run.inputs.edge_index = to[kind]
    return kind


@change
def x_changed(run: Sequence) -> str:
    inputs, kind = (
        run.inputs,
        run.rng.choice(["mul_", "data.mul_", "other", "more nodes", "bag of words", "not a number"]),
    )
    x = inputs.x.detach()
    if kind == "mul_":
        with torch.no_grad():
            inputs.x.mul_(1.5)
    elif kind == "data.mul_":
        inputs.x.data.mul_(1.5)
    elif kind == "more nodes":
        inputs.x = torch.cat([x, torch.randn(run.rng.choice([1, 9]), WIDTH, dtype=x.dtype)])
    elif kind == "bag of words":
        inputs.x = (torch.rand(x.shape) < 0.1).to(x.dtype)
    elif kind == "not a number":
        inputs.x = x.clone()
        inputs.x[run.rng.randrange(x.shape[0])] = run.rng.choice([math.nan, math.inf])
    else:
        inputs.x = torch.randn_like(x)
    return kind


@change
def edge_weights_changed(run: Sequence) -> str:
    given, kind = run.inputs.given, run.rng.choice(["mul_", "data.mul_", "other", "negative", "zero"])
    weight = given["weight"].detach()
    if kind == "mul_":
        weight.mul_(0.5)
    elif kind == "data.mul_":
        given["weight"].data.mul_(0.5)
    else:
        given["weight"] = {"other": torch.rand_like(weight), "negative": -weight, "zero": 0 * weight}[kind]
    return kind


@change
def copied(run: Sequence) -> str:
    """Both models are replaced by deep copies of themselves."""
    run.models = run.both(copy.deepcopy)
    run.original, run.undo = run.models[0], []
    return ""


@change
def swapped_again(run: Sequence) -> str:
    before = run.report
    run.report = swap(run.models[1], measure=False)
    run.models = (run.original, run.report.model)
    run.undo = []
    del before
    return ""


@change
def forgotten(run: Sequence) -> str:
    run.report.forget()
    return ""


def sequence(seed: int) -> Outcome:
    """The sequence of this seed, run from its first to its last step."""
    with warnings.catch_warnings(), _settings():
        warnings.simplefilter("ignore")
        return Sequence(seed).run()


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """What a sequence changes for the process is put back. One thread: on a busy machine two wait for each other."""
    before, random_state = (random_layers.GAIN, random_layers.SETTINGS["slope"]), torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        random_layers.GAIN, random_layers.SETTINGS["slope"] = before
        torch.set_rng_state(random_state)
        torch.set_num_threads(threads)


# Comparing


def _require_equal(expected: list, got: list, tolerance: float, floor: float) -> None:
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
        allowed = tolerance * _largest(want) + (floor * largest if "output" not in name else 0.0)
        off = _largest(have - want)
        if off > allowed:
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


def _described(layer: nn.Module) -> str:
    name = type(layer).__name__
    return f"{name}{layer.steps}" if isinstance(layer, Own) else name


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120] if text else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="number of sequences")
    parser.add_argument("--start", type=int, default=0, help="seed of the first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every sequence")
    chosen = parser.parse_args()
    sums: Counter = Counter()
    for seed in range(chosen.start, chosen.start + chosen.count):
        outcome = sequence(seed)
        sums += Counter(
            sequences=1,
            failures=bool(outcome.wrong),
            **{n: getattr(outcome, n) for n in ("calls", "raised", "layers", "replaced", "with_gradients", "fast")},
        )
        if outcome.wrong or chosen.verbose:
            print(outcome, flush=True)
    print(
        f"{sums['sequences']} sequences, {sums['calls']} calls compared, {sums['raised']} refused by both, "
        f"{sums['replaced']} of {sums['layers']} layers fast, {sums['fast']} of {sums['with_gradients']} calls with "
        f"gradients through a fast form, {sums['failures']} failures"
    )
    raise SystemExit(1 if sums["failures"] else 0)


if __name__ == "__main__":
    main()
