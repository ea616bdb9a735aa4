"""How a reader sees numbers and names: digits worth their interval, ranges, units, what keys and columns are called.

A number without an interval is shown by `number`, one with an interval by `digits`, in figures, tables and sentences
alike: so one number reads the same everywhere on a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gnnlab.measure.estimates import Estimate

UNITS = {"gb_s": ("bandwidth", "GB/s"), "mib": ("size", "MiB"), "ms": ("time", "ms")}  # at the end of names
SIZES_MIB = {"GiB": 2**10, "MiB": 1, "KiB": 2**-10, "B": 2**-20}

# ---- numbers --------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Integers in full with thousands separators, else three digits, without an exponent between 0.001 and 1e9."""
    whole = abs(value) < 1e9 and (abs(value) >= 100 or float(value).is_integer())
    return f"{value + 0.0:,.0f}" if whole else f"{value:.3g}"  # no "-0"


def exact(value: float) -> str:
    """What was counted or claimed: integers in full, else four digits: "5,619,424,500", "1.443"."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def size(mib: float) -> str:
    """MiB in the unit that suits them: "4 B", "15.2 KiB", "214 MiB"."""
    unit = next((unit for unit, least in SIZES_MIB.items() if mib >= least), "B")
    return f"{number(mib / SIZES_MIB[unit])} {unit}"


def digits(value: float, low: float | None, high: float | None) -> str:
    """`value` with as many digits as its interval is worth: those of the half-width, one more when it begins with 1.

    The end nearer to 0 keeps two digits, so that a wide interval does not seem to reach 0.
    """
    if low is None or high is None:
        return number(value)
    if low == high:
        return exact(value)
    half, nearer = (high - low) / 2, min(abs(low), abs(high))
    places = -math.floor(math.log10(half)) + (half / 10 ** math.floor(math.log10(half)) < 2)
    if nearer > half / 200:
        places = max(places, 1 - math.floor(math.log10(nearer)))
    places = max(places, 0)
    return f"{value:.3g}" if places > 6 else f"{round(value, places) + 0.0:,.{places}f}"  # no "-0.0"


def shown_as(unit: str) -> tuple[float, str]:
    """The factor and the unit in which a reader sees values of a unit: shares as percent."""
    return (100.0, "%") if unit == "share" else (1.0, unit)


def with_unit(estimate: Estimate, unit: str) -> tuple[str, str]:
    """An estimate and its interval, "" where there is none: ("1.42×", "1.40 to 1.45×")."""
    factor, suffix = _suffix(unit)
    value, interval = _parts(estimate, factor)
    return value + suffix, interval and interval + suffix


def claimed_text(bounds: tuple[float | None, float | None] | None, unit: str) -> str:
    """A claimed range: "1.41 to 1.45×", "at least 5 %", or "some gain" where no number was named."""
    if bounds is None:
        return "some gain"
    factor, suffix = _suffix(unit)
    low, high = (None if end is None else exact(end * factor) for end in bounds)
    text = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
    return (low if low == high else text) + suffix


def _suffix(unit: str) -> tuple[float, str]:
    """The factor of a unit, and what stands behind the number."""
    factor, name = shown_as(unit)
    return factor, {"x": "×", "count": "", "difference": ""}.get(name, f" {name}")


def estimate_text(estimate: Estimate, factor: float = 1.0) -> str:
    """As "1.42 (1.40 to 1.45)", times `factor`; an exact number and one without an interval stand alone."""
    value, interval = _parts(estimate, factor)
    return f"{value} ({interval})" if interval else value


def _parts(estimate: Estimate, factor: float) -> tuple[str, str]:
    value, *ends = (None if end is None else end * factor for end in (estimate.value, estimate.low, estimate.high))
    interval = "" if ends[0] == ends[1] else " to ".join(digits(end, *ends) for end in ends)
    return digits(value, *ends), interval


def error_text(error: float) -> str:
    """ "largest relative error 2.3e-07"; of 0 "equal where compared", which may be a loss alone."""
    return f"largest relative error {error:.1e}" if error else "equal where compared"


def gain_text(gain: Estimate) -> str:
    """ "2.31 (2.25 to 2.37) times as fast", and what that leaves open: no difference seen, too few rounds."""
    text = f"{estimate_text(gain)} times as fast"
    if gain.low is None:
        return f"{text}, of {gain.n} rounds, too few for an interval"
    return f"{text}, no difference seen" if gain.low <= 1 <= gain.high else text


def duration(seconds: float) -> str:
    """Seconds as a reader says them: "0.8 s", "41 s", "2 min 5 s"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


# ---- names ----------------------------------------------------------------------------------------------------------


def plain(name: str) -> str:
    """A name for a reader, its unit in brackets: "copy bandwidth (GB/s)" of `copy_bandwidth_gb_s`."""
    for ending, (quantity, unit) in UNITS.items():
        if f"_{name}".endswith(f"_{ending}"):
            return f"{name.removesuffix(ending).strip('_').replace('_', ' ') or quantity} ({unit})"
    return name.replace("_", " ")


def axis_label(label: str, unit: str) -> str:
    """A quantity with its unit; without one that says the same once more: "scores", "times as fast as PyG"."""
    named = unit in ("", "count") or label.endswith((unit, f"{unit}s")) or (unit == "x" and label.startswith("times"))
    return label if named else f"{label} ({'×' if unit == 'x' else unit})"


def named(key: str, value: Any) -> str:
    """A text speaks for itself, a number needs its name: "nodes 10"."""
    if isinstance(value, str):
        return value
    name, bracket, unit = plain(key).partition(" (")
    unit = f" {unit.removesuffix(')')}" if bracket else ""
    return f"{name} {value:.4g}{unit}" if isinstance(value, float) else f"{name} {value}{unit}"


def cell_name(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The name of a cell: "1000x1000, features 64"."""
    return ", ".join(named(key, row[key]) for key in keys if key in row)


def words_of(wanted: Any) -> str:
    """One value, or the first two of several and how many more."""
    words = [str(each) for each in (wanted if isinstance(wanted, list | tuple | set) else [wanted])]
    return ", ".join(words[:2]) + (f" and {len(words) - 2} more" if len(words) > 2 else "")


# ---- the environment of a run ---------------------------------------------------------------------------------------


def machine_phrase(environment: Mapping[str, Any]) -> str:
    """The machine in one phrase: "AMD EPYC 9R14, 2 cores, torch 2.13.0", or "1.5 of 8 logical cores" of a run that
    might use no more.
    """
    cpu, versions = environment.get("cpu") or {}, environment.get("versions") or {}
    cores, logical = cpu.get("cores"), cpu.get("logical")
    usable = min(filter(None, (cpu.get("usable"), cpu.get("quota"))), default=logical)
    text = f"{cores} core{'s' * (cores != 1)}" if usable == logical else f"{usable:g} of {logical} logical cores"
    others = [device["name"] for device in environment.get("devices") or () if device["kind"] != "CPU"]
    torch = versions.get("torch")
    parts = [cpu.get("model") or "an unnamed processor", cores and text, *others, torch and f"torch {torch}"]
    return ", ".join(filter(None, parts))


LABELS = {  # what a reader sees in place of a name of the JSON
    "dirty": "uncommitted changes",
    "memory_gb": "memory (GB)",
    "usable": "cores that the run might use",
    "omp_num_threads": "OMP_NUM_THREADS",
    "float32_products": "precision of float32 products",
    "load": "load (1, 5, 15 min)",
    "others_percent": "used by other programs (%)",
    "steal_percent": "taken by other guests (%)",
    "finished": "at its end",
}


def environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what the environment holds, in words; what the system did not tell is left out."""
    rows = [
        (LABELS.get(name, name.removesuffix("_bytes").replace("_", " ")), _environment_text(name, value))
        for name, value in environment.items()
    ]
    return [(name, words) for name, words in rows if words]


def _environment_text(name: str, value: Any) -> str:
    """ "model AMD EPYC, cores 2" of a mapping; bytes as MiB."""
    if isinstance(value, Mapping):
        return ", ".join(" ".join(row) for row in environment_rows(value))
    if isinstance(value, list):
        between = "; " if value and isinstance(value[0], Mapping) else " "
        return between.join(_environment_text(name, one) for one in value)
    if name.endswith("_bytes") and value is not None:
        return f"{value / 2**20:g} MiB"
    return "" if value is None else str(value)
