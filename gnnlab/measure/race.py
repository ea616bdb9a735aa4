"""A race: variants that compute the same, as a dict, over named inputs. Checked first, then timed interleaved: nothing
is timed before a `BaselineOutput` says that two variants compute the same.

    variants = {"PyG": conv, "torch.compile": torch.compile(conv), "mine": lambda x, edge_index: ...}
    raced = race_variants(variants, {"x": x, "edge_index": edge_index}, budget_s=1)
    raced["mine"].ratio                  # of the first variant's time over this one's, an `Estimate`

    >>> x = torch.randn(1000, 64)
    >>> raced = race_variants({"sum": lambda x: x.sum(1), "mean": lambda x: 64 * x.mean(1)}, {"x": x}, budget_s=0.05)
    >>> [*raced], raced["mean"].ratio.n >= LEAST_SAMPLES
    (['sum', 'A/A', 'mean'], True)

The first variant is the baseline. A variant takes those of the inputs that its arguments name, or all of them in order
where they are a tuple. One that fails, or computes something else, is not timed, and says why.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gnnlab.errors import GnnlabError, ParityError, Unavailable
from gnnswap import parity
from gnnswap.errors import one_line
from gnnswap.inputs import in_float64, of_floats, tensors_in
from gnnswap.parity import FP32_SLACK, GRADIENT_FLOOR, RTOL_FLOAT32, Deviation

from . import estimates, timing
from .conditions import Conditions, under
from .estimates import CONTROL, LEAST_SAMPLES, Estimate
from .restore import unchanged
from .tensors import device_of

INPUT_PERTURBATIONS = 8  # inputs with other last bits, on which the baseline's own error is taken
ITEMS = 256  # in a sample of a baseline that takes them one by one; with 64, in cold caches, each took 7 % longer
LEAST_ROUNDS = 2 * LEAST_SAMPLES  # of several variants: the fastest is chosen on half of them, judged on the other
MODES = ("inference", "training", "plain")
Inputs = Any  # a mapping by the names of arguments, a tuple of them, or the only one
Variant = Callable[..., Any]


@dataclass(frozen=True)
class Raced:
    """What became of one variant: its times in ms, one a round, or the reason why there are none."""

    times_ms: np.ndarray | None = None
    ratio: Estimate | None = None  # over the first variant; None for that variant itself
    parity_error: float | None = None
    conditions: Conditions | None = None
    reason: str | None = None
    missing: bool = False  # what it needs is not here, which is no failure of the variant
    notes: tuple[str, ...] = ()
    device: str = "cpu"  # for which the clock waited


def race_variants(
    variants: Mapping[str, Variant],
    inputs: Inputs,
    *,
    tolerance: float | Mapping[str, float] = RTOL_FLOAT32,
    mode: str = "inference",
    budget_s: float = 2.0,
    device: Any = None,
    per: int = 1,
    one_by_one: str | None = None,
) -> dict[str, Raced]:
    """Every variant by its name, the baseline first, then the baseline a second time ("A/A").

    Args:
        variants: functions or modules that compute the same, by name; the first is the baseline.
        inputs: by name, of which each variant is given those that its arguments name; or a tuple for all.
        tolerance: by which outputs may differ from the baseline's, relative to its largest magnitude; a mapping gives
            single variants a bound of their own, which stands. Where others differ by more and the baseline is a
            module, float64 decides: a variant is right, too, that is at most `FP32_SLACK` times as far off as the
            baseline is, on these inputs or on some that differ in their last bits.
        mode: in "training" a call is the forward and the backward pass, with a fixed gradient of the output, and the
            gradients of inputs and of parameters of the same name have to agree, too. In "plain" gradients are on
            unless a variant turns them off itself.
        budget_s: seconds of sampling in all; it ends earlier where the intervals are narrow.
        device: that the clock waits for; else that of the tensors of variants, inputs and results.
        per: items that a call works through; times are those of one of them.
        one_by_one: an input whose items the baseline takes one by one: it is timed on the next `ITEMS` of them, and its
            time is that of all.

    Raises:
        GnnlabError: no variants, an unknown mode, or a baseline that fails.
    """
    if not variants or mode not in MODES:
        raise GnnlabError(f"a race needs variants and a mode of {', '.join(MODES)}; got {len(variants)} and {mode!r}")
    calls, base = {name: call_of(variant, inputs, mode) for name, variant in variants.items()}, next(iter(variants))
    with unchanged(variants, trains=False), torch.inference_mode(mode == "inference"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        checked, output = _checked(calls, tolerance, cache(lambda: _exact(variants[base], inputs, mode)))
        where = device_of(list(variants.values()), inputs, output) if device is None else device
        each, part = {name: calls[name] for name, one in checked.items() if one.reason is None}, 1.0
        if one_by_one and len(inputs[one_by_one]) > ITEMS:
            part, turns = ITEMS / len(inputs[one_by_one]), cycle(inputs[one_by_one])
            each[base] = lambda: call_of(variants[base], {**inputs, one_by_one: list(islice(turns, ITEMS))}, mode)()
        least = LEAST_ROUNDS if len(variants) > 2 else LEAST_SAMPLES
        timed = timing.race(each, control=True, budget_s=budget_s, device=where, least=least)
    ms = {name: np.asarray(times.samples_ms) / per for name, times in timed.items()}
    ms |= {name: ms[name] / part for name in (base, CONTROL)}
    result, in_turns = {}, (f"timed on {ITEMS} items at a time, which take turns",) * (part < 1)
    for name in [base, CONTROL, *list(variants)[1:]]:
        raced = replace(checked.get(name, Raced()), device=str(where))
        if raced.reason is None:
            variant, noise = variants.get(name, variants[base]), None if name == CONTROL else ms[CONTROL]
            ratio = None if name == base else estimates.ratio(ms[base], ms[name], noise)
            conditions = (isinstance(variant, under) and variant.conditions) or Conditions.now()
            notes = timed[name].notes + in_turns * (name in (base, CONTROL))
            raced = replace(raced, times_ms=ms[name], ratio=ratio, conditions=conditions, notes=notes)
        result[name] = raced
    return result


def _checked(
    calls: Mapping[str, Variant], tolerance: float | Mapping[str, float], exact: Callable[[], tuple[Any, float] | None]
) -> tuple[dict[str, Raced], Any]:
    """How far off each variant is, or the reason why it cannot be timed; and what the baseline gave."""
    bounds, common = (tolerance, RTOL_FLOAT32) if isinstance(tolerance, Mapping) else ({}, tolerance)
    base, *others = calls
    try:
        baseline = BaselineOutput(calls[base], base, _error)
    except Exception as error:
        raise GnnlabError(f"the baseline {base!r} fails: {one_line(error)}") from error
    checked = {base: Raced()}
    for name in others:
        bound, reason = bounds.get(name, common), None
        try:
            error = baseline.error_of(calls[name], bound, name)
            if not error <= bound and name not in bounds and (known := exact()) is not None:
                truth, own = known
                error, bound = _error(calls[name](), truth, name), max(bound, FP32_SLACK * own)
        except Exception as problem:  # whatever a variant of the reader raises: the others still race
            ours = isinstance(problem, (ParityError, Unavailable))
            reason = str(problem) if ours else f"does not run here: {one_line(problem)}"
            checked[name] = Raced(reason=reason, missing=isinstance(problem, Unavailable))
            continue
        if not error <= bound:
            reason = f"its output differs from that of {base} by {error:.1e} relative, allowed is {bound:.0e}; "
            reason += "only what computes the same is timed"
        checked[name] = Raced(parity_error=float(error), reason=reason)
    return checked, baseline.value


def _exact(variant: Variant, inputs: Inputs, mode: str) -> tuple[Any, float] | None:
    """What a module gives in float64, and how far off it is itself; None of another variant, or where float64 fails.

    Its own error is the largest on these inputs and on others that differ in their last bits, `INPUT_PERTURBATIONS` in
    all. One is not enough: where a maximum has a near tie, or a variance is almost nothing, it is luck which edge has
    the gradient.
    """
    if not isinstance(variant, nn.Module):
        return None
    draw, truth, own = torch.Generator().manual_seed(0), None, 0.0

    def last_bits(value: torch.Tensor) -> torch.Tensor:
        return value * (1 + parity.EPSILON * torch.randint(-1, 2, value.shape, generator=draw).to(value))

    try:
        wide = copy.deepcopy(variant).double()
        for _ in range(INPUT_PERTURBATIONS):
            exact = call_of(wide, in_float64(inputs), mode)()
            own = max(own, _error(call_of(variant, inputs, mode)(), exact, "the baseline"))
            truth = exact if truth is None else truth
            inputs = of_floats(inputs, last_bits)
    except Exception:  # modules may refuse to be copied, or make float32 tensors of their own
        return None
    return truth, own


def _error(got: Any, expected: Any, name: str) -> Deviation:
    """Relative error, of a training step also of its gradients: a variant that leaves one out computes less."""
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

    >>> require_equal([1.0, 2.0], [1.0, 2.0 + 1e-7]) < 1e-5
    True
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
    """What a variant gives, to compare others with. A first call is not compared, for it may be inexact: each variant
    is called once before, and both are once again where they differ.

    `error(got, expected, name)` gives the relative error, `comparable` unless given. With `warm` all variants were
    called before. What `call` raises goes to the caller.
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
        """The relative error of what another variant gives, which is above `allowed` if it is so twice.

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


def call_of(variant: Variant, inputs: Inputs, mode: str = "inference") -> Callable[[], Any]:
    """A function without arguments that calls `variant` with its part of the inputs; in mode "training" also backward,
    to the inputs that want gradients and the variant's parameters."""
    if isinstance(inputs, Mapping):
        names = _named(variant, inputs)
        given = {name: value for name, value in inputs.items() if name in names}
        bound = partial(variant, **given)
    else:
        given = dict(enumerate(inputs if isinstance(inputs, tuple | list) else (inputs,)))
        bound = partial(variant, *given.values())
    if mode != "training":
        return bound
    module = variant.variant if isinstance(variant, under) else variant
    leaves = {f"input {of}": t for of, t in given.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    if isinstance(module, nn.Module):
        named = {name.removeprefix("_orig_mod."): p for name, p in module.named_parameters()}
        leaves |= {name: p for name, p in named.items() if p.requires_grad}
    drawn: list[torch.Tensor] = []
    backward = Backward(bound, list(leaves.values()), lambda ends: drawn or drawn.extend(directions(ends)) or drawn)
    conditions = Conditions.now()

    def step() -> _Step:
        with conditions.applied():  # a variant may leave threads of its own for the backward pass, not for others
            output, gradients = backward()
        return _Step(output, {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None})

    return step


def _named(variant: Variant, inputs: Mapping[str, Any]) -> set[str]:
    """The inputs that a variant names as arguments; all where it takes any; a compiled module takes those of its
    own."""
    variant = getattr(variant, "_orig_mod", variant)
    arguments = inspect.signature(variant.forward if isinstance(variant, nn.Module) else variant).parameters.values()
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
        return set(inputs)
    return {argument.name for argument in arguments}


class _Step(NamedTuple):
    """What a forward and backward pass gives."""

    output: Any  # a tensor, or several in tuples and mappings
    gradients: dict[str, torch.Tensor]


def directions(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a backward pass begins with, of these shapes; the same for the same shapes, to rounding in another type."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(result.shape, generator=draw, dtype=torch.float64).to(result) for result in results]


class Backward:
    """A forward and a backward pass: what `run()` gives, and the gradients of its tensors by `starts` along
    `directions(tensors)`, None where none flows. `.grad` stays as it is.

    Reentrant checkpoints (PyG's `DeepGCNLayer`) support `.backward()` alone: after the first call that says so, all
    calls use it.
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
