"""The ledger as a reader sees it: a badge for the verdict, the interval beside the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .claims import Claim, Verdict
from .ledger import Judged
from .table import digits, format_range, shown_as


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
class LedgerLine:
    """One row of the ledger in a reader's words. `order` holds what its columns sort by, "" first."""

    record: Judged
    badge: Badge
    claimed: str
    measured: str
    interval: str
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
    measured = None if record.value is None else record.value * factor
    ci = None if record.low is None else _scaled((record.low, record.high), factor)
    exact = ci is None or ci[0] == ci[1]
    return LedgerLine(
        record=record,
        badge=VERDICTS[record.verdict],
        claimed=claimed_text(record),
        measured="" if measured is None else digits(measured, *(ci or (None, None))) + suffix,
        interval="" if exact or measured is None else f"{digits(ci[0], *ci)} to {digits(ci[1], *ci)}{suffix}",
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
