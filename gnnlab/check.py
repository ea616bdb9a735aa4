"""A claim of one's own in a file: a form before, a form after, their inputs, and what is claimed of them.

    before = GCNConv(64, 64).eval()             # any callable or module
    after = fast_form(before)
    inputs = {"x": x, "edge_index": edge_index} # by the names of arguments, a tuple, or a function that makes either
    claim = "1.5x, half the memory"

    checked = measure(Path("my_claim.py"))        # raced in processes of their own
    checked.speed, checked.memory                   # before over after, an `Estimate` each

The file may also set `mode` ("inference", or "training" for a forward and a backward pass) and `tolerance`, the largest
relative difference of the results that it allows.
"""

from __future__ import annotations

import math
import re
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn
from torch_geometric.data.data import BaseData

from gnnlab.errors import GnnlabError, ParityError, first_wrong
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL, Estimate
from gnnlab.measure.race import RTOL_FLOAT32, call_of, race_forms
from gnnlab.profile.memory import profile_memory_usage
from gnnlab.worker import Worker
from gnnlab.workloads import models
from gnnswap.errors import one_line, quoted
from gnnswap.inputs import bind

TIMEOUT_S = 600  # of one process: compiling is slow
SEED = 0  # of torch when the file runs, so that each process has the same weights
_NEEDED = ("before", "after", "inputs", "claim")


class ClaimFile(BaseModel):
    """What a file defines. `before` and `after` are called with `inputs`, a mapping or a tuple; `claim` is in words
    that `read_claim` understands."""

    before: Callable[..., Any]
    after: Callable[..., Any]
    inputs: Any
    claim: str
    mode: Literal["inference", "training"] = "inference"
    tolerance: float = Field(RTOL_FLOAT32, ge=0, lt=1)


@dataclass(frozen=True)
class CheckedClaim:
    """The measurement of one file in several processes.

    `claim` is what the file claims. `speed` is the time of `before` over that of `after`; `memory` the same of the
    bytes that a call held beside its inputs, None where the claim is not of memory. `processes` are the speeds in each;
    `conditions` are the threads of torch and how exact its products are.
    """

    claim: str
    speed: Estimate
    memory: Estimate | None
    processes: tuple[Estimate, ...]
    before_ms: Estimate
    after_ms: Estimate
    parity_error: float
    conditions: str

    @property
    def detectable(self) -> float | None:
        """The smallest effect, as a ratio above 1, that four of five such measurements would tell from none.

        The half-width is 1.96 standard errors; 0.84 more are needed for a power of 80 %.
        """
        if self.speed.low is None:
            return None
        return float((self.speed.high / self.speed.low) ** (0.5 * (1.96 + 0.84) / 1.96))


def require_file(path: Path) -> None:
    """Raises `GnnlabError` unless it is a Python file that is there."""
    if path.suffix != ".py" or not path.is_file():
        what = "its name does not end in .py" if path.is_file() else "there is no such file"
        raise GnnlabError(f"{path}: {what}; a Python file is needed that defines {', '.join(_NEEDED)}")


def read(path: Path, inputs_spec: str | None = None) -> ClaimFile:
    """Run the file, with its folder first on the module path, and take what it defines; the inputs from the function
    `module:function` where it is named.

    Raises:
        GnnlabError: there is no such file, it raises, or what it defines is not what a claim needs.
    """
    require_file(path)
    given = None if inputs_spec is None else models.given_inputs(inputs_spec, SEED)
    torch.manual_seed(SEED)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        defined = runpy.run_path(str(path))
        defined["inputs"] = inputs = defined.get("inputs") if given is None else given
        if callable(inputs) and not isinstance(inputs, BaseData):  # which can be called, too
            inputs = inputs()
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise GnnlabError(f"{path} fails: {one_line(error)}") from error
    finally:
        sys.path.pop(0)
    if lacking := [name for name in _NEEDED if defined.get(name) is None]:
        raise GnnlabError(f"{path} defines no {' and no '.join(lacking)}; a claim needs {', '.join(_NEEDED)}")
    if isinstance(defined["before"], nn.Module):
        inputs = bind(defined["before"], inputs, str(path))
    defined["inputs"] = inputs if isinstance(inputs, Mapping | tuple) else (inputs,)
    try:
        claim = ClaimFile.model_validate(defined)
    except ValidationError as error:
        name, wanted = first_wrong(error)
        raise GnnlabError(f"{path}: {name} is {quoted(defined[name])}: {wanted}") from error
    read_claim(claim.claim)
    return claim


def measure(
    path: Path,
    *,
    processes: int = 5,
    budget_s: float = 2.0,
    inputs: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> CheckedClaim:
    """Race the forms of a file in fresh processes, `budget_s` seconds of sampling in each; `tell` gets a line of each.
    `inputs`: a `module:function` that gives the inputs in place of the file.

    Raises:
        GnnlabError: `read` refuses the file, a form fails, hangs or ends its process, or results differ.
    """
    races = []
    for number in range(processes):
        with Worker() as worker:
            arguments = {"path": str(path), "budget_s": budget_s, "inputs": inputs}
            answer = worker.call(f"{__name__}:race_in_worker", arguments, timeout_s=TIMEOUT_S + budget_s)
        if answer.status != "done":
            raise GnnlabError(f"{path}: {answer.reason}" if answer.lost else answer.reason)
        races.append(answer.value)
        tell(f"process {number + 1} of {processes}: {_speed(races[-1]).value:.3g}x")
    speeds = tuple(map(_speed, races))
    return CheckedClaim(
        claim=races[0]["claim"],
        speed=estimates.pooled(speeds, log=True),
        memory=_memory(races) if races[0]["held_mib"] else None,
        processes=speeds,
        before_ms=estimates.pooled([estimates.summary(each["before"]) for each in races], log=True),
        after_ms=estimates.pooled([estimates.summary(each["after"]) for each in races], log=True),
        parity_error=max(each["parity_error"] for each in races),
        conditions=races[0]["conditions"],
    )


def race_in_worker(path: str, budget_s: float, inputs: str | None = None) -> dict[str, Any]:
    """One process's race, for JSON: times in ms of each round, the relative error, bytes held by a call of each."""
    given = read(Path(path), inputs)
    forms = {"before": given.before, "after": given.after}
    raced = race_forms(forms, given.inputs, mode=given.mode, tolerance=given.tolerance, budget_s=budget_s)
    if raced["after"].times_ms is None:
        raise ParityError(f"{path}: after: {raced['after'].reason}")
    times = {name: raced[name].times_ms.tolist() for name in (*forms, CONTROL)}
    held = {}
    if any(part.memory for part in read_claim(given.claim)):
        calls = {name: call_of(form, given.inputs, given.mode) for name, form in forms.items()}
        with torch.inference_mode(given.mode == "inference"):
            where = raced["before"].device
            held = {name: profile_memory_usage(call, device=where).rise_mb for name, call in calls.items()}
    about = {
        "claim": given.claim,
        "parity_error": raced["after"].parity_error,
        "conditions": str(raced["after"].conditions),
    }
    return {**times, **about, "held_mib": held}


def _speed(race: Mapping[str, Any]) -> Estimate:
    return estimates.ratio(race["before"], race["after"], race[CONTROL])


def _memory(races: list[dict[str, Any]]) -> Estimate:
    held = [each["held_mib"] for each in races]
    if any(each["after"] <= 0 for each in held):
        raise GnnlabError("after holds no memory beside its inputs and before does: there is no ratio to claim")
    ratios = [each["before"] / each["after"] for each in held]
    return estimates.pooled([Estimate(value, value, value, 1) for value in ratios], log=True)


SAME = 0.05  # how far from no change still is none, unless the claim says it
KNOWN = '"1.5x", "1.2-1.5x", "at least 10 %", "20 % faster", "faster", "same speed", "half the memory"'
_NUMBER = r"\d+(?:\.\d+)?"
_EFFECT = re.compile(
    r"(?P<least>at least )?"
    rf"(?:(?P<low>{_NUMBER})(?: ?(?:-|to) ?(?P<high>{_NUMBER}))? ?(?P<unit>x|times|%)|half|twice)"
    r"(?: (?P<rate>faster|speed|speedup|more throughput)| as fast| less time| the time"
    r"| (?:the|less|of the) (?P<memory>memory))?"
)
_SAME = re.compile(rf"(?:the )?same (?P<what>speed|time|memory)(?: within (?P<margin>{_NUMBER}) ?%)?")


@dataclass(frozen=True)
class ClaimPart:
    """One part of a claim: `claimed` is the range of the ratio before over after, of memory or of time.

    `claimed` is None where a gain is claimed without a number; `margin` is how far from it still is no difference,
    where none is claimed. `reading` is how the words were understood.
    """

    text: str
    memory: bool
    claimed: tuple[float, float] | None
    reading: str
    margin: float | None = None


def read_claim(words: str) -> list[ClaimPart]:
    """What a claim says, part by part; parts are separated by commas or "and".

    A percentage is of the time or memory saved ("10 %" is 1 / 0.9 times as fast) unless it says faster or more
    throughput (then it is 1.1). "at least" leaves the upper end open. "same" allows 5 % unless it says `within`.

    Raises:
        GnnlabError: a part is not understood.
    """
    parts = [part.strip() for part in re.split(r",| and ", " ".join(words.lower().split())) if part.strip()]
    return [_part(part) for part in parts or [""]]


def _part(text: str) -> ClaimPart:
    if text in ("faster", "less memory"):
        return ClaimPart(text, text != "faster", None, "some gain, of any size")
    if same := _SAME.fullmatch(text):
        margin = float(same["margin"]) / 100 if same["margin"] else SAME
        return ClaimPart(text, same["what"] == "memory", (1.0, 1.0), f"no change beyond {100 * margin:g} %", margin)
    effect = _EFFECT.fullmatch(text)
    low, high = _ratios(effect) if effect else (0.0, 0.0)
    if not 1 < low <= high:
        raise GnnlabError(f"the claim {quoted(text)} is not understood; understood are {KNOWN}")
    what, least = "memory" if effect["memory"] else "time", effect["least"] or ""
    size = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    reading = f"{what} before over {what} after is {least}{size}"
    return ClaimPart(text, what == "memory", (low, math.inf if least else high), reading)


def _ratios(effect: re.Match[str]) -> list[float]:
    """The ratios that an amount or both ends of a range claim; 0 for a saving of all or more."""
    low = float(effect["low"] or 2)  # half and twice
    ends = [low, float(effect["high"] or low)]
    if effect["unit"] == "%" and effect["rate"]:
        return [1 + end / 100 for end in ends]
    if effect["unit"] == "%":
        return [1 / (1 - end / 100) if end < 100 else 0.0 for end in ends]
    return ends
