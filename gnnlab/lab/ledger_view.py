"""The ledger as a reader sees it: a badge for the verdict, the interval against the claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .claims import Claim, Verdict
from .ledger import Judged
from .table import digits, format_range, shown_as

BAR_WIDTH = 176  # pixels of the drawn interval


@dataclass(frozen=True)
class Badge:
    """Word, symbol and CSS class of a verdict or a status: colour alone never carries it."""

    word: str
    symbol: str
    css: str


VERDICTS = {
    Verdict.REPRODUCED: Badge("reproduced", "✓", "good"),
    Verdict.EXCEEDED: Badge("exceeded", "▲", "best"),
    Verdict.WEAKER: Badge("weaker", "▽", "fair"),
    Verdict.REFUTED: Badge("refuted", "✕", "bad"),
    Verdict.INCONCLUSIVE: Badge("inconclusive", "≈", "open"),
    Verdict.UNTESTABLE: Badge("untestable here", "○", "none"),
    Verdict.MET: Badge("met", "✓", "good"),
    Verdict.MISSED: Badge("missed", "✕", "bad"),
    Verdict.OPEN: Badge("open", "≈", "open"),
}


@dataclass(frozen=True)
class IntervalBar:
    """A drawn interval: places in pixels from the left, and the same in words."""

    band: tuple[float, float] | None  # left, width
    interval: tuple[float, float] | None  # left, right
    value: float | None
    neutral: float | None
    words: str


@dataclass(frozen=True)
class LedgerLine:
    """One row of the ledger in a reader's words. `order` holds what its columns sort by, "" first."""

    record: Judged
    badge: Badge
    claimed: str
    measured: str
    interval: str
    bar: IntervalBar | None
    href: str | None
    note: str | None
    order: dict[str, float | str]

    @property
    def promise(self) -> str:
        """Who claims what, to end a sentence with; nothing of a goal."""
        return "" if self.record.is_goal else f"; {self.record.of} claims {self.claimed}"


def line(
    record: Judged, link: Callable[[Judged], str | None] = lambda _: None, notes: Mapping[str, str] | None = None
) -> LedgerLine:
    """The row of `record`; `link` gives the address of its figure, `notes` a remark by notebook number."""
    factor, suffix = _unit(record.unit)
    claimed = _scaled(record.claimed, factor)
    measured = None if record.value is None else record.value * factor
    ci = None if record.low is None else _scaled((record.low, record.high), factor)
    exact = ci is None or ci[0] == ci[1]
    return LedgerLine(
        record=record,
        badge=VERDICTS[record.verdict],
        claimed=claimed_text(record),
        measured="" if measured is None else digits(measured, *(ci or (None, None))) + suffix,
        interval="" if exact or measured is None else f"{digits(ci[0], *ci)} to {digits(ci[1], *ci)}{suffix}",
        bar=interval_bar(claimed, measured, ci, neutral=1.0 if record.unit == "x" else None, suffix=suffix),
        href=link(record),
        note=(notes or {}).get(record.notebook),
        order={
            "verdict": list(Verdict).index(record.verdict),
            "claimed": next((end for end in record.claimed or () if end is not None), ""),
            "measured": "" if record.value is None else record.value,
            "n": record.n,
        },
    )


def claimed_text(claim: Judged | Claim) -> str:
    """The claimed range with its unit, or "some gain" where no number was named."""
    factor, suffix = _unit(claim.unit)
    bounds = claim.bounds if isinstance(claim, Claim) else claim.claimed
    text = format_range(_scaled(bounds, factor))
    return text if bounds is None else text + suffix


def _unit(unit: str) -> tuple[float, str]:
    """The factor of a unit, and what a reader sees behind the number."""
    factor, shown = shown_as(unit)
    return factor, {"x": "×", "count": "", "difference": ""}.get(shown, f" {shown}")


def _scaled(pair: tuple[float | None, float | None] | None, factor: float) -> tuple[float | None, float | None] | None:
    return None if pair is None else tuple(None if end is None else end * factor for end in pair)


def interval_bar(
    claimed: tuple[float | None, float | None] | None,
    measured: float | None,
    ci: tuple[float, float] | None,
    *,
    neutral: float | None = None,
    suffix: str = "",
) -> IntervalBar | None:
    """Where interval, value and claimed band lie in a picture of `BAR_WIDTH` pixels; None without a number.

    An open end of the band runs out of the picture. `neutral` is the value of no effect. The axis is logarithmic for
    ratios (those have a neutral value) that span more than a factor of 3.
    """
    ends = [end for end in (*(claimed or ()), *(ci or ()), measured) if end is not None]
    if not ends:
        return None
    if neutral is not None:
        ends.append(neutral)
    place = _axis(min(ends), max(ends), log=neutral is not None)
    band, interval, words = None, None, []
    if measured is not None:
        words.append(f"measured {digits(measured, *(ci or (None, None)))}{suffix}")
        if ci is not None and ci[1] > ci[0]:
            interval = place(ci[0]), place(ci[1])
            words.append(f"95 % interval {digits(ci[0], *ci)} to {digits(ci[1], *ci)}{suffix}")
    if claimed is not None:
        left, right = place(claimed[0], 0), place(claimed[1], BAR_WIDTH)
        width = max(right - left, 3)
        band = (left + right - width) / 2, width
        words.append(f"claimed {format_range(claimed)}{suffix}")
    return IntervalBar(
        band=band,
        interval=interval,
        value=None if measured is None else place(measured),
        neutral=None if neutral is None else place(neutral),
        words=", ".join(words),
    )


def _axis(low: float, high: float, *, log: bool) -> Callable[..., float]:
    """A function from values to pixels, with room on both sides; `None` goes where its second argument says."""
    log = log and low > 0 and high / low > 3
    scale = math.log if log else float
    start, span, room = scale(low), scale(high) - scale(low), 16

    def place(value: float | None, otherwise: float = 0) -> float:
        if value is None:
            return otherwise
        return room + (BAR_WIDTH - 2 * room) * ((scale(value) - start) / span if span > 0 else 0.5)

    return place
