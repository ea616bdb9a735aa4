"""What the processes of `gnnlab optimize` do: look at the user's model, try a plan of steps, time plans in turns.

Targets for `gnnlab.worker`: plain values in, plain values out. A process keeps the model and the forms that it made.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo
from torch import nn

from gnnlab import machine
from gnnlab.errors import GnnlabError, one_line
from gnnlab.profiling import roofline, timing
from gnnlab.profiling.context import Conditions, call
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.profiling.races import call_of, relative_error
from gnnlab.profiling.roofline import count
from gnnlab.rewrite import proof, steps, subject
from gnnlab.rewrite.subject import UserModel

YOURS = "yours"
# beyond its limit of versions torch.compile goes on without compiling, in silence; here several forms share one code
torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.fail_on_recompile_limit_hit = True
_CALLS = 5  # for a first look at a time
_SHORT_S = 0.3  # of the race of a step by itself
_SLOWER = 1.5  # times the user's own: what is so much slower in a short race need not be proven on other graphs


def examine(spec: str, graph: str, train: bool, folder: str, thorough: bool) -> dict[str, Any]:
    """Check the user's model, write the reference of the proof; what is told of it. Raises `GnnlabError`.

    `limit_ms`: the roofline time of the forward pass, with `thorough` and not in training.
    """
    seen = _subject(spec, graph, train)
    subject.check(seen)
    proof.write_reference(seen.model, seen.data, spec, train, Path(folder), seen.keeps_its_graph)
    limit_ms = None
    if thorough and not train:
        limit_ms = roofline.bound_ms(count(seen.model, seen.batch), roofline.ceilings(budget_s=1.0))
    return {
        "nodes": seen.data.num_nodes,
        "edges": seen.data.num_edges,
        "parameters": sum(parameter.numel() for parameter in seen.model.parameters()),
        "threads": torch.get_num_threads(),
        "versions": machine.versions(),
        "processor": machine.processor(),
        "cores": machine.cores(),
        "busy": machine.busy(machine.at_work()),
        "limit_ms": limit_ms,
        "told": steps.told(seen.model, seen.batch) if thorough else [],
    }


def ready(spec: str, graph: str, train: bool) -> float:
    """Load the model and the graph; seconds that a call of the model takes."""
    seen = _subject(spec, graph, train)
    _step(seen.model, seen)
    start = time.perf_counter()
    _step(seen.model, seen)
    return time.perf_counter() - start


def attempt(spec: str, graph: str, train: bool, plan: Sequence[str], folder: str) -> dict[str, Any]:
    """Try a plan: does it apply, is it right, what does it take once, which share of the time can it touch?

    A step by itself is raced shortly once it is right on the user's graph (`times`, as `race` gives them), and proven
    on the other graphs unless it was slower: what a compiler makes anew for each of them takes long. Of steps that are
    not exact, `error` is that of the outputs, relative to their largest magnitude.
    """
    seen, found = _subject(spec, graph, train), {"applies": True, "why": "", "share": None}
    single = len(plan) == 1
    if single:
        look = steps.STEPS[plan[0]].look(copy.deepcopy(seen.model), seen.batch)
        found |= {"applies": look.applies, "why": look.why}
        if not look.applies:
            return found
        found["share"] = _share(seen, look.modules)
    start = time.perf_counter()
    try:
        form = _form(spec, graph, train, tuple(plan))
        first = _step(form, seen)
    except Exception as error:  # whatever a step or a runtime raises is why it does not apply
        return found | {"applies": False, "why": f"{found['why']}; {one_line(error)}".lstrip("; ")}
    found["once_s"] = time.perf_counter() - start
    exact = all(steps.STEPS[name].exact for name in plan)
    few = proof.FEW if any(steps.STEPS[name].slow for name in plan) else None

    def prove(names: Sequence[str] | None) -> bool:
        proven = proof.compare(form, seen.data, spec, train, Path(folder), seen.keeps_its_graph, names)
        found.update(proof=asdict(proven), right=proven.holds_on_yours)
        return not proven.wrong and not proven.refused

    if not exact:
        found["error"] = relative_error(_outputs(_step(seen.model, seen)), _outputs(first))
    elif not prove((proof.YOURS,)) and single:
        return found | {"right": False}
    if single:
        times = found["times"] = race(spec, graph, train, [plan], _SHORT_S, 0)
        found["call_s"] = median(times[name_of(plan)]) / 1e3 if name_of(plan) in times else 0.0
        found["slower"] = found["call_s"] > _SLOWER * median(times[YOURS]) / 1e3
        if exact and found["slower"]:
            return found | {"right": True}
    if exact:
        prove(few)
    return found


def race(
    spec: str, graph: str, train: bool, plans: Sequence[Sequence[str]], budget_s: float, seed: int
) -> dict[str, list[float]]:
    """Times in ms of the user's model, of itself again (A/A) and of each plan that runs here, one a round.

    What is exact was proven before, tensor by tensor; the others are timed for what they would bring.
    """
    seen = _subject(spec, graph, train)
    now, mode = Conditions.now(), "training" if train else "plain"

    def timed(form: nn.Module) -> Callable[[], Any]:
        run = call_of(form, seen.batch, mode)

        def under_mine() -> Any:  # in training a form may leave its own number of threads for the backward pass
            with now.applied():
                return run()

        return under_mine if train else run

    forms: dict[str, Callable[[], Any]] = {YOURS: timed(seen.model)}
    for plan in plans:
        with suppress(Exception):  # it was built in another process, and may fail here
            form = _form(spec, graph, train, tuple(plan))
            _step(form, seen)
            forms[name_of(plan)] = timed(form)
    found = timing.race(forms, control=True, budget_s=budget_s, seed=seed)
    return {name: list(each.samples_ms) for name, each in found.items()}


def name_of(plan: Sequence[str]) -> str:
    """A plan in words: "fast layers + inference mode"."""
    return " + ".join(plan)


@cache
def _subject(spec: str, graph: str, train: bool) -> UserModel:
    return subject.load(spec, graph, train)


@cache
def _form(spec: str, graph: str, train: bool, plan: tuple[str, ...]) -> nn.Module:
    seen = _subject(spec, graph, train)
    try:
        model = copy.deepcopy(seen.model)
    except Exception as error:  # modules may refuse in any way
        raise GnnlabError(f"{spec} makes a model that cannot be copied: {one_line(error)}") from error
    return steps.apply(plan, model, seen.batch)


def _step(model: nn.Module, seen: UserModel) -> Any:
    """A forward pass, in training with the backward pass; threads that a form sets are not left to the next."""
    with Conditions.now().applied():
        output = call(model, seen.batch)
        if seen.train:
            proof.gradients(model, list(tensors_in(output)))
    return output


def _outputs(output: Any) -> list[torch.Tensor]:
    return [tensor.float() for tensor in tensors_in(output)]


def _share(seen: UserModel, paths: Sequence[str] | None) -> float | None:
    """The share of a forward pass that is spent in the modules of these paths; None for the whole model, and
    in training, where hooks do not see the backward pass."""
    if not paths or seen.train:
        return None
    spent: list[float] = []

    def begin(module: nn.Module, inputs: Any) -> None:
        spent.append(-time.perf_counter())

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        spent[-1] += time.perf_counter()

    outermost = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    modules = [seen.model.get_submodule(path) for path in outermost]
    hooks = [hook for m in modules for hook in (m.register_forward_pre_hook(begin), m.register_forward_hook(end))]
    shares = []
    try:
        for _ in range(_CALLS + 1):
            spent.clear()
            start = time.perf_counter()
            call(seen.model, seen.batch)
            shares.append(sum(spent) / (time.perf_counter() - start))
    finally:
        for hook in hooks:
            hook.remove()
    return min(1.0, median(shares[1:]))
