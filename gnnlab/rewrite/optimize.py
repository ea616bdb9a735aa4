"""What makes a user's model faster, each step measured alone and together, and proven: `gnnlab optimize`.

    report = optimize("my_models:make", "digits", budget_s=90)
    report.plan, report.gain            # ("fast layers", "inference mode"), an `Estimate` of the ratio of times

The user's code runs in processes that may hang or die. One computes the reference of the proof and makes nothing fast.
One tries each step by itself: does it apply, is it right, is it slower. What is not slower there is raced with what
goes together, in turns, in several further processes; a step stays if the interval over these lies above 1, and if the
plan is slower without it.

The budget is of the clock on the wall, the start of processes included. What a step takes is estimated before it is
tried, in starts of a process, of which the first says how fast and how busy this machine is; a step that would leave no
time for the race is not tried, and one that takes longer than what is left beside the race is stopped.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONTROL, LEAST_SAMPLES, Estimate
from gnnlab.rewrite import steps
from gnnlab.rewrite.bench import YOURS, name_of
from gnnlab.rewrite.proof import YOURS as YOUR_GRAPH
from gnnlab.rewrite.steps import GUARD, STEPS
from gnnlab.worker import Answer, Worker

MOST_RACED = 6  # steps that go on to the race
RESERVE_S = 10  # beyond the budget, for a race that is under way when it ends
LEAST_S = 0.3  # of sampling in a race
_FIRST_LIMIT_S = 60  # for a first look at the model, if the budget is smaller
_CALLS = LEAST_SAMPLES + 2  # of each form in the shortest race
_SOME = 1.1  # a gain that would be seen as one
_STOPPED, _SKIPPED, _NOT_RACED = "not tried to its end: budget", "not tried: budget", "not raced: budget"
OPEN = "no gain shown: the interval reaches below 1"
_SLOWER = "slower in the process that tried it"
clock = time.monotonic

Plan = tuple[str, ...]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """What became of one step. `gain`: the ratio of times over yours, alone; `processes` says over how many.

    `most`: the gain that it could have at most, by the share of the time in what it touches (Amdahl). `only_this_size`:
    it is wrong on graphs of other sizes. `error` is that of steps which are not exact. `why`: applies to what, or why
    not, or why not kept. `without`: the time of the plan without a step that was kept over that of the plan. `beside`:
    the time of the plan over that of the plan with a step that changes results.
    """

    name: str
    kept: bool
    why: str
    gain: Estimate | None = None
    processes: int = 0
    once_s: float | None = None
    most: float | None = None
    error: float | None = None
    only_this_size: bool = False
    without: Estimate | None = None
    beside: Estimate | None = None

    @property
    def exact(self) -> bool:
        return STEPS[self.name].exact


@dataclass(frozen=True)
class Optimized:
    """`ms`: medians of a call of yours and of the fast model. `proof`: graphs on which it held, was wrong, refused,
    skipped. `seconds`: how long all of it took. `wanted_s`: a budget with room for what this one had none for."""

    spec: str
    graph: str
    train: bool
    plan: Plan
    gain: Estimate | None
    ms: dict[str, float]
    tried: tuple[Tried, ...]
    facts: Mapping[str, Any]
    proof: Mapping[str, Any]
    processes: int
    seconds: float
    wanted_s: int | None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Steps that the budget had no room for."""
        return tuple(t.name for t in self.tried if t.why in (_STOPPED, _SKIPPED, _NOT_RACED))


def optimize(
    spec: str,
    graph: str = "digits",
    *,
    train: bool = False,
    budget_s: float = 90.0,
    processes: int = 3,
    only: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
) -> Optimized:
    """Try every step, or those named in `only`, on the model of `module:factory` on a graph; `tell` gets progress.

    It takes `budget_s` seconds and at most `RESERVE_S` more. The first look at the model, what is cheap to try and the
    shortest race come in any case: where the budget is less than they take, `tell` hears how much less.

    Raises:
        GnnlabError: in one line: fewer than two processes, or whatever is wrong with the model or the graph.
    """
    if processes < 2 or not budget_s > 0:
        raise GnnlabError(
            f"{processes} processes and {budget_s:g} s: 2 or more and some seconds are needed, for no step is taken on "
            "one process's word"
        )
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gnnlab-optimize-"))
        bench = _Bench({"spec": spec, "graph": graph, "train": train}, folder, budget_s, tell)
        bench.trial = held.enter_context(Worker())
        names = [name for name in steps.tried(train) if only is None or name in only]
        return _Search(bench, processes, names).run()


@dataclass
class _Bench:
    """The processes, and how much of the budget is left. All times are in seconds."""

    of: dict[str, Any]  # spec, graph, train
    folder: str
    budget_s: float
    tell: Tell
    began: float = field(default_factory=lambda: clock())
    deadline: float = 0.0
    start_s: float = 0.0  # of a process with the model in it, as last seen
    yours_s: float = 0.0  # a call of the user's model

    @property
    def left_s(self) -> float:
        return self.deadline - clock()

    def call(self, worker: Worker, target: str, limit_s: float, **arguments: Any) -> Answer:
        return worker.call(f"gnnlab.rewrite.bench:{target}", {**self.of, **arguments}, timeout_s=max(1.0, limit_s))

    def begin(self, processes: int) -> dict[str, Any]:
        """Look at the model, start the process of the trials; what is told of the model."""
        self.tell(f"{self.of['spec']} on {self.of['graph']}: looking at it")
        limit_s = max(_FIRST_LIMIT_S, self.budget_s)
        with Worker() as untouched:
            thorough = self.budget_s >= 30
            answer = self.call(untouched, "examine", limit_s, folder=self.folder, thorough=thorough)
        if answer.status == "timeout":
            raise GnnlabError(
                f"{self.of['spec']}: its outputs on {self.of['graph']} and on the graphs of the proof took more than "
                f"{limit_s:.0f} s; give a larger budget, or a smaller graph if it does not hang"
            )
        if answer.lost:
            raise GnnlabError(f"{self.of['spec']}: {answer.reason}")
        facts = answer.get()
        self.start(self.trial, limit_s)
        least_s = (processes + 1) * self.start_s + (processes + 2) * 3 * _CALLS * self.yours_s + 5.0
        self.deadline = max(self.began + self.budget_s, clock() + least_s)
        if (more := self.deadline - self.began - self.budget_s) > 0:
            self.tell(
                f"{processes + 2} processes with your model, {self.start_s:.0f} s each to start at the moment, and the "
                f"shortest race take up to {more:.0f} s more than the budget of {self.budget_s:.0f} s"
            )
        return facts

    def start(self, worker: Worker, limit_s: float) -> bool:
        """Start a process and load the model in it; False where it was lost."""
        began = clock()
        answer = self.call(worker, "ready", limit_s)
        if answer.status == "done":
            self.start_s, self.yours_s = clock() - began, answer.value
        return answer.status == "done"

    def attempt(self, plan: Plan, limit_s: float) -> dict[str, Any]:
        if not self.trial.alive:  # after a step that cost it
            self.start(self.trial, limit_s)
        answer = self.call(self.trial, "attempt", limit_s, plan=list(plan), folder=self.folder)
        if answer.status == "done":
            return answer.value
        return {"applies": False, "why": _STOPPED if answer.status == "timeout" else answer.reason}

    def race(self, plans: Sequence[Plan], sampling_s: float, seed: int) -> dict[str, np.ndarray]:
        """ms of each round in a fresh process, by the names of the plans that ran."""
        with Worker() as fresh:
            if not self.start(fresh, self.left_s + RESERVE_S):
                return {}
            options = {"plans": [list(plan) for plan in plans], "budget_s": sampling_s, "seed": seed}
            answer = self.call(fresh, "race", self.left_s + RESERVE_S, **options)
        if answer.status != "done":
            self.tell(f"a process was lost: {answer.reason}")
            return {}
        return {name: np.array(times) for name, times in answer.value.items()}


@dataclass
class _Search:
    """What is known so far, and the way to the plan."""

    bench: _Bench
    processes: int
    names: Sequence[str]  # of the steps to try
    found: dict[str, dict[str, Any]] = field(default_factory=dict)  # by step
    proofs: dict[Plan, dict[str, Any]] = field(default_factory=dict)
    raced: list[dict[str, np.ndarray]] = field(default_factory=list)  # times, one a process
    wanted_s: float = 0.0  # by what the budget had no room for

    def run(self) -> Optimized:
        facts = self.bench.begin(self.processes)
        self.try_each()
        alone = self.promising()
        plans = self.together(alone)
        forms = self.afforded([*((name,) for name in alone), *plans])
        self.race(forms)
        plan = self.chosen([form for form in forms if all(STEPS[name].exact for name in form)])
        return self.report(facts, plan)

    def try_each(self) -> None:
        for number, name in enumerate(self.names, start=1):
            needed_s = self.bench.start_s * STEPS[name].starts
            calls_s = 3 * _CALLS * self.bench.yours_s
            room_s = self.bench.left_s - self.measuring_s(self.promising())
            if needed_s * (1 + self.processes / 2) + calls_s > room_s:  # made anew in each process of the race, in less
                self.without_room(name, _SKIPPED, needed_s + calls_s)
                continue
            self.bench.tell(f"[{number}/{len(self.names)}] {name} ({max(0, self.bench.left_s):.0f} s left)")
            self.found[name] = self.bench.attempt((name,), room_s)
            self.proofs[(name,)] = self.found[name].get("proof", {})
            if self.found[name]["why"] == _STOPPED:
                self.without_room(name, _STOPPED, max(2 * room_s, needed_s))

    def without_room(self, name: str, why: str, needed_s: float) -> None:
        self.found[name] = {**self.found.get(name, {}), "applies": False, "why": why}
        self.wanted_s += needed_s * (1 + self.processes / 2)

    def measuring_s(self, alone: Sequence[str]) -> float:
        """What is to come for steps that go on: a race of each and of about as many plans of several, proven before."""
        forms = [(name,) for name in alone] * (1 if len(alone) < 2 else 2)
        return self.race_s(forms) + sum(2 * self.once_s(form) + 1.0 for form in forms[len(alone) :])

    def promising(self) -> list[str]:
        """The steps that are right and not seen to be slower in the process that tried them, the fastest first."""
        right = (n for n, found in self.found.items() if found["applies"] and found.get("right", True))
        usable = [name for name in right if not self.found[name].get("slower")]
        gains = {name: self.ratio(self.found[name]["times"], name) for name in usable if "times" in self.found[name]}
        open_yet = [name for name, gain in gains.items() if (gain.high or gain.value * 1.1) > 1]
        return sorted(open_yet, key=lambda name: gains[name].value, reverse=True)[:MOST_RACED]

    def together(self, alone: Sequence[str]) -> list[Plan]:
        """Plans of several steps: the most that go together around each engine or none, each less one, all proven; the
        first of them with each step that changes results."""
        exact = [name for name in alone if STEPS[name].exact]
        wanted: dict[Plan, None] = {}
        for core in [None, *(name for name in exact if STEPS[name].kind == "engine")]:
            plan: list[str] = [core] if core else []
            for name in exact:
                allowed = STEPS[name].kind != "engine" and all(steps.go_together(name, other) for other in plan)
                plan += [name] * (name not in plan and allowed)
            sizes = {len(plan), len(plan) - 1} - {-1, 0, 1}
            parts = (part for size in sorted(sizes, reverse=True) for part in itertools.combinations(plan, size))
            wanted |= dict.fromkeys(map(steps.ordered, parts))
        first = next(iter(wanted), (exact[0],) if exact else ())
        inexact = [name for name in alone if name not in exact and first]
        wanted |= {steps.ordered((*first, name)): None for name in inexact}
        return [plan for plan in wanted if self.proven(plan)]

    def proven(self, plan: Plan) -> bool:
        room_s = self.bench.left_s - self.race_s([plan])
        if self.once_s(plan) > room_s:
            return False
        self.bench.tell(f"proving {name_of(plan)} ({self.bench.left_s:.0f} s left)")
        found = self.bench.attempt(plan, room_s)
        self.proofs[plan] = found.get("proof", {})
        return found["applies"] and found.get("right", True)

    def once_s(self, plan: Plan) -> float:
        return sum(self.found[name].get("once_s", 0.0) for name in plan)

    def form_s(self, plan: Plan) -> float:
        """What a form takes in a process, before it is sampled for longer than it must."""
        return self.once_s(plan) + _CALLS * min(self.found[name].get("call_s", 0.0) for name in plan)

    def race_s(self, plans: Sequence[Plan]) -> float:
        """What the shortest race of some plans takes in all processes."""
        one = self.bench.start_s + 2 * _CALLS * self.bench.yours_s + sum(map(self.form_s, plans)) + LEAST_S
        return self.processes * one

    def afforded(self, wanted: Sequence[Plan]) -> list[Plan]:
        """Those that there is time for in each process, by their order; the first in any case."""
        forms: list[Plan] = []
        for plan in wanted:
            if forms and self.race_s([*forms, plan]) > self.bench.left_s + RESERVE_S / 2:
                if len(plan) == 1:
                    self.without_room(plan[0], _NOT_RACED, self.form_s(plan))
            else:
                forms.append(plan)
        return forms

    def race(self, plans: Sequence[Plan]) -> None:
        least_s = self.race_s(plans) / self.processes
        for number in range(self.processes if plans else 0):
            left_s = self.bench.left_s
            if number > 1 and least_s > left_s + RESERVE_S:
                self.bench.tell(f"no time for process {number + 1} of {self.processes}: the budget is spent")
                break
            turn = f"process {number + 1} of {self.processes} ({max(0, left_s):.0f} s left)"
            self.bench.tell(f"race of {len(plans) + 1} forms, {turn}")
            sampling_s = LEAST_S + max(0.0, 0.8 * (left_s / (self.processes - number) - least_s))
            found = self.bench.race(plans, sampling_s, seed=number + 1)
            if YOURS in found:
                self.raced.append(found)

    def gain(self, plan: str, over: str = YOURS) -> Estimate | None:
        """The ratio of times over all processes; None where fewer than two have it."""
        runs = [self.ratio(times, plan, over) for times in self.raced if plan in times and over in times]
        return estimates.pooled(runs, log=True) if len(runs) > 1 else None

    @staticmethod
    def ratio(times: Mapping[str, Sequence[float]], plan: str, over: str = YOURS) -> Estimate:
        """Of one process; what its A/A control shows widens the interval."""
        yours, control, base = (np.asarray(times[name]) for name in (YOURS, CONTROL, over))
        return estimates.ratio(base, times[plan], base * control / yours)

    def chosen(self, plans: Sequence[Plan]) -> Plan:
        """The fastest plan that is faster than yours and than each part of it that was raced; else none."""
        gains = {plan: gain for plan in plans if _above_1(gain := self.gain(name_of(plan)))}

        def needs_all(plan: Plan) -> bool:
            return all(_above_1(self.gain(name_of(plan), name_of(p))) for p in plans if set(p) < set(plan))

        fastest = sorted(gains, key=lambda plan: gains[plan].value, reverse=True)
        return next(filter(needs_all, fastest), ())

    def report(self, facts: dict[str, Any], plan: Plan) -> Optimized:
        proof = self.proofs.get(plan, {})
        name = name_of(plan)
        times = {YOURS: [t[YOURS] for t in self.raced], "fast": [t[name] for t in self.raced if name in t]}
        ms = {key: float(np.median(np.concatenate(found))) for key, found in times.items() if found}
        wanted_s = self.bench.budget_s + 1.2 * (self.wanted_s - max(0.0, self.bench.left_s))
        return Optimized(
            **self.bench.of,
            plan=(*plan, GUARD) if proof.get("wrong") else plan,
            gain=self.gain(name) if plan else None,
            ms=ms,
            tried=tuple(self.outcome(step, plan) for step in self.found),
            facts=facts,
            proof=proof,
            processes=len(self.raced),
            seconds=clock() - self.bench.began,
            wanted_s=math.ceil(max(wanted_s, self.bench.budget_s) / 10 + 1) * 10 if self.wanted_s else None,
        )

    def outcome(self, step: str, plan: Plan) -> Tried:
        found, kept = self.found[step], step in plan
        gain, processes = self.gain(step), sum(step in times for times in self.raced)
        if gain is None and "times" in found:
            gain, processes = self.ratio(found["times"], step), 1
        less, more = name_of([name for name in plan if name != step]), name_of(steps.ordered((*plan, step)))
        share = found.get("share")
        return Tried(
            step,
            kept,
            self.reason(step, gain, processes, plan),
            gain,
            processes if gain else 0,
            found.get("once_s"),
            None if share is None or share > 0.999 else 1 / (1 - share),
            found.get("error"),
            bool(found.get("proof", {}).get("wrong")) and found.get("right", False),
            self.gain(name_of(plan), less) if kept and less else None,
            self.gain(more, name_of(plan)) if plan and not STEPS[step].exact else None,
        )

    def reason(self, step: str, gain: Estimate | None, processes: int, plan: Plan) -> str:
        found = self.found[step]
        if found["applies"] and not found.get("right", True):
            broken = {**found["proof"]["wrong"], **found["proof"]["refused"]}
            graph = next((name for name in broken if name == YOUR_GRAPH), next(iter(broken)))
            return f"not equal: {broken[graph]} on {graph}"
        if not found["applies"] or step in plan:
            return found["why"]
        if not STEPS[step].exact:
            return "changes results: yours to decide"
        if gain is None or processes < 2:
            return _SLOWER if gain is None or gain.value < 1 else "raced in one process alone"
        if not _above_1(gain):
            return "no gain" if gain.high < _SOME else OPEN
        return "no gain beside the others"


def _above_1(gain: Estimate | None) -> bool:
    return gain is not None and gain.low is not None and gain.low > 1
