"""A claim of one's own in a file: a variant before, a variant after, their inputs, and what is claimed of them.

    before = GCNConv(64, 64).eval()             # any callable or module
    after = fast_variant(before)
    inputs = {"x": x, "edge_index": edge_index} # by the names of arguments, a tuple, or a function that makes either
    claim = "1.5x, half the memory"

    claim, read, result = measure(Path("my_claim.py"))    # raced in processes of their own
    result.speed, result.memory                     # before over after

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
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn
from torch_geometric.data.data import BaseData

from gnnlab.child import Worker
from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.measure.race import RTOL_FLOAT32
from gnnlab.measure.versus import LIMIT_S, Made, Versus, cost_s, versus
from gnnlab.workloads import models
from gnnswap.errors import one_line, quoted, raised_at
from gnnswap.inputs import bind

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
        raise GnnlabError(f"{path} fails: {one_line(error)}{raised_at(error)}") from error
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


def described(path: str, inputs: str | None) -> dict[str, Any]:
    """Claim, mode and tolerance of a file, and what was read, for JSON."""
    claim = read(Path(path), inputs)
    variants = ", ".join(f"{name} {_named(getattr(claim, name))}" for name in ("before", "after"))
    line = f"{inputs or path}: inputs {models.shapes(claim.inputs)}; {variants}"
    return claim.model_dump(include={"claim", "mode", "tolerance"}) | {"read": line}


def _named(variant: Callable[..., Any]) -> str:
    return getattr(variant, "__qualname__", type(variant).__name__)


@cache
def _read_once(path: str, inputs: str | None) -> ClaimFile:
    return read(Path(path), inputs)


def part(path: str, name: str, inputs: str | None) -> Any:
    """What a file defines under a name; it runs once in a process."""
    return getattr(_read_once(path, inputs), name)


def measure(
    path: Path,
    *,
    processes: int = 5,
    seconds: float = 2.0,
    inputs: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[str, str, Versus]:
    """The claim of a file, a line on what was read, and the race of its variants in fresh processes, `seconds` of
    sampling in each; `tell` gets that line, what it costs, then a line of each process. `inputs`: a `module:function`
    that gives the inputs in place of the file.

    Raises:
        GnnlabError: `read` refuses the file, a variant fails, hangs or ends its process, or results differ.
    """
    given = {"path": str(path), "inputs": inputs}
    with Worker() as worker:
        answer = worker.call(f"{__name__}:described", given, timeout_s=LIMIT_S)
    about = answer.get(str(path) if answer.lost else "")
    claim, line = about.pop("claim"), about.pop("read")
    tell(line)
    memory = any(one.memory for one in read_claim(claim))
    takes_s = cost_s(processes, seconds, memory=memory)
    tell(f"{processes} process{'es' * (processes != 1)}, {seconds:g} s of sampling in each: about {takes_s:.0f} s")
    made = (Made(f"{__name__}:part", given | {"name": name}) for name in ("before", "after", "inputs"))
    try:
        return claim, line, versus(*made, processes=processes, seconds=seconds, memory=memory, tell=tell, **about)
    except GnnlabError as error:
        raise GnnlabError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


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
