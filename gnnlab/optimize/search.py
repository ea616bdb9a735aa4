"""What makes a user's model faster, each step proven and raced beside what was there before it: `gnnlab optimize`.

    report = optimize("my_models:make", "digits")
    report.plan, report.gain            # ("fast layers", "inference mode"), an `Estimate` of the ratio of times

A greedy search: the fast layers come first, then every other step that applies. A step is added to the plan so far, in
place of those that it conflicts with. The new plan is proven equal, then raced with the old one in fresh processes
(`measure.versus`), and kept where the whole interval of its gain lies above 1. In the end the plan is raced with the
user's own model.

The user's code runs in processes that may hang or die, and that allocate memory as the user's own process does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from gnnlab import machine, user_code
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError
from gnnlab.measure import versus as race
from gnnlab.measure.conditions import Conditions, products
from gnnlab.measure.estimates import Estimate
from gnnlab.measure.race import comparable
from gnnlab.measure.tensors import device_name, device_of
from gnnlab.measure.timing import stopwatch
from gnnlab.measure.versus import Made, Versus
from gnnlab.optimize import equivalence, steps
from gnnlab.optimize.equivalence import UserModel
from gnnlab.optimize.steps import STEPS
from gnnswap.equivalence import copied
from gnnswap.errors import one_line
from gnnswap.inputs import call, tensors_in

NOT_SHOWN = "no gain shown: the interval reaches below 1"
LIMIT_S = 300.0  # of one process beside its sampling: compiling is slow
SOME = 1.1  # a gain that would be seen as one

Plan = tuple[str, ...]
Of = tuple[str, str, bool, str | None]  # the user's model, graph, whether it is to be trained, and the device


@dataclass(frozen=True)
class StepResult:
    """A step that was tried. `gain`: the time of the plan so far over that with this step in it, over `processes`.
    `reason`: why it applies, or why it was not kept. `error`: of the outputs, if it changes results."""

    name: str
    reason: str
    kept: bool = False
    gain: Estimate | None = None
    processes: int = 0
    error: float | None = None


@dataclass(frozen=True)
class OptimizeReport:
    """`whole`: the race of the user's model with the plan, None where there is no plan or it was not raced yet.
    `device`: the one that was named, None where the factory decides. `inapplicable`: steps, with why not. `facts`:
    graph and machine. `checked`: the graphs on which outputs were equal, and those skipped. `seconds`: of all of it."""

    spec: str
    graph: str
    train: bool
    device: str | None
    plan: Plan
    whole: Versus | None
    tried: tuple[StepResult, ...]
    inapplicable: Mapping[str, str]
    facts: Mapping[str, Any]
    checked: Mapping[str, Any]
    seconds: float

    @property
    def gain(self) -> Estimate | None:
        """The time of the user's model over that of the fast one."""
        return self.whole and self.whole.speed


def optimize(
    spec: str,
    graph: str = "digits",
    *,
    train: bool = False,
    device: str | None = None,
    processes: int = 3,
    seconds: float = 0.5,
    memory: bool = True,
    only: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    improved: Callable[[OptimizeReport], None] = lambda report: None,
) -> OptimizeReport:
    """Try every step, or those named in `only`, on the model of `module:factory` on a graph.

    `device`: where both are moved ("cpu", "cuda"); unless it is named, they stay where the factory made them. Each race
    takes `processes` processes with `seconds` of sampling; with `memory` two more watch the peak of the whole.
    `tell` gets the cost first, then lines of progress; `improved` the report whenever a step was kept.

    Raises:
        GnnlabError: in one line, whatever is wrong with the model or the graph, or two processes.
    """
    race.require_processes(processes)
    began, of = time.monotonic(), (spec, graph, train, device)
    with Worker(keep_memory=False) as prover:
        tell(f"{spec} on {graph}: looking at it")
        names = [name for name in steps.tried(train) if only is None or name in only]
        answer = _ask(prover, of, "examine", names=names)
        seen = answer.get(spec if answer.lost else "")
        tell("\n".join(seen["facts"]["read"]))
        seen["facts"]["busy"] = machine.busy(machine.at_work())
        report = OptimizeReport(*of, (), None, (), seen["inapplicable"], seen["facts"], {}, 0.0)
        racing = {"processes": processes, "seconds": seconds, "tell": tell, "limit_s": LIMIT_S}
        takes_s = race.cost_s(processes, seconds, call_s=seen["call_s"], start_s=time.monotonic() - began)
        count = len(seen["applicable"])
        most = f"at most about {(count + 1) * takes_s:.0f} s, and compiling"
        tell(f"{count} steps, each in up to {processes} processes: {most}")
        for place, (name, why) in enumerate(seen["applicable"].items()):
            tell(f"[{place + 1}/{count}] {name}")
            new = steps.in_order([name, *(other for other in report.plan if steps.compatible(name, other))])
            result, checked, raced = _try_step(prover, of, report.plan, new, name, racing)
            if not result.kept:
                report = replace(report, tried=(*report.tried, result))
                continue
            replaced = {*report.plan} - {*new}
            takes = {"kept": False, "reason": f"{name} takes its place"}
            tried = (replace(each, **takes) if each.name in replaced else each for each in report.tried)
            tried = (*tried, replace(result, reason=why))
            report = replace(report, plan=new, whole=None if report.plan else raced, tried=tried, checked=checked)
            improved(report)
    whole = _race(of, (), report.plan, memory=memory, **racing) if report.plan else None
    return replace(report, whole=whole, seconds=time.monotonic() - began)


def _try_step(
    prover: Worker, of: Of, old: Plan, new: Plan, name: str, racing: Mapping[str, Any]
) -> tuple[StepResult, dict[str, Any], Versus | None]:
    """What became of a step, on which graphs its plan was checked, and its race."""
    try:
        attempt = _ask(prover, of, "attempt", plan=new).get()
        if attempt["why"] is not None:
            return StepResult(name, attempt["why"]), {}, None
        raced = _race(of, old, new, tolerance=math.inf, enough=lambda first: first.high < 1, **racing)
    except GnnlabError as error:
        return StepResult(name, one_line(error)), {}, None
    gain, exact = raced.speed, STEPS[name].exact
    kept = exact and gain.low is not None and gain.low > 1
    result = StepResult(name, _reason(gain, exact), kept, gain, len(raced.processes), attempt.get("error"))
    return result, attempt.get("checked", {}), raced


def _reason(gain: Estimate, exact: bool) -> str:
    """Why a step is not kept."""
    if not exact:
        return "changes results: for you to decide"
    if gain.high is not None and gain.high < SOME:
        return "slower" if gain.high < 1 else "no gain"
    return NOT_SHOWN


def _race(of: Of, old: Plan, new: Plan, **options: Any) -> Versus:
    before, after = (Made(f"{__name__}:variant", {"of": of, "plan": plan}) for plan in (old, new))
    differs = steps.environment(new) if steps.environment(new) != steps.environment(old) else None
    options["mode"] = "training" if of[2] else "plain"
    return race.versus(before, after, Made(f"{__name__}:inputs", {"of": of}), environment=differs, **options)


def _ask(worker: Worker, of: Of, target: str, **arguments: Any) -> Any:
    return worker.call(f"{__name__}:{target}", {"of": of, **arguments}, timeout_s=LIMIT_S)


# ---- in the processes -----------------------------------------------------------------------------------------------


def examine(of: Of, names: Sequence[str]) -> dict[str, Any]:
    """Check the user's model; facts of it and of the machine, and which of the steps `names` apply. Raises
    `GnnlabError`."""
    user = _user(*of)
    equivalence.check(user)
    with user_code.guarded(f"{user.spec} makes a model that cannot be copied:"):
        looks = {name: steps.applies_to(name, copied(user.model), user.batch) for name in names}
    with stopwatch(device=device_of(user.model, user.batch)) as took:
        _step(user.model, user)
    facts = {
        "read": user.read,
        "nodes": user.data.num_nodes,
        "edges": user.data.num_edges,
        "threads": torch.get_num_threads(),
        "versions": machine.versions(),
        "processor": machine.processor(),
        "cores": machine.cores(),
    }
    if (where := device_of(user.model, user.batch)).type != "cpu":
        facts |= {"device": device_name(where), "float32_products": products()}
    return {
        "facts": facts,
        "call_s": took.s,
        "applicable": {name: why for name, (applies, why) in looks.items() if applies},
        "inapplicable": {name: why for name, (applies, why) in looks.items() if not applies},
    }


def attempt(of: Of, plan: Sequence[str]) -> dict[str, Any]:
    """Make the variant of a plan and prove it. `why`: why it cannot be raced, or None. `error`: of the outputs,
    relative to their largest magnitude, where the plan changes results."""
    user, cases = _user(*of), _reference(*of)
    try:
        fast = variant(of, plan)
        _step(fast, user)  # not compared: a first call
    except Exception as error:  # whatever a step or a compiler raises
        return {"why": one_line(error)}
    if not all(STEPS[name].exact for name in plan):
        outputs = ([t.float() for t in tensors_in(_step(model, user))] for model in (fast, user.model))
        return {"why": None, "error": float(comparable(*outputs, "the fast model"))}
    few = equivalence.FEW if any(STEPS[name].compiles for name in plan) else None
    checked = equivalence.compare(fast, user, cases, few)
    why = None if checked.equal else "not equal: {1} on {0}".format(*next(iter(checked.wrong.items())))
    return {"why": why, "checked": asdict(checked)}


def variant(of: Of, plan: Sequence[str]) -> nn.Module:
    """The user's model after the steps of a plan."""
    if any(STEPS[name].compiles for name in plan):
        import torch._dynamo  # beyond its limit of versions torch.compile would go on without compiling, in silence

        torch._dynamo.config.recompile_limit = 64  # several variants share one code
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    user = _user(*of)
    return steps.apply(plan, copied(user.model), user.batch) if plan else user.model


def inputs(of: Of) -> Any:
    """What the user's model is called with."""
    return _user(*of).batch


@cache
def _user(*of: Any) -> UserModel:
    return equivalence.load(*of)


@cache
def _reference(*of: Any) -> dict[str, equivalence.Case]:
    return equivalence.reference(_user(*of))


def _step(model: nn.Module, user: UserModel) -> Any:
    """A forward pass, in training with the backward pass; threads that a variant sets are not left to the next."""
    with Conditions.now().applied():
        output = call(model, user.batch)
        if user.train:
            equivalence.gradients(model, list(tensors_in(output)))
    return output
