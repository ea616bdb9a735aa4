"""What makes a user's model faster, each step proven and raced alone and with the others: `gnnlab optimize`.

    report = optimize("my_models:make", "digits", budget_s=90)
    report.plan, report.gain            # ("fast layers", "inference mode"), an `Estimate` of the ratio of times

A greedy search: the fast layers come first, then every other step that applies. A step is added to the plan so far, in
place of those that it does not go with. The new plan is proven equal, and raced in turns with the old one and with the
user's model in several processes. It is kept if it is faster than the old plan, by the interval over the processes or
by that of each of them. The rest of the budget is divided evenly among the steps that are left.

The user's code runs in processes that may hang or die: `examine`, `attempt`, `race` and `remarks` are called there. The
first process computes the reference of the proof before it makes anything fast, and proves; all of them race.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnlab import machine
from gnnlab.errors import GnnlabError, one_line, whole_numbers
from gnnlab.profiling import estimates, findings, timing
from gnnlab.profiling.context import Conditions, call
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.profiling.estimates import CONTROL, Estimate
from gnnlab.profiling.memory import profile_memory_usage
from gnnlab.profiling.races import call_of, relative_error
from gnnlab.rewrite import proof, steps
from gnnlab.rewrite.proof import UserModel
from gnnlab.rewrite.steps import STEPS
from gnnlab.worker import Answer, Worker

YOURS = "yours"  # the user's model, as a form
OPEN = "no gain shown: the interval reaches below 1"
NO_TIME, STOPPED = "not tried: budget", "stopped: budget"
_FIRST_LIMIT_S = 60  # for the first look and the first step, if the budget is smaller
_FIRST_CALLS = 60  # of the model, for which the first step has time in any case
_GRACE_S = 5.0  # for a call that begins when its time is nearly over
_LEAST_S, _MOST_S = 0.3, 5.0  # of sampling in a race
_SOME = 1.1  # a gain that would be seen as one
clock = time.monotonic

Plan = tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """A step that was tried. `gain`: the time of the user's model over that with this step alone. `added`: the time of
    the plan so far over that with this step in it. `processes`: how many raced it. `why`: what it applies to, or why it
    was not kept. `error`: of the outputs, of a step that changes results."""

    name: str
    why: str
    kept: bool = False
    gain: Estimate | None = None
    added: Estimate | None = None
    processes: int = 0
    error: float | None = None


@dataclass(frozen=True)
class Optimized:
    """`gain`: the time of the user's model over that of the fast one, over so many `processes`. `ms` and `memory_mib`
    (what a call holds beside its inputs) of "yours" and "fast". `inapplicable`: steps, with why not. `facts`: graph and
    machine. `remarks`: what only the author can change. `proof`: the graphs on which it held, and those skipped.
    `seconds`: how long all of it took."""

    spec: str
    graph: str
    train: bool
    plan: Plan
    gain: Estimate | None
    processes: int
    ms: dict[str, float]
    memory_mib: dict[str, float]
    tried: tuple[Tried, ...]
    inapplicable: Mapping[str, str]
    facts: Mapping[str, Any]
    remarks: tuple[str, ...]
    proof: Mapping[str, Any]
    seconds: float


def optimize(
    spec: str,
    graph: str = "digits",
    *,
    train: bool = False,
    budget_s: float = 90.0,
    processes: int = 3,
    only: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    improved: Callable[[Optimized], None] = lambda report: None,
) -> Optimized:
    """Try every step, or those named in `only`, on the model of `module:factory` on a graph.

    `tell` gets lines of progress, `improved` the report whenever a plan was found that is faster than the one before.
    The first look and the first step take place whatever the budget.

    Raises:
        GnnlabError: in one line, whatever is wrong with the model or the graph.
    """
    whole_numbers(1, processes=processes)
    if not budget_s > 0:
        raise GnnlabError(f"a budget of {budget_s:g} s; some seconds are needed")
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gnnlab-optimize-"))
        workers = [held.enter_context(Worker()) for _ in range(processes)]
        search = _Search({"spec": spec, "graph": graph, "train": train}, folder, workers, clock(), budget_s, tell)
        names = [name for name in steps.tried(train) if only is None or name in only]
        return search.run(names, improved)


def name_of(plan: Sequence[str]) -> str:
    """A plan in words: "fast layers + inference mode"; the user's model for none."""
    return " + ".join(plan) or YOURS


@dataclass
class _Search:
    """The plan so far, and what is known of the steps. `examine` sets the facts."""

    of: dict[str, Any]  # spec, graph, train
    folder: str
    workers: Sequence[Worker]
    began: float
    budget_s: float
    tell: Callable[[str], None]
    plan: Plan = ()
    remarks: tuple[str, ...] = ()
    tried: list[Tried] = field(default_factory=list)
    attempts: dict[Plan, dict[str, Any]] = field(default_factory=dict)
    races: list[tuple[int, dict[str, np.ndarray]]] = field(default_factory=list)  # process, ms of each round by form

    @property
    def left_s(self) -> float:
        return self.began + self.budget_s - clock()

    def call(self, process: int, target: str, **arguments: Any) -> Answer:
        limit_s = max(self.step_ends - clock(), _GRACE_S)
        return self.workers[process].call(f"{__name__}:{target}", {**self.of, **arguments}, timeout_s=limit_s)

    def run(self, names: Sequence[str], improved: Callable[[Optimized], None]) -> Optimized:
        first_s = self.examine(names)
        applicable = [name for name in names if name in self.applicable]
        for place, name in enumerate(applicable):
            share_s = self.left_s / (len(applicable) - place)
            self.sampling_s = min(max(share_s / (2 * len(self.workers)), _LEAST_S), _MOST_S)
            self.step_ends = clock() + (share_s if place else max(self.left_s, first_s))
            if place and share_s <= 0:
                self.tried.append(Tried(name, NO_TIME))
                continue
            self.tell(f"[{place + 1}/{len(applicable)}] {name} ({max(0, self.left_s):.0f} s left)")
            before = self.plan
            tried = self.try_step(name)  # which may write to those before
            self.tried.append(tried)
            if self.plan != before:
                improved(self.report())
        if self.left_s > 0:
            answer = self.call(0, "remarks")
            self.remarks = tuple(answer.value) if answer.status == "done" else ()
        return self.report()

    def examine(self, names: Sequence[str]) -> float:
        """Look at the model, write the reference of the proof; how many seconds the first step may take."""
        self.tell(f"{self.of['spec']} on {self.of['graph']}: looking at it")
        limit_s = max(_FIRST_LIMIT_S, self.budget_s)
        self.step_ends = clock() + limit_s
        answer = self.call(0, "examine", folder=self.folder, names=list(names))
        if answer.status == "timeout":
            raise GnnlabError(
                f"{self.of['spec']}: its outputs on {self.of['graph']} and on the graphs of the proof took more than "
                f"{limit_s:.0f} s; give a larger budget, or a smaller graph if it does not hang"
            )
        if answer.lost:
            raise GnnlabError(f"{self.of['spec']}: {answer.reason}")
        seen = answer.get()
        self.facts, self.held_mib = seen["facts"], seen["held_mib"]
        self.applicable, self.inapplicable = seen["applicable"], seen["inapplicable"]
        return max(_FIRST_LIMIT_S, _FIRST_CALLS * seen["call_s"])

    def try_step(self, name: str) -> Tried:
        """Prove the step alone and in the plan, and race both; add it to the plan if the plan is faster with it."""
        old = self.plan
        new = steps.ordered([name, *(other for other in old if steps.go_together(name, other))])
        for form in dict.fromkeys([(name,), new]):
            found = self.attempts[form] = self.attempt(form)
            if found["why"] is not None:
                return Tried(name, found["why"] if len(form) == 1 else f"{found['why']}, in {name_of(form)}")
        forms = [form for form in dict.fromkeys([old, (name,), new]) if form]
        why, added = STOPPED, None
        for process in range(len(self.workers)):
            if clock() > (min(self.step_ends, self.began + self.budget_s) if process else self.step_ends):
                self.tell(f"no time for process {process + 1} of {len(self.workers)}")
                break
            why = self.race(process, forms)
            added = _pooled(self.ratios(new, old))
            if added and added.high is not None and added.high < 1:
                break
        runs, error = self.ratios(new, old), self.attempts[new].get("error")
        tried = Tried(name, "", False, _pooled(self.ratios((name,))), added if old else None, len(runs), error)
        if STEPS[name].exact and runs and (_above_1(added) or all(map(_above_1, runs))):
            self.plan = new
            replaced = set(old) - set(new)
            self.tried = [replace(t, why=f"{name} takes its place") if t.name in replaced else t for t in self.tried]
            return replace(tried, why=self.applicable[name])
        return replace(tried, why=_reason(name, added, why))

    def attempt(self, plan: Plan) -> dict[str, Any]:
        answer = self.call(0, "attempt", plan=list(plan), folder=self.folder)
        if answer.status == "done":
            return answer.value
        return {"why": STOPPED if answer.status == "timeout" else answer.reason}

    def race(self, process: int, plans: Sequence[Plan]) -> str:
        """Race forms in a process; why there are no times, empty where there are."""
        options = {"plans": [list(plan) for plan in plans], "budget_s": self.sampling_s, "seed": len(self.races)}
        answer = self.call(process, "race", **options)
        if answer.status == "done":
            self.races.append((process, {name: np.array(times) for name, times in answer.value.items()}))
            return ""
        self.tell(f"process {process + 1}: {answer.reason}")
        return STOPPED if answer.status == "timeout" else answer.reason

    def ratios(self, plan: Plan, over: Plan = ()) -> list[Estimate]:
        """The time of one plan over that of another in each process, by the last race there that had both.

        What the A/A control of a race shows widens the interval.
        """
        form, base = name_of(plan), name_of(over)
        return [
            estimates.ratio(times[base], times[form], times[base] * times[CONTROL] / times[YOURS])
            for times in self.last_races(form, base).values()
        ]

    def last_races(self, *forms: str) -> dict[int, dict[str, np.ndarray]]:
        return {process: times for process, times in self.races if all(form in times for form in forms)}

    def report(self) -> Optimized:
        gains = self.ratios(self.plan) if self.plan else []
        raced = self.last_races(name_of(self.plan)).values()
        ms = {"yours": YOURS, "fast": name_of(self.plan)}
        fast = self.attempts.get(self.plan, {})
        return Optimized(
            **self.of,
            plan=self.plan,
            gain=_pooled(gains),
            processes=len(gains),
            ms={key: float(np.median(np.concatenate([t[name] for t in raced]))) for key, name in ms.items() if raced},
            memory_mib={"yours": self.held_mib, "fast": fast.get("held_mib", self.held_mib)},
            tried=tuple(replace(tried, kept=tried.name in self.plan) for tried in self.tried),
            inapplicable=self.inapplicable,
            facts=self.facts,
            remarks=self.remarks,
            proof=fast.get("proof", {}),
            seconds=clock() - self.began,
        )


def _pooled(runs: Sequence[Estimate]) -> Estimate | None:
    return estimates.pooled(runs, log=True) if runs else None


def _above_1(ratio: Estimate) -> bool:
    return ratio.low is not None and ratio.low > 1


def _reason(name: str, added: Estimate | None, lost: str) -> str:
    """Why a step is not kept."""
    if added is None:
        return lost or "it fails in the race"
    if not STEPS[name].exact:
        return "changes results: yours to decide"
    if added.high is not None and added.high < _SOME:
        return "slower" if added.high < 1 else "no gain"
    return OPEN


# ---- in the processes -----------------------------------------------------------------------------------------------


def examine(spec: str, graph: str, train: bool, folder: str, names: Sequence[str]) -> dict[str, Any]:
    """Check the user's model and write the reference of the proof; facts of it and of the machine, and which of the
    steps `names` apply. Raises `GnnlabError`."""
    user = _user(spec, graph, train)
    proof.check(user)
    proof.write_reference(user, Path(folder))
    looks = {name: steps.look(name, _copy(user), user.batch) for name in names}
    start = time.perf_counter()
    _step(user.model, user)
    call_s = time.perf_counter() - start
    facts = {
        "nodes": user.data.num_nodes,
        "edges": user.data.num_edges,
        "parameters": sum(parameter.numel() for parameter in user.model.parameters()),
        "threads": torch.get_num_threads(),
        "versions": machine.versions(),
        "processor": machine.processor(),
        "cores": machine.cores(),
        "busy": machine.busy(machine.at_work()),
    }
    return {
        "facts": facts,
        "applicable": {name: why for name, (applies, why) in looks.items() if applies},
        "inapplicable": {name: why for name, (applies, why) in looks.items() if not applies},
        "call_s": call_s,
        "held_mib": _held_mib(user.model, user),
    }


def attempt(spec: str, graph: str, train: bool, plan: Sequence[str], folder: str) -> dict[str, Any]:
    """Make the form of a plan and prove it. `why`: why it cannot be raced, or None. `error`: of the outputs, relative
    to their largest magnitude, where the plan changes results."""
    user = _user(spec, graph, train)
    try:
        form = _form(spec, graph, train, tuple(plan))
        first = _step(form, user)
    except Exception as error:  # whatever a step or a compiler raises
        return {"why": one_line(error)}
    found = {"why": None, "held_mib": _held_mib(form, user)}
    if not all(STEPS[name].exact for name in plan):
        outputs = ([tensor.float() for tensor in tensors_in(output)] for output in (_step(user.model, user), first))
        return found | {"error": relative_error(*outputs)}
    few = proof.FEW if any(STEPS[name].compiles for name in plan) else None
    proven = proof.compare(form, user, Path(folder), few)
    if not proven.equal:
        on, what = next(iter(proven.wrong.items()))
        found["why"] = f"not equal: {what} on {on}"
    return found | {"proof": asdict(proven)}


def race(
    spec: str, graph: str, train: bool, plans: Sequence[Sequence[str]], budget_s: float, seed: int
) -> dict[str, list[float]]:
    """Times in ms of the user's model, of itself again (A/A) and of each plan that runs here, one a round."""
    user = _user(spec, graph, train)
    now, mode = Conditions.now(), "training" if train else "plain"

    def timed(form: nn.Module) -> Callable[[], Any]:
        run = call_of(form, user.batch, mode)

        def under_these_conditions() -> Any:  # in training a form may leave its own threads for the backward pass
            with now.applied():
                return run()

        return under_these_conditions if train else run

    forms: dict[str, Callable[[], Any]] = {YOURS: timed(user.model)}
    for plan in plans:
        with suppress(Exception):  # it was proven in another process, and may fail here
            form = _form(spec, graph, train, tuple(plan))
            _step(form, user)
            forms[name_of(plan)] = timed(form)
    found = timing.race(forms, control=True, budget_s=budget_s, seed=seed)
    return {name: list(each.samples_ms) for name, each in found.items()}


def remarks(spec: str, graph: str, train: bool) -> list[str]:
    """What only the author of the model can change: arguments and parameters without effect, equal rows."""
    user = _user(spec, graph, train)
    try:
        found = findings.inspect(user.model, user.batch)
    except Exception as error:  # a model may refuse what is tried on it
        return [f"The model could not be looked at: {one_line(error)}"]
    kinds = ("unused_argument", "unused_parameter", "shape_only", "identical_rows")
    return [finding.sentence for finding in found if finding.kind in kinds]


@cache
def _user(spec: str, graph: str, train: bool) -> UserModel:
    return proof.load(spec, graph, train)


@cache
def _form(spec: str, graph: str, train: bool, plan: Plan) -> nn.Module:
    user = _user(spec, graph, train)
    if any(STEPS[name].compiles for name in plan):
        import torch._dynamo  # beyond its limit of versions torch.compile would go on without compiling, in silence

        torch._dynamo.config.recompile_limit = 64  # several forms share one code
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    return steps.apply(plan, _copy(user), user.batch)


def _copy(user: UserModel) -> nn.Module:
    try:
        return copy.deepcopy(user.model)
    except Exception as error:  # modules may refuse in any way
        raise GnnlabError(f"{user.spec} makes a model that cannot be copied: {one_line(error)}") from error


def _step(model: nn.Module, user: UserModel) -> Any:
    """A forward pass, in training with the backward pass; threads that a form sets are not left to the next."""
    with Conditions.now().applied():
        output = call(model, user.batch)
        if user.train:
            proof.gradients(model, list(tensors_in(output)))
    return output


def _held_mib(model: nn.Module, user: UserModel) -> float:
    """The most memory that a call holds beside what there was, in MiB."""
    return profile_memory_usage(lambda: _step(model, user), device="cpu").rise_mb
