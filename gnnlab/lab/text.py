"""How a reader sees numbers: values, ranges, estimates with their intervals, gains."""

from __future__ import annotations

import math

from gnnlab.profiling.estimates import Estimate


def format_value(value: float) -> str:
    """Integers in full with thousands separators, everything else to four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def format_range(bounds: tuple[float | None, float | None] | None) -> str:
    """A claimed range for a reader: "1.41 to 1.45", "at least 5", "some gain"."""
    if bounds is None:
        return "some gain"
    low, high = bounds
    if high is None:
        return f"at least {format_value(low)}"
    if low is None:
        return f"at most {format_value(high)}"
    return format_value(low) if low == high else f"{format_value(low)} to {format_value(high)}"


def number(value: float) -> str:
    """On axes and bars: three digits, thousands separated, no exponent between 0.001 and 1e9."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}"


def shown_as(unit: str) -> tuple[float, str]:
    """The factor and the unit in which a reader sees values of a unit: shares as percent."""
    return (100.0, "%") if unit == "share" else (1.0, unit)


def estimate_text(found: Estimate, factor: float = 1.0) -> str:
    """As "1.42 (1.40 to 1.45)", times `factor`; an exact number and one without an interval stand alone."""
    if factor != 1.0:
        ends = (None, None) if found.low is None else (found.low * factor, found.high * factor)
        found = Estimate(found.value * factor, *ends, found.n)
    if found.low is None or found.low == found.high:
        return format_value(found.value)
    value, low, high = (digits(end, found.low, found.high) for end in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"


def digits(value: float, low: float | None, high: float | None) -> str:
    """`value` with as many digits as its interval is worth: those of the half-width, one more when it begins with 1.

    The end nearer to 0 keeps two digits, so that a wide interval does not seem to reach 0.
    """
    if low is None or high is None or low == high:
        return format_value(value)
    half, nearer = (high - low) / 2, min(abs(low), abs(high))
    places = -math.floor(math.log10(half)) + (half / 10 ** math.floor(math.log10(half)) < 2)
    if nearer > half / 200:
        places = max(places, 1 - math.floor(math.log10(nearer)))
    if places > 6:
        return f"{value:.3g}"
    places = max(places, 0)
    return f"{round(value, places) + 0.0:,.{places}f}"  # no "-0.0"


def gain_text(gain: Estimate) -> str:
    """ "2.31 (2.25 to 2.37) times as fast", or that no difference was seen."""
    if gain.low is None:
        return f"{gain.value:.3g} times as fast, of {gain.n} rounds, too few for an interval"
    text = estimate_text(gain)
    return f"no difference seen, {text}" if gain.low <= 1 <= gain.high else f"{text} times as fast"


def duration(seconds: float) -> str:
    """Seconds as a reader says them: "0.8 s", "41 s", "2 min 5 s"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
