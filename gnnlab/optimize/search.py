"""What makes a user's model faster, each step proven and raced beside what was there before it: `gnnlab optimize`.

    report = optimize("my_models:make", "digits", budget_s=90)
    report.plan, report.gain            # ("fast layers", "inference mode"), an `Estimate` of the ratio of times

A greedy search: the fast layers come first, then every other step that applies. A step is added to the plan so far, in
place of those that it does not go with. The new plan is proven equal, and raced in turns with the old one and with the
user's model in several processes. It is kept if it is faster than the old plan. What is left of the budget is divided
evenly among the steps that are left.

The user's code runs in processes that may hang or die: `examine`, `attempt`, `race` and `turn` are called there. They
allocate memory as the user's own process does. The step that changes this acts on a whole process: it is raced last,
between pairs of processes, which take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnlab import machine, user_code
from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.measure import estimates, timing
from gnnlab.measure.conditions import Conditions, products
from gnnlab.measure.estimates import CONTROL, Estimate
from gnnlab.measure.race import call_of, comparable
from gnnlab.measure.tensors import device_name, device_of
from gnnlab.optimize import equivalence as proof
from gnnlab.optimize import steps
from gnnlab.optimize.equivalence import UserModel
from gnnlab.optimize.steps import ALLOCATOR, STEPS
from gnnlab.profile.memory import profile_memory_usage
from gnnlab.worker import Answer, Worker
from gnnswap.equivalence import copied
from gnnswap.errors import OneLineError, one_line
from gnnswap.inputs import call, tensors_in

YOURS = "yours"  # the user's model, as a form
OPEN = "no gain shown: the interval reaches below 1"
STOPPED = "stopped: budget"
FIRST_LIMIT_S = 60  # for the first look and for the first step, if the budget is smaller
_FIRST_SHARE_S = 20  # for the first step, of a budget that has as much
_LOAD_S = 10.0  # of a budget: in less, only the first process comes to race, and the others do not load the model
_GRACE_S = 5.0  # for a call that begins when its time is nearly over
_LEAST_SHARE_S = 2.0  # for a step
_LEAST_S, _MOST_S = 0.3, 2.0  # of sampling in a race
_TURNS, _TURN_S = (6, 24), 0.1  # of a pair of processes, at least and at most; how long a form takes in one
_SOME = 1.1  # a gain that would be seen as one
clock = time.monotonic

Plan = tuple[str, ...]
Of = tuple[str, str, bool, str | None]  # the user's model, graph, whether it is to be trained, and the device
Times = dict[str, list[float]]  # ms of each round, by form


@dataclass(frozen=True)
class Tried:
    """A step that was tried. `gain`: the time of the plan so far over that with this step in it. `processes`: how many
    raced it. `why`: what it applies to, or why it was not kept. `error`: of the outputs, if it changes results."""

    name: str
    why: str
    kept: bool = False
    gain: Estimate | None = None
    processes: int = 0
    error: float | None = None


@dataclass(frozen=True)
class Optimized:
    """`gain`: the time of the user's model over that of the fast one, over so many `processes`, of which `clear` show
    it each by itself. `device`: the one that was named, None where the factory decides. `ms` and `memory_mib` (what a
    call holds beside its inputs) of "yours" and "fast". `late`: steps for which there was no time. `inapplicable`:
    steps, with why not. `facts`: graph and machine. `proof`: the graphs on which it held, and those skipped.
    `seconds`: how long all of it took."""

    spec: str
    graph: str
    train: bool
    device: str | None
    plan: Plan
    gain: Estimate | None
    processes: int
    clear: int
    ms: dict[str, float]
    memory_mib: dict[str, float]
    tried: tuple[Tried, ...]
    late: tuple[str, ...]
    inapplicable: Mapping[str, str]
    facts: Mapping[str, Any]
    proof: Mapping[str, Any]
    seconds: float


def optimize(
    spec: str,
    graph: str = "digits",
    *,
    train: bool = False,
    device: str | None = None,
    budget_s: float = 90.0,
    processes: int = 3,
    only: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    improved: Callable[[Optimized], None] = lambda report: None,
) -> Optimized:
    """Try every step, or those named in `only`, on the model of `module:factory` on a graph.

    `device`: where both are moved ("cpu", "cuda"); unless it is named, they stay where the factory made them.
    `tell` gets lines of progress, `improved` the report whenever a plan was found that is faster than the one before.
    The first look and the first step take place whatever the budget.

    Raises:
        GnnlabError: in one line, whatever is wrong with the model or the graph.
    """
    whole_numbers(1, processes=processes)
    if not budget_s > 0:
        raise GnnlabError(f"a budget of {budget_s:g} s; some seconds are needed")
    user_code.require(spec)  # before processes are started
    with ExitStack() as held:
        pairs = [[held.enter_context(Worker(keep_memory=False)) for _ in range(processes)] for _ in range(2)]
        search = _Search((spec, graph, train, device), *pairs, clock(), budget_s, tell)
        names = [name for name in steps.tried(train) if only is None or name in only]
        return search.run(names, improved)


def name_of(plan: Sequence[str]) -> str:
    """A plan in words: "fast layers + inference mode"; the user's model for none."""
    return " + ".join(plan) or YOURS


class _Failed(Exception):
    """A process gave no answer; says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(STOPPED if answer.status == "timeout" else answer.reason)
        self.answer = answer


class _Search:
    """The plan so far, and what is known of the steps. `examine` sets the facts."""

    def __init__(
        self,
        of: Of,
        workers: Sequence[Worker],
        others: Sequence[Worker],  # the processes in which the allocator is changed
        began: float,
        budget_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self.of, self.workers, self.others, self.tell = of, workers, others, tell
        self.began, self.ends = began, began + budget_s
        self.step_ends = max(self.ends, began + FIRST_LIMIT_S)
        self.start_s = 0.0  # what it took to load the model and to prove the first step
        self.plan: Plan = ()
        self.tried: list[Tried] = []
        self.late: list[str] = []
        self.of_plan: dict[str, Any] = {}  # what `attempt` gave of the plan, and "raced": its race in each process

    def call(self, worker: Worker, target: str, **arguments: Any) -> Any:
        limit_s = max(self.step_ends - clock(), _GRACE_S)
        answer = worker.call(f"{__name__}:{target}", {"of": self.of, **arguments}, timeout_s=limit_s)
        if answer.status != "done":
            raise _Failed(answer)
        return answer.value

    def run(self, names: Sequence[str], improved: Callable[[Optimized], None]) -> Optimized:
        self.examine(names)
        applicable = [name for name in names if name in self.applicable]
        for place, name in enumerate(applicable):
            left_s = self.ends - clock()
            share_s = left_s / (len(applicable) - place)
            if place and share_s < _LEAST_SHARE_S + (name == ALLOCATOR) * self.start_s:
                self.late.append(name)
                continue
            self.step_ends = clock() + (share_s if place else max(left_s, FIRST_LIMIT_S))
            share_s = share_s if place else max(share_s, min(left_s, _FIRST_SHARE_S))
            self.sampling_s = min(max(share_s / (2 * len(self.workers)), _LEAST_S), _MOST_S)
            self.tell(f"[{place + 1}/{len(applicable)}] {name} ({max(0, left_s):.0f} s left)")
            before = self.plan
            tried = self.try_step(name)  # which may write to those before
            self.tried.append(tried)
            if self.plan != before:
                improved(self.report())
        return self.report()

    def examine(self, names: Sequence[str]) -> None:
        """Look at the model in the first process, while the others load it if they will have time to race."""
        spec, graph, *_ = self.of
        self.tell(f"{spec} on {graph}: looking at it")
        try:
            with self.loading(self.workers[1:] if self.ends - clock() > _LOAD_S else ()):
                seen = self.call(self.workers[0], "examine", names=list(names))
        except _Failed as failed:
            if failed.answer.status == "timeout":
                raise GnnlabError(
                    f"{spec}: looking at it on {graph} took more than {self.step_ends - self.began:.0f} s; "
                    "give a larger budget, or a smaller graph if it does not hang"
                ) from None
            raise GnnlabError(f"{spec}: {failed}" if failed.answer.lost else str(failed)) from None
        self.facts, self.held_mib = seen["facts"] | {"busy": machine.busy(machine.at_work())}, seen["held_mib"]
        self.applicable, self.inapplicable = seen["applicable"], seen["inapplicable"]

    @contextmanager
    def loading(self, workers: Sequence[Worker]) -> Iterator[None]:
        """Processes load the user's model, all at once; they have when this ends."""
        for worker in workers:
            worker.submit(f"{__name__}:load", {"of": self.of})
        yield
        for worker in workers:
            with suppress(_Failed):  # which it will say again where it is needed
                self.call(worker, "load")

    def try_step(self, name: str) -> Tried:
        """Prove and race the plan with this step in it; it is the plan from now on if it is faster."""
        old, raced = self.plan, []
        new = steps.ordered([name, *(other for other in old if steps.go_together(name, other))])
        try:
            if name == ALLOCATOR:
                with self.loading(self.others):
                    pass
            attempt = self.call((self.others if name == ALLOCATOR else self.workers)[0], "attempt", plan=new)
        except _Failed as failed:
            return Tried(name, str(failed))
        self.start_s = self.start_s or clock() - self.began
        if attempt["why"] is not None:
            return Tried(name, attempt["why"])
        why = "it fails in the race"
        for process in range(len(self.workers)):
            if process and clock() > min(self.step_ends, self.ends):
                self.tell(f"no time for process {process + 1} of {len(self.workers)}")
                break
            try:
                times = self.race(process, old, new)
            except _Failed as failed:
                why = str(failed)
                self.tell(f"process {process + 1}: {why}")
                continue
            raced += [times] if {name_of(old), name_of(new)} <= times.keys() else []
            gain = _pooled(_ratios(raced, old, new))
            if gain and gain.high is not None and gain.high < 1:
                break
        runs = _ratios(raced, old, new)
        tried = Tried(name, "", False, _pooled(runs), len(runs), attempt.get("error"))
        if not (STEPS[name].exact and _shows_gain(runs)):
            return replace(tried, why=_reason(name, tried.gain, why))
        self.plan, self.of_plan = new, attempt | {"raced": raced}
        left = {*old} - {*new}
        self.tried = [
            replace(t, kept=False, why=f"{name} takes its place") if t.name in left else t for t in self.tried
        ]
        return replace(tried, why=self.applicable[name], kept=True)

    def race(self, process: int, old: Plan, new: Plan) -> Times:
        """A race in one process; of the allocator, which is a process's own, between two: a turn of both is a round."""
        if ALLOCATOR not in new:
            plans = [plan for plan in (old, new) if plan]
            return self.call(self.workers[process], "race", plans=plans, budget_s=self.sampling_s, seed=process)
        forms = {YOURS: (), CONTROL: (), name_of(old): old}
        rounds: list[list[float]] = []
        ends = min(self.step_ends, self.ends)
        while len(rounds) < _TURNS[0] or (len(rounds) < _TURNS[1] and clock() < ends):
            turn = self.call(self.workers[process], "turn", plans=list(forms.values()))
            rounds.append(turn + self.call(self.others[process], "turn", plans=[new]))
        return dict(zip([*forms, name_of(new)], map(list, zip(*rounds, strict=True)), strict=True))

    def report(self) -> Optimized:
        spec, graph, train, device = self.of
        raced, fast = self.of_plan.get("raced", []), name_of(self.plan)
        gains = _ratios(raced, (), self.plan)
        medians = [float(np.median([ms for times in raced for ms in times[name]])) for name in (YOURS, fast) if raced]
        return Optimized(
            spec=spec,
            graph=graph,
            train=train,
            device=device,
            plan=self.plan,
            gain=_pooled(gains),
            processes=len(gains),
            clear=sum(map(_above_1, gains)),
            ms=dict(zip(("yours", "fast"), medians, strict=False)),
            memory_mib={"yours": self.held_mib, "fast": self.of_plan.get("held_mib", self.held_mib)},
            tried=tuple(self.tried),
            late=tuple(self.late),
            inapplicable=self.inapplicable,
            facts=self.facts,
            proof=self.of_plan.get("proof", {}),
            seconds=clock() - self.began,
        )


def _ratios(raced: Sequence[Times], old: Plan, new: Plan) -> list[Estimate]:
    """The time of one plan over that of another in each process; what the A/A control of a race shows widens the
    interval."""
    arrays = [{name: np.array(ms) for name, ms in times.items()} for times in raced]
    return [
        estimates.ratio(ms[name_of(old)], ms[name_of(new)], ms[name_of(old)] * ms[CONTROL] / ms[YOURS]) for ms in arrays
    ]


def _pooled(runs: Sequence[Estimate]) -> Estimate | None:
    return estimates.pooled(runs, log=True) if runs else None


def _above_1(ratio: Estimate) -> bool:
    return ratio.low is not None and ratio.low > 1


def _shows_gain(runs: Sequence[Estimate]) -> bool:
    """By all processes together, or by one of them where no other says the contrary."""
    return bool(runs) and (_above_1(_pooled(runs)) or (any(map(_above_1, runs)) and all(run.value > 1 for run in runs)))


def _reason(name: str, gain: Estimate | None, lost: str) -> str:
    """Why a step is not kept."""
    if gain is None:
        return lost
    if not STEPS[name].exact:
        return "changes results: yours to decide"
    if gain.high is not None and gain.high < _SOME:
        return "slower" if gain.high < 1 else "no gain"
    return OPEN


# ---- in the processes -----------------------------------------------------------------------------------------------


def load(of: Of) -> None:
    """Load the user's model; what is wrong with it is `examine`'s to say."""
    with suppress(OneLineError):
        _user(*of)


def examine(of: Of, names: Sequence[str]) -> dict[str, Any]:
    """Check the user's model; facts of it and of the machine, and which of the steps `names` apply. Raises
    `GnnlabError`."""
    user = _user(*of)
    proof.check(user)
    with user_code.guarded(f"{user.spec} makes a model that cannot be copied:"):
        looks = {name: steps.look(name, copied(user.model), user.batch) for name in names}
    facts = {
        "nodes": user.data.num_nodes,
        "edges": user.data.num_edges,
        "threads": torch.get_num_threads(),
        "versions": machine.versions(),
        "processor": machine.processor(),
        "cores": machine.cores(),
    }
    if (where := _where(*of)).type != "cpu":
        facts |= {"device": device_name(where), "float32_products": products()}
    return {
        "facts": facts,
        "applicable": {name: why for name, (applies, why) in looks.items() if applies},
        "inapplicable": {name: why for name, (applies, why) in looks.items() if not applies},
        "held_mib": _held_mib(user.model, user),
    }


def attempt(of: Of, plan: Sequence[str]) -> dict[str, Any]:
    """Make the form of a plan and prove it. `why`: why it cannot be raced, or None. `error`: of the outputs, relative
    to their largest magnitude, where the plan changes results."""
    user, cases = _user(*of), _reference(*of)
    try:
        form = _form(*of, tuple(plan))
        _step(form, user)  # not compared: a first call
    except Exception as error:  # whatever a step or a compiler raises
        return {"why": one_line(error)}
    attempted = {"why": None, "held_mib": _held_mib(form, user)}
    if not all(STEPS[name].exact for name in plan):
        outputs = ([t.float() for t in tensors_in(_step(model, user))] for model in (form, user.model))
        return attempted | {"error": float(comparable(*outputs, "the fast model"))}
    proven = proof.compare(form, user, cases, proof.FEW if any(STEPS[name].compiles for name in plan) else None)
    if not proven.equal:
        on, what = next(iter(proven.wrong.items()))
        attempted["why"] = f"not equal: {what} on {on}"
    return attempted | {"proof": asdict(proven)}


def race(of: Of, plans: Sequence[Sequence[str]], budget_s: float, seed: int) -> Times:
    """Times of the user's model, of itself again (A/A) and of each plan that runs here."""
    forms = {YOURS: _timed(*of, ())}
    for plan in plans:
        with suppress(Exception):  # it was proven in another process, and may fail here
            forms[name_of(plan)] = _timed(*of, tuple(plan))
    raced = timing.race(forms, control=True, budget_s=budget_s, seed=seed, device=_where(*of))
    return {name: list(each.samples_ms) for name, each in raced.items()}


def turn(of: Of, plans: Sequence[Sequence[str]]) -> list[float]:
    """ms of each plan: the median of some calls, after one that does not count."""
    medians = []
    for run in [_timed(*of, tuple(plan)) for plan in plans]:
        (first_ms,) = timing.sample(run, runs=1, device=_where(*of))
        runs = min(max(int(1e3 * _TURN_S / first_ms), 1), 100)
        medians.append(float(np.median(timing.sample(run, runs=runs, device=_where(*of)))))
    return medians


def _where(*of: Any) -> torch.device:
    """The device for which the clock waits."""
    user = _user(*of)
    return device_of(user.model, user.batch)


@cache
def _user(*of: Any) -> UserModel:
    return proof.load(*of)


@cache
def _reference(*of: Any) -> dict[str, proof.Case]:
    return proof.reference(_user(*of))


@cache
def _form(*of_plan: Any) -> nn.Module:
    *of, plan = of_plan
    user = _user(*of)
    if any(STEPS[name].compiles for name in plan):
        import torch._dynamo  # beyond its limit of versions torch.compile would go on without compiling, in silence

        torch._dynamo.config.recompile_limit = 64  # several forms share one code
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    return steps.apply(plan, copied(user.model), user.batch)


@cache
def _timed(*of_plan: Any) -> Callable[[], Any]:
    """What calls the form of a plan, as it is timed; it was called once."""
    *of, plan = of_plan
    user = _user(*of)
    form = _form(*of, plan) if plan else user.model
    _step(form, user)
    run, now = call_of(form, user.batch, "training" if user.train else "plain"), Conditions.now()

    def under_these_conditions() -> Any:  # in training a form may leave its own threads for the backward pass
        with now.applied():
            return run()

    return under_these_conditions if user.train else run


def _step(model: nn.Module, user: UserModel) -> Any:
    """A forward pass, in training with the backward pass; threads that a form sets are not left to the next."""
    with Conditions.now().applied():
        output = call(model, user.batch)
        if user.train:
            proof.gradients(model, list(tensors_in(output)))
    return output


def _held_mib(model: nn.Module, user: UserModel) -> float:
    """The most memory that a call holds beside what there was, in MiB."""
    return profile_memory_usage(_step, model, user).rise_mb
