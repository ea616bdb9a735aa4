"""What makes a user's model faster, each step measured alone and together, and proven: `gnnlab optimize`.

    report = optimize("my_models:make", "digits", budget_s=90)
    report.plan, report.gain            # ("fast layers", "inference mode"), an `Estimate` of the ratio of times

The user's code runs in processes that may hang or die. One computes the reference of the proof and makes nothing fast.
One tries each step by itself: does it apply, is it right, a first race. What is not slower there is raced with what
goes together, in turns, in several further processes; a step stays if the interval over these lies above 1, and if the
plan is slower without it.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONTROL, Estimate
from gnnlab.rewrite import steps
from gnnlab.rewrite.bench import YOURS, name_of
from gnnlab.rewrite.proof import YOURS as YOUR_GRAPH
from gnnlab.rewrite.steps import GUARD, STEPS
from gnnlab.worker import Answer, Worker

MOST_RACED = 6  # steps that go on from the first race
LEAST_S = 0.3  # of sampling in a race
_FIRST_LIMIT_S = 60  # for a first look at the model, if the budget is smaller
_SHARES = {"first": 0.15, "race": 0.6}  # of what is left of the budget

Plan = tuple[str, ...]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """What became of one step. `gain`: the ratio of times over yours, alone; `processes` says over how many.

    `most`: the gain that it could have at most, by the share of the time in what it touches (Amdahl). `only_this_size`:
    it is wrong on graphs of other sizes. `error` is that of steps which are not exact. `why`: applies to what, or why
    not, or why not kept.
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
    without: Estimate | None = None  # of the plan without it over the plan

    @property
    def exact(self) -> bool:
        return STEPS[self.name].exact


@dataclass(frozen=True)
class Optimized:
    """`ms`: medians of a call of yours and of the fast model. `held`, `skipped`, `refused`: graphs of the proof."""

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

    @property
    def only_this_size(self) -> bool:
        return GUARD in self.plan


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
    Trying and measuring take about `budget_s` seconds; the start of processes and the first look at
    the model are not counted.

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
        bench = _Bench(spec, graph, train, folder, budget_s, tell, held)
        names = [name for name in steps.tried(train) if only is None or name in only]
        return _Search(bench, processes, names).run()


class _Bench:
    """The processes, and how much of the budget is left."""

    def __init__(
        self, spec: str, graph: str, train: bool, folder: str, budget_s: float, tell: Tell, held: ExitStack
    ) -> None:
        self.of = {"spec": spec, "graph": graph, "train": train}
        self.folder, self.budget_s, self.tell = folder, budget_s, tell
        self.left_s = budget_s
        self.limit_s = max(_FIRST_LIMIT_S, budget_s)  # of a first look
        self.trial = held.enter_context(Worker())

    def call(self, worker: Worker, target: str, limit_s: float, **arguments: Any) -> Answer:
        answer = worker.call(f"gnnlab.rewrite.bench:{target}", {**self.of, **arguments}, timeout_s=limit_s)
        if target in ("attempt", "race"):
            self.left_s -= limit_s if answer.status == "timeout" else answer.end_s - answer.start_s
        return answer

    def examine(self) -> dict[str, Any]:
        self.tell(f"{self.of['spec']} on {self.of['graph']}: looking at it")
        with Worker() as untouched:
            thorough = self.budget_s >= 30
            answer = self.call(untouched, "examine", self.limit_s, folder=self.folder, thorough=thorough)
        if answer.lost:
            raise GnnlabError(f"{self.of['spec']}: {answer.reason}")
        return answer.get()

    def attempt(self, plan: Plan, limit_s: float) -> dict[str, Any]:
        if not self.trial.alive:  # at first, and after a step that cost it
            self.call(self.trial, "ready", self.limit_s)
        answer = self.call(self.trial, "attempt", limit_s, plan=list(plan), folder=self.folder)
        if answer.status != "done":
            return {"applies": False, "why": answer.reason}
        return answer.value

    def race(self, worker: Worker, plans: Iterable[Plan], sampling_s: float, seed: int) -> dict[str, np.ndarray]:
        """ms of each round, by the names of the plans that ran."""
        limit_s = max(4 * self.budget_s, _FIRST_LIMIT_S)
        options = {"plans": [list(plan) for plan in plans], "budget_s": max(LEAST_S, sampling_s), "seed": seed}
        if not worker.alive:
            self.call(worker, "ready", self.limit_s)
        answer = self.call(worker, "race", limit_s, **options)
        if answer.status != "done":
            self.tell(f"a process was lost: {answer.reason}")
            return {}
        return {name: np.array(found["times_ms"]) for name, found in answer.value.items() if found["times_ms"]}


@dataclass
class _Search:
    """What is known so far, and the way to the plan."""

    bench: _Bench
    processes: int
    names: Sequence[str]  # of the steps to try
    found: dict[str, dict[str, Any]] = field(default_factory=dict)  # by step
    proofs: dict[Plan, dict[str, Any]] = field(default_factory=dict)
    first: dict[str, np.ndarray] = field(default_factory=dict)  # times in the process of the trial
    raced: list[dict[str, np.ndarray]] = field(default_factory=list)  # times, one a process

    def run(self) -> Optimized:
        start = time.monotonic()
        facts = self.bench.examine()
        self.try_each()
        alone = self.first_race()
        plans = self.together(alone)
        self.race([(name,) for name in alone] + plans)
        plan = self.chosen([(name,) for name in alone if STEPS[name].exact] + plans)
        return self.report(facts, plan, time.monotonic() - start)

    def try_each(self) -> None:
        for number, name in enumerate(self.names, start=1):
            if self.bench.left_s < 0.25 * self.bench.budget_s:
                self.found[name] = {"applies": False, "why": _spent(self.bench)}
                continue
            self.bench.tell(f"[{number}/{len(self.names)}] {name}")
            self.found[name] = self.bench.attempt((name,), max(20.0, 0.6 * self.bench.left_s))
            self.proofs[(name,)] = self.found[name].get("proof", {})

    def first_race(self) -> list[str]:
        """The steps that are right and not seen to be slower in the process that tried them, the fastest first."""
        usable = [name for name, found in self.found.items() if found["applies"] and found.get("right", True)]
        usable = [name for name in usable if self.affordable(name)]
        if usable:
            self.bench.tell(f"first race of {', '.join(usable)}")
            sampling_s = _SHARES["first"] * self.bench.left_s
            self.first = self.bench.race(self.bench.trial, [(name,) for name in usable], sampling_s, seed=0)
        gains = {name: self.ratio(self.first, name) for name in usable if name in self.first}
        open_yet = [name for name, gain in gains.items() if gain.high is None or gain.high > 1]
        return sorted(open_yet, key=lambda name: gains[name].value, reverse=True)[:MOST_RACED]

    def affordable(self, name: str) -> bool:
        """Is there time to make it in each process? What a compiler made once is made again in less."""
        needed = 0.5 * self.found[name]["once_s"] * self.processes
        if needed > max(self.bench.left_s, 0.2 * self.bench.budget_s):
            budget = f"a --budget of {self.bench.budget_s + 2 * needed:.0f} s has room for it"
            once = f"it takes {self.found[name]['once_s']:.0f} s to make in each process"
            self.found[name] |= {"applies": False, "why": f"{once}; {budget}"}
            return False
        return True

    def together(self, alone: Sequence[str]) -> list[Plan]:
        """Plans of several steps: the most that go together around each engine or none, each less one, all proven."""
        exact = [name for name in alone if STEPS[name].exact]
        wanted: dict[Plan, None] = {}
        for core in [None, *(name for name in exact if STEPS[name].kind == "engine")]:
            plan: list[str] = [core] if core else []
            for name in exact:
                allowed = STEPS[name].kind != "engine" and all(steps.go_together(name, other) for other in plan)
                plan += [name] * (name not in plan and allowed)
            sizes = {len(plan), len(plan) - 1} - {-1, 0, 1}
            parts = (part for size in sizes for part in itertools.combinations(plan, size))
            wanted |= dict.fromkeys(map(steps.ordered, parts))
        proven = []
        for plan in wanted:
            self.bench.tell(f"proving {name_of(plan)}")
            found = self.bench.attempt(plan, max(20.0, self.bench.left_s))
            if found["applies"] and found["right"]:
                self.proofs[plan] = found["proof"]
                proven.append(plan)
        return proven

    def race(self, plans: Sequence[Plan]) -> None:
        for number in range(self.processes if plans else 0):
            self.bench.tell(f"race of {len(plans) + 1} forms, process {number + 1} of {self.processes}")
            sampling_s = _SHARES["race"] * self.bench.left_s / (self.processes - number)
            with Worker() as fresh:
                found = self.bench.race(fresh, plans, sampling_s, seed=number + 1)
            if YOURS in found:
                self.raced.append(found)

    def gain(self, plan: str, over: str = YOURS) -> Estimate | None:
        """The ratio of times over all processes; None where fewer than two have it."""
        runs = [self.ratio(times, plan, over) for times in self.raced if plan in times and over in times]
        return estimates.pooled(runs, log=True) if len(runs) > 1 else None

    @staticmethod
    def ratio(times: dict[str, np.ndarray], plan: str, over: str = YOURS) -> Estimate:
        """Of one process; what its A/A control shows widens the interval."""
        return estimates.ratio(times[over], times[plan], times[over] * times[CONTROL] / times[YOURS])

    def chosen(self, plans: Sequence[Plan]) -> Plan:
        """The fastest plan that is faster than yours and than each part of it that was raced; else none."""
        gains = {plan: gain for plan in plans if _above_1(gain := self.gain(name_of(plan)))}

        def needs_all(plan: Plan) -> bool:
            return all(_above_1(self.gain(name_of(plan), name_of(p))) for p in plans if set(p) < set(plan))

        fastest = sorted(gains, key=lambda plan: gains[plan].value, reverse=True)
        return next(filter(needs_all, fastest), ())

    def report(self, facts: dict[str, Any], plan: Plan, seconds: float) -> Optimized:
        proof = self.proofs.get(plan, {})
        name = name_of(plan)
        times = {YOURS: [t[YOURS] for t in self.raced], "fast": [t[name] for t in self.raced if name in t]}
        ms = {key: float(np.median(np.concatenate(found))) for key, found in times.items() if found}
        tried = tuple(self.outcome(step, plan) for step in self.found)
        return Optimized(
            **self.bench.of,
            plan=(*plan, GUARD) if proof.get("wrong") else plan,
            gain=self.gain(name) if plan else None,
            ms=ms,
            tried=tried,
            facts=facts,
            proof=proof,
            processes=len(self.raced),
            seconds=seconds,
        )

    def outcome(self, step: str, plan: Plan) -> Tried:
        found, kept = self.found[step], step in plan
        gain, processes = self.gain(step), len(self.raced)
        if gain is None and step in self.first:
            gain, processes = self.ratio(self.first, step), 1
        less = name_of(tuple(name for name in plan if name != step))
        share = found.get("share")
        return Tried(
            step,
            kept,
            self.reason(step, gain, plan),
            gain,
            processes if gain else 0,
            found.get("once_s"),
            None if share is None or share > 0.999 else 1 / (1 - share),
            found.get("error"),
            bool(found.get("proof", {}).get("wrong")) and found.get("right", False),
            self.gain(name_of(plan), less) if kept and less else None,
        )

    def reason(self, step: str, gain: Estimate | None, plan: Plan) -> str:
        found = self.found[step]
        if found["applies"] and not found.get("right", True):
            broken = {**found["proof"]["wrong"], **found["proof"]["refused"]}
            graph = next((name for name in broken if name == YOUR_GRAPH), next(iter(broken)))
            return f"not equal: {broken[graph]} on {graph}"
        if not found["applies"] or step in plan:
            return found["why"]
        if not STEPS[step].exact:
            return "changes results: yours to decide"
        if gain is None or not _above_1(gain):
            return "does not pay"
        return "does not pay beside the others"


def _above_1(gain: Estimate | None) -> bool:
    return gain is not None and gain.low is not None and gain.low > 1


def _spent(bench: _Bench) -> str:
    return f"not tried: the budget of {bench.budget_s:.0f} s was spent; --budget gives it more"
