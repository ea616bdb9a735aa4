"""One variant against another in fresh processes: how many times as fast, and how much memory at its peak.

    slow, fast, graph = Made("my_claims:slow"), Made("my_claims:fast"), Made("my_claims:graph", {"nodes": 1000})
    result = versus(slow, fast, graph, processes=5, seconds=2.0)
    result.speed, result.memory

Both variants are made and compared in each process, then timed in turns. The interval covers differences between
processes (placement of arrays, choice of core) only if there are several.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gnnlab.child import Worker
from gnnlab.errors import GnnlabError, ParityError
from gnnswap.cost import peak_memory

from . import estimates, timing
from .estimates import CONTROL, LEAST_SAMPLES, Estimate
from .race import RTOL_FLOAT32, call_of, race_variants
from .tensors import device_of

LIMIT_S = 600.0  # of one process beside its sampling: compiling is slow
START_S = 4.0  # what it takes to load torch, PyG and a model
CALLS = 30  # of a slow variant in a process, at least: compared, warm, and in the fewest rounds, twice in each
TURN_S = 0.1  # of a variant, where the two are in processes of their own
PEAK_CALLS = 3  # the first one, which may prepare something, and later ones beside what it kept
TOO_SMALL_MIB = 8.0
MIB = 2**20
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}  # of the GNU C library


@dataclass(frozen=True)
class Made:
    """What the function `target`, as module:function, gives in a fresh process, for `arguments` that JSON can hold."""

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """The user's code runs as in a script, with gradients, whatever its result is called under."""
        _, _, name = self.target.partition(":")
        with torch.inference_mode(False):
            return getattr(self._module, name)(**self.arguments)

    @property
    def _module(self) -> ModuleType:
        return importlib.import_module(self.target.partition(":")[0])

    def forget(self) -> None:
        """Clear what functions of its module keep by `functools.cache`, so that it is made again."""
        for each in vars(self._module).values():
            getattr(each, "cache_clear", int)()


@dataclass(frozen=True)
class Peak:
    """MiB of a variant at its peak beside model and inputs, over its first calls, with what it keeps between them.

    `torch_mib` is what torch's allocator counts, `process_mib` how far the memory of the process rose, None where the
    system does not tell. `agrees`: are both the same but for noise? None on CUDA, where the allocator sees all.
    `first_ms`, `later_ms`: how long the first of these calls took, and the last, while memory was being watched.
    """

    torch_mib: float
    process_mib: float | None
    agrees: bool | None
    device: str
    first_ms: float
    later_ms: float

    def __str__(self) -> str:
        process = "" if self.process_mib is None else f", the process {self.process_mib:.3g} MiB"
        return f"torch's allocator {self.torch_mib:.3g} MiB{process}"


@dataclass(frozen=True)
class Memory:
    """The peaks of both variants. `ratio`: before over after by torch's count, or None, and then `why` says why not."""

    before: Peak
    after: Peak

    @property
    def why(self) -> str:
        for name, peak in (("before", self.before), ("after", self.after)):
            if peak.device != "cpu":
                continue
            if peak.process_mib is None:
                return "this system does not tell the peak memory of a process"
            if not peak.agrees:
                return f"{name}: {peak}: not judged, as the two differ: memory outside of torch, or on other threads"
            if peak.torch_mib < TOO_SMALL_MIB:
                return f"{name}: {peak}: not judged, as below {TOO_SMALL_MIB:g} MiB a process's memory is noise"
        return "after holds nothing beside its inputs" if self.after.torch_mib <= 0 else ""

    @property
    def ratio(self) -> Estimate | None:
        if self.why:
            return None
        value = self.before.torch_mib / self.after.torch_mib
        return Estimate(value, value, value, 1)


@dataclass(frozen=True)
class Versus:
    """`speed`: the time of before over that of after; `processes`: the same in each; `before_ms`, `after_ms`: times of
    a call. `error`: of after's results, relative. `conditions`: threads of torch and how exact its products are."""

    speed: Estimate
    processes: tuple[Estimate, ...]
    before_ms: Estimate
    after_ms: Estimate
    error: float
    conditions: str
    device: str
    memory: Memory | None = None

    @property
    def detectable(self) -> float | None:
        """The smallest effect, as a ratio above 1, that four of five such measurements would tell from none: the
        half-width is 1.96 standard errors, and a power of 80 % needs 0.84 more."""
        if self.speed.low is None:
            return None
        return float((self.speed.high / self.speed.low) ** (0.5 * (1.96 + 0.84) / 1.96))


def cost_s(
    processes: int, seconds: float, *, memory: bool = False, call_s: float = 0.0, start_s: float = START_S
) -> float:
    """About how long `versus` takes, in s; `call_s`: of a call of before, where it is known."""
    return processes * (start_s + max(1.3 * seconds, CALLS * call_s)) + 2 * memory * start_s


def require_processes(processes: int) -> None:
    """Raises `GnnlabError` where so many would make no interval."""
    if processes < 1 or processes == 2:
        raise GnnlabError(f"processes={processes}: give 1, whose interval is that within it, or 3 and more")


def versus(
    before: Made,
    after: Made,
    inputs: Made,
    *,
    processes: int = 5,
    seconds: float = 2.0,
    mode: str = "inference",
    tolerance: float = RTOL_FLOAT32,
    environment: Mapping[str, str] | None = None,
    memory: bool = False,
    limit_s: float = LIMIT_S,
    tell: Callable[[str], None] = lambda line: None,
    enough: Callable[[Estimate], bool] = lambda first: False,
) -> Versus:
    """Compare and time two variants in fresh processes, `seconds` of sampling in each.

    `inputs` makes what both are called with; `mode` and `tolerance` are those of `race_variants`. One process has the
    interval within it, three and more have that over processes; two make none. With an `environment` (as of the memory
    allocator) `after` runs in a process of its own that has it, in turns with that of `before`. With `memory` each
    variant gets one more process, for its peak. `enough` may end it after the first process.

    Raises:
        GnnlabError: two processes or none, a variant fails, hangs or ends its process, or results differ.
    """
    require_processes(processes)
    sides = {"before": asdict(before), "after": asdict(after), "inputs": asdict(inputs), "mode": mode}
    ask = functools.partial(_ask, limit_s=limit_s + seconds)
    races = []
    for number in range(processes):
        started = time.monotonic()
        with ExitStack() as held:
            worker = held.enter_context(Worker(keep_memory=False))
            first_s = seconds if environment is None else 0.0
            raced = ask(worker, "race", **sides, tolerance=tolerance, seconds=first_s)
            if environment is not None:
                other = held.enter_context(Worker(keep_memory=False, **environment))
                raced |= _in_turns(functools.partial(ask, worker), functools.partial(ask, other), sides, seconds)
        races.append(raced | {"speed": _speed(raced)})
        took_s, left = time.monotonic() - started, processes - number - 1 + 2 * memory
        more = f"; about {left * took_s:.0f} s more" * bool(left and not number)
        tell(f"process {number + 1} of {processes}: {races[-1]['speed'].value:.3g}x in {took_s:.0f} s{more}")
        if not number and enough(races[0]["speed"]):
            break
    speeds = tuple(each["speed"] for each in races)
    peaks = None
    if memory:
        peaks = Memory(*(_peak(ask, sides, name, environment if name == "after" else None) for name in _SIDES))
    ms = (estimates.combine_runs([estimates.summary(each[name]) for each in races], log=True) for name in _SIDES)
    return Versus(
        estimates.combine_runs(speeds, log=True),
        speeds,
        *ms,
        error=max(each["error"] for each in races),
        conditions=races[0]["conditions"],
        device=races[0]["device"],
        memory=peaks,
    )


_SIDES = ("before", "after")


def _ask(worker: Worker, target: str, *, limit_s: float, **arguments: Any) -> Any:
    return worker.call(f"{__name__}:{target}", arguments, timeout_s=limit_s).get()


def _speed(raced: Mapping[str, Any]) -> Estimate:
    return estimates.ratio(raced["before"], raced["after"], raced[CONTROL])


def _in_turns(here: Callable[..., Any], there: Callable[..., Any], sides: dict[str, Any], seconds: float) -> Any:
    """Times in ms of both variants, each in its process, and of the first one again: a turn of both is a round."""
    rounds: list[Sequence[float]] = []
    ends = time.monotonic() + seconds
    while len(rounds) < LEAST_SAMPLES or time.monotonic() < ends:
        rounds.append(here("turn", **sides, names=["before", "before"]) + there("turn", **sides, names=["after"]))
    return dict(zip(("before", CONTROL, "after"), map(list, zip(*rounds, strict=True)), strict=True))


def _peak(ask: Callable[..., Any], sides: dict[str, Any], name: str, environment: Mapping[str, str] | None) -> Peak:
    with Worker(keep_memory=False, **(FREED_AT_ONCE | dict(environment or {}))) as worker:
        try:
            return Peak(**ask(worker, "peak", variant=sides[name], inputs=sides["inputs"], mode=sides["mode"]))
        except GnnlabError as error:
            raise GnnlabError(f"peak memory of {name}: {error}") from error


# ---- in the processes -----------------------------------------------------------------------------------------------


def race(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    inputs: Mapping[str, Any],
    mode: str,
    tolerance: float,
    seconds: float,
) -> dict[str, Any]:
    """Times in ms of each round of before, before again and after; after's error, conditions and device."""
    variants = {"before": Made(**before)(), "after": Made(**after)()}
    raced = race_variants(variants, Made(**inputs)(), mode=mode, tolerance=tolerance, budget_s=seconds)
    if raced["after"].times_ms is None:
        raise ParityError("after: " + raced["after"].reason.removeprefix("after: "))
    about = {"error": raced["after"].parity_error, "conditions": str(raced["after"].conditions)}
    times = {name: raced[name].times_ms.tolist() for name in (*_SIDES, CONTROL)}
    return {**times, **about, "device": raced["after"].device}


def turn(
    before: Mapping[str, Any], after: Mapping[str, Any], inputs: Mapping[str, Any], mode: str, names: Sequence[str]
) -> list[float]:
    """ms of each of the named variants: the median of some calls, after one that does not count."""
    variants, medians = {"before": before, "after": after}, []
    for name in names:
        call, where = _called(json.dumps([variants[name], inputs, mode]))
        with torch.inference_mode(mode == "inference"):
            (first_ms,) = timing.sample(call, runs=1, device=where)
            runs = min(max(int(1e3 * TURN_S / first_ms), 1), 100)
            medians.append(float(np.median(timing.sample(call, runs=runs, device=where))))
    return medians


@functools.cache
def _called(about: str) -> tuple[Callable[[], Any], torch.device]:
    variant, inputs, mode = json.loads(about)
    made, given = Made(**variant)(), Made(**inputs)()
    return call_of(made, given, mode), device_of(made, given)


def peak(variant: Mapping[str, Any], inputs: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The fields of a `Peak`. All is made twice: what loads code and starts threads is done by the first time."""
    about = json.dumps([variant, inputs, mode])
    with torch.inference_mode(mode == "inference"):
        for _ in range(PEAK_CALLS):
            _called(about)[0]()
        _called.cache_clear()
        Made(**variant).forget()
        gc.collect()
        call, where = _called(about)

        def calls() -> list[float]:
            return timing.sample(call, runs=PEAK_CALLS, device=where)

        held = peak_memory(calls, where)
    process = None if held.process is None else held.process / MIB
    peaks = {"torch_mib": held.peak / MIB, "process_mib": process, "agrees": held.agrees, "device": where.type}
    return peaks | {"first_ms": held.result[0], "later_ms": held.result[-1]}
