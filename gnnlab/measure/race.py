"""A race: forms that compute the same, as a dict, over named inputs. Checked first, then timed interleaved: nothing is
timed before a `BaselineOutput` says that two forms compute the same.

    forms = {"PyG": conv, "torch.compile": torch.compile(conv), "mine": lambda x, edge_index: ...}
    raced = race_forms(forms, {"x": x, "edge_index": edge_index}, budget_s=1)
    raced["mine"].ratio                  # of the first form's time over this one's, an `Estimate`

The first form is the baseline. A form takes those of the inputs that its arguments name, or all of them in order where
they are a tuple. One that fails, or computes something else, is not timed, and says why.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnlab.errors import GnnlabError, ParityError, Unavailable
from gnnswap import parity
from gnnswap.errors import one_line
from gnnswap.inputs import in_float64, of_floats, tensors_in
from gnnswap.parity import FP32_SLACK, GRADIENT_FLOOR, RTOL_FLOAT32, Deviation

from . import estimates, timing
from .conditions import Conditions, Under
from .estimates import CONTROL, Estimate
from .restore import unchanged
from .tensors import device_of

INPUT_PERTURBATIONS = 8  # inputs with other last bits, on which the baseline's own error is taken
ITEMS = 256  # in a sample of a baseline that takes them one by one; with 64, in cold caches, each took 7 % longer
LEAST_ROUNDS = 12  # so that half of them, where the fastest form is chosen on the other half, still have an interval
MODES = ("inference", "training", "plain")
Inputs = Any  # a mapping by the names of arguments, a tuple of them, or the only one
Form = Callable[..., Any]


@dataclass(frozen=True)
class Raced:
    """What became of one form: its times in ms, one a round, or the reason why there are none."""

    times_ms: np.ndarray | None = None
    ratio: Estimate | None = None  # over the first form; None for that form itself
    parity_error: float | None = None
    conditions: Conditions | None = None
    reason: str | None = None
    missing: bool = False  # what it needs is not here, which is no failure of the form
    notes: tuple[str, ...] = ()
    device: str = "cpu"  # for which the clock waited


def race_forms(
    forms: Mapping[str, Form],
    inputs: Inputs,
    *,
    tolerance: float | Mapping[str, float] = RTOL_FLOAT32,
    mode: str = "inference",
    budget_s: float = 2.0,
    device: Any = None,
    per: int = 1,
    one_by_one: str | None = None,
) -> dict[str, Raced]:
    """Every form by its name, the baseline first, then the baseline a second time ("A/A").

    Outputs must agree with the baseline's within `tolerance`, relative to its largest magnitude; a mapping gives single
    forms a bound of their own, which stands. Where others do not and the baseline is a module, float64 decides: a form
    is right, too, that is at most `FP32_SLACK` times as far off as the baseline is, on these inputs or on some that
    differ in their last bits.
    In mode "training" a call is the forward and the backward pass, with a fixed gradient of the output, and the
    gradients of inputs and of parameters of the same name have to agree, too. In mode "plain" gradients are on unless
    a form turns them off itself. The clock waits for `device`: that of the forms' tensors, inputs and results unless it
    is named. A call works through `per` items; times are those of one of them. A baseline that
    takes the items of an input `one_by_one` is timed on the next `ITEMS` of them, and its time is that of all.

    Raises:
        GnnlabError: no forms, an unknown mode, or a baseline that fails.
    """
    if not forms or mode not in MODES:
        raise GnnlabError(f"a race needs forms and a mode of {', '.join(MODES)}; got {len(forms)} and {mode!r}")
    calls = {name: call_of(form, inputs, mode) for name, form in forms.items()}
    with unchanged(forms, trains=False), torch.inference_mode(mode == "inference"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        usable, checked, output = _agreeing(
            calls, tolerance, cache(lambda: _exact(next(iter(forms.values())), inputs, mode))
        )
        where = device_of(list(forms.values()), inputs, output) if device is None else device
        base, each, part = usable[0], {name: calls[name] for name in usable}, 1.0
        if one_by_one and len(inputs[one_by_one]) > ITEMS:
            part, turns = ITEMS / len(inputs[one_by_one]), cycle(inputs[one_by_one])
            each[base] = lambda: call_of(forms[base], {**inputs, one_by_one: list(islice(turns, ITEMS))}, mode)()
        timed = timing.race(each, control=True, budget_s=budget_s, device=where, least=LEAST_ROUNDS)
    samples = {name: np.asarray(times.samples_ms) / per for name, times in timed.items()}
    samples |= {name: samples[name] / part for name in (base, CONTROL)}
    result, in_turns = {}, (f"timed on {ITEMS} items at a time, which take turns",) * (part < 1)
    for name in [base, CONTROL, *(name for name in forms if name != base)]:
        if name not in samples:
            result[name] = replace(checked[name], device=str(where))
            continue
        noise = None if name == CONTROL else samples[CONTROL]
        ratio = None if name == base else estimates.ratio(samples[base], samples[name], noise)
        form, error = forms.get(name, forms[base]), checked.get(name, Raced()).parity_error
        conditions = (isinstance(form, Under) and form.conditions) or Conditions.now()
        notes = timed[name].notes + in_turns * (name in (base, CONTROL))
        result[name] = Raced(samples[name], ratio, error, conditions, notes=notes, device=str(where))
    return result


def _agreeing(
    calls: Mapping[str, Form], tolerance: float | Mapping[str, float], exact: Callable[[], tuple[Any, float] | None]
) -> tuple[list[str], dict[str, Raced], Any]:
    """Names of the forms that can be timed, how far off each is or why it cannot, and what the baseline gave."""
    bounds = tolerance if isinstance(tolerance, Mapping) else {}
    common = RTOL_FLOAT32 if isinstance(tolerance, Mapping) else tolerance
    base = next(iter(calls))
    try:
        baseline = BaselineOutput(calls[base], base, _error)
    except Exception as error:
        raise GnnlabError(f"the baseline {base!r} fails: {one_line(error)}") from error
    usable, checked = [base], {base: Raced()}
    for name, call in list(calls.items())[1:]:
        bound = bounds.get(name, common)
        try:
            error = baseline.error_of(call, bound, name)
            if not error <= bound and name not in bounds and (known := exact()) is not None:
                truth, own = known
                error, bound = _error(call(), truth, name), max(bound, FP32_SLACK * own)
        except Exception as problem:  # whatever a form of the reader raises: the others still race
            ours = isinstance(problem, (ParityError, Unavailable))
            reason = str(problem) if ours else f"does not run here: {one_line(problem)}"
            checked[name] = Raced(reason=reason, missing=isinstance(problem, Unavailable))
            continue
        if error <= bound:
            usable.append(name)
            checked[name] = Raced(parity_error=float(error))
        else:
            reason = f"its output differs from that of {base} by {error:.1e} relative, allowed is {bound:.0e}"
            checked[name] = Raced(reason=f"{reason}; only what computes the same is timed", parity_error=float(error))
    return usable, checked, baseline.value


def _exact(form: Form, inputs: Inputs, mode: str) -> tuple[Any, float] | None:
    """What a module gives in float64, and how far off it is itself; None of another form, or where float64 fails.

    Its own error is the largest on these inputs and on others that differ in their last bits, `INPUT_PERTURBATIONS` in
    all. One is not enough: where a maximum has a near tie, or a variance is almost nothing, it is luck which edge has
    the gradient.
    """
    if not isinstance(form, nn.Module):
        return None
    draw, truth, own = torch.Generator().manual_seed(0), None, 0.0
    try:
        wide = copy.deepcopy(form).double()
        for _ in range(INPUT_PERTURBATIONS):
            exact = call_of(wide, in_float64(inputs), mode)()
            own = max(own, _error(call_of(form, inputs, mode)(), exact, "the baseline"))
            truth = exact if truth is None else truth
            inputs = of_floats(inputs, lambda value: value * (1 + parity.EPSILON * _signs(value, draw)))
    except Exception:  # modules may refuse to be copied, or make float32 tensors of their own
        return None
    return truth, own


def _signs(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(-1, 2, like.shape, generator=draw).to(like)


def _error(got: Any, expected: Any, name: str) -> Deviation:
    """Relative error, of a training step also of its gradients: a form that leaves one out computes less."""
    if not (isinstance(expected, _Step) and isinstance(got, _Step)):
        return comparable(got, expected, name)
    if lacking := sorted(expected.gradients.keys() - got.gradients.keys()):
        raise ParityError(f"{name}: it computes no gradient of {', '.join(lacking)}, the baseline does")
    gradients = {of: got.gradients[of] for of in expected.gradients}
    floor = GRADIENT_FLOOR * parity.largest(expected.gradients)
    return max(
        comparable(got.output, expected.output, name),
        comparable(gradients, expected.gradients, f"{name}, gradients", floor),
    )


def require_equal(expected: Any, got: Any, tolerance: float = RTOL_FLOAT32, name: str = "candidate") -> float:
    """The relative error of `got` against `expected`; `ParityError` where it is above `tolerance`.

    Tensors, arrays, numbers and nested tuples, lists and mappings of them, compared as `gnnswap.parity` says.
    """
    error = comparable(got, expected, name)
    if not error <= tolerance:
        raise ParityError(
            f"{name}: outputs differ from the baseline's by {error:.2e} relative, allowed is {tolerance:.0e}; "
            "only what computes the same is timed"
        )
    return float(error)


def comparable(got: Any, expected: Any, name: str, floor: float = 0.0) -> Deviation:
    """The error of `got` as `gnnswap.parity` has it; `ParityError` where the two cannot be compared."""
    error = parity.error(got, expected, floor=floor, name=name)
    if error.why:
        raise ParityError(f"{error.of}: {error.why}")
    return error


class BaselineOutput:
    """What a form gives, to compare others with. A first call is not compared, for it may be inexact: each form is
    called once before, and both are once again where they differ.

    `error(got, expected, name)` gives the relative error, `comparable` unless given. With `warm` all forms were called
    before. What `call` raises goes to the caller.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        name: str = "the baseline",
        error: Callable[[Any, Any, str], float] = comparable,
        warm: bool = False,
    ) -> None:
        self._call, self.name, self._error, self._warm = call, name, error, warm
        self.value = self._later(call)

    def _later(self, call: Callable[[], Any]) -> Any:
        """What a call gives that is not the first."""
        if not self._warm:
            call()
        return call()

    def error_of(self, call: Callable[[], Any], allowed: float = RTOL_FLOAT32, name: str = "candidate") -> float:
        """The relative error of what another form gives, which is above `allowed` if it is so twice.

        Raises:
            ParityError: the results cannot be compared, or the baseline itself gives two results for one input.
        """
        if (error := self._error(self._later(call), self.value, name)) <= allowed:
            return error
        again = self._call()
        if not (apart := self._error(again, self.value, self.name)) <= allowed:
            raise ParityError(
                f"{self.name} itself gave two results for one input, which differ by {apart:.1e} relative"
            )
        return self._error(call(), again, name)


def call_of(form: Form, inputs: Inputs, mode: str = "inference") -> Callable[[], Any]:
    """A function without arguments that calls `form` with its part of the inputs; in mode "training" also backward."""
    if isinstance(inputs, Mapping):
        names = _named(form, inputs)
        bound = partial(form, **{name: value for name, value in inputs.items() if name in names})
        tensors = [value for name, value in inputs.items() if name in names]
    else:
        arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
        bound, tensors = partial(form, *arguments), list(arguments)
    if mode != "training":
        return bound
    wanted = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    return _Training(form, bound, wanted)


def _named(form: Form, inputs: Mapping[str, Any]) -> set[str]:
    """The inputs that a form names as arguments; all where it takes any; a compiled module takes those of its own."""
    form = getattr(form, "_orig_mod", form)
    arguments = inspect.signature(form.forward if isinstance(form, nn.Module) else form).parameters.values()
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
        return set(inputs)
    return {argument.name for argument in arguments}


@dataclass(frozen=True)
class _Step:
    """What a forward and backward pass gives."""

    output: Any  # a tensor, or several in tuples and mappings
    gradients: dict[str, torch.Tensor]


class _Training:
    """A forward and a backward pass, with respect to the inputs that want gradients and to the form's parameters."""

    def __init__(self, form: Form, bound: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        module = form.form if isinstance(form, Under) else form
        named = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
        self.leaves = {f"input {i}": tensor for i, tensor in enumerate(inputs)}
        self.leaves |= {name.removeprefix("_orig_mod."): p for name, p in named.items() if p.requires_grad}
        self.backward = Backward(bound, list(self.leaves.values()), self._directions)
        self.drawn: list[torch.Tensor] = []

    def _directions(self, ends: list[torch.Tensor]) -> list[torch.Tensor]:
        self.drawn = self.drawn or directions(ends)
        return self.drawn

    def __call__(self) -> _Step:
        output, gradients = self.backward()
        return _Step(output, {name: g for name, g in zip(self.leaves, gradients, strict=True) if g is not None})


def directions(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a backward pass begins with, of these shapes; the same for the same shapes, to rounding in another type."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(result.shape, generator=draw, dtype=torch.float64).to(result) for result in results]


class Backward:
    """A forward and a backward pass: what `run()` gives, and the gradients of its tensors by `starts` along
    `directions(tensors)`, None where none flows. `.grad` stays as it is.

    Reentrant checkpoints, as PyG's `DeepGCNLayer` has them, know `.backward()` alone: from the first call that says so
    on, that is what is called.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        starts: Sequence[torch.Tensor],
        directions: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    ) -> None:
        self.run, self.starts, self.directions, self._accumulates = run, list(starts), directions, False

    def __call__(self) -> tuple[Any, list[torch.Tensor | None]]:
        result = self.run()
        ends = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        if self._accumulates:
            return result, self._accumulated(ends)
        try:
            return result, list(torch.autograd.grad(ends, self.starts, self.directions(ends), allow_unused=True))
        except RuntimeError as error:
            if ".grad()" not in str(error) or "heckpoint" not in str(error):
                raise
        self._accumulates = True  # the graph is spent: once more
        return self()

    def _accumulated(self, ends: list[torch.Tensor]) -> list[torch.Tensor | None]:
        before = [start.grad for start in self.starts]
        try:
            for start in self.starts:
                start.grad = None
            torch.autograd.backward(ends, self.directions(ends))
            return [start.grad for start in self.starts]
        finally:
            for start, gradient in zip(self.starts, before, strict=True):
                start.grad = gradient
