"""What a claim in words says, as numbers that an interval can be held against.

read_claim("at least 1.5x, half the memory")    # two parts: a ratio of times of at least 1.5, one of memory of 2
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gnnlab.errors import GnnlabError, shown

SAME = 0.05  # how far from no change still is none, unless the claim says it
KNOWN = '"1.5x", "1.2-1.5x", "at least 10 %", "20 % faster", "faster", "same speed", "half the memory"'
_NUMBER = r"\d+(?:\.\d+)?"
_RANGE = rf"(?P<number>{_NUMBER})(?: ?(?:-|to) ?(?P<upper>{_NUMBER}))? ?(?P<kind>x|times|%)"
_AMOUNT = rf"(?P<least>at least )?(?:{_RANGE}|(?P<word>half|twice))"
_SPEED = r"(?: (?P<how>faster|as fast|speed|speedup|less time|the time|more throughput))?"
_MEMORY = r" (?:the|less|of the) memory"
_SAME = rf"(?:the )?same (?P<what>speed|time|memory)(?: within (?P<margin>{_NUMBER}) ?%)?"
_SPEEDS_UP = ("faster", "speed", "speedup", "more throughput")  # of which a percentage is one of the rate


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
    if not parts:
        raise GnnlabError(f"the claim {shown(words)} says nothing; understood are {KNOWN}")
    return [_part(part) for part in parts]


def _part(text: str) -> ClaimPart:
    if text in ("faster", "less memory"):
        return ClaimPart(text, text != "faster", None, "some gain, of any size")
    if same := re.fullmatch(_SAME, text):
        margin = float(same["margin"]) / 100 if same["margin"] else SAME
        return ClaimPart(text, same["what"] == "memory", (1.0, 1.0), f"no change beyond {100 * margin:g} %", margin)
    memory = re.fullmatch(_AMOUNT + _MEMORY, text)
    found = memory or re.fullmatch(_AMOUNT + _SPEED, text)
    if not found or not (effects := _effects(found, None if memory else found["how"])):
        raise GnnlabError(f"the claim {shown(text)} is not understood; understood are {KNOWN}")
    low, high = effects
    what, least = "memory" if memory else "time", found["least"] is not None
    size = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    reading = f"{what} before over {what} after is {'at least ' * least}{size}"
    return ClaimPart(text, bool(memory), (low, math.inf if least else high), reading)


def _effects(found: re.Match[str], how: str | None) -> tuple[float, float] | None:
    """The ratios, above 1, that an amount or a range of two claims; None where it claims none."""
    if found["word"]:
        return 2.0, 2.0
    ends = [float(found["number"]), float(found["upper"] or found["number"])]
    if found["kind"] == "%":
        if how not in _SPEEDS_UP and not 0 < max(ends) < 100:
            return None
        ends = [1 + end / 100 if how in _SPEEDS_UP else 1 / (1 - end / 100) for end in ends]
    return (ends[0], ends[1]) if 1 < ends[0] <= ends[1] else None
