"""`gnnlab check`: a claim of one's own, raced and judged as those of the ledger are."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gnnlab import files
from gnnlab.lab import plot_style, plots
from gnnlab.lab.claims import TOLERANCE, Claim, Rule, Verdict, verdict
from gnnlab.lab.table import Origin, estimate_text, number
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite import claim_file
from gnnlab.rewrite.claim_file import CheckedClaim, ClaimPart, read_claim

from .tables import warn_if_busy

OK, REFUTED, INCONCLUSIVE = 0, 1, 3


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Race what the file claims, judge it, print it; the exit code is that of the worst part."""
    options = {"processes": arguments.processes, "budget_s": arguments.budget}
    path = Path(arguments.file)
    warn_if_busy()
    found = claim_file.measure(path, **options, say=lambda line: print(line, file=sys.stderr))
    parts = read_claim(found.claim)
    report = as_json(path, parts, found)
    if arguments.out:
        _write(Path(arguments.out), report, _figure(report, parts, found))
    show(json.dumps(report, indent=2) if arguments.json else markdown(report))
    return exit_code([Verdict(row["verdict"]) for row in report["claims"]])


def _write(folder: Path, report: dict[str, Any], figure: Figure) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / "check.json", report)
    files.write_atomically(folder / "check.md", lambda file: file.write(markdown(report)))
    plot_style.save(figure, "check", title=report["claim"], alt=_sentence(report), folder=folder)
    print(f"wrote check.json, check.md and figures/check.png to {folder}", file=sys.stderr)


def exit_code(verdicts: list[Verdict]) -> int:
    """0 where all are reproduced or exceeded, 1 where one is refuted or weaker, else 3."""
    if any(v in (Verdict.REFUTED, Verdict.WEAKER) for v in verdicts):
        return REFUTED
    return OK if all(v in (Verdict.REPRODUCED, Verdict.EXCEEDED) for v in verdicts) else INCONCLUSIVE


# ---- what is shown --------------------------------------------------------------------------------------------------


def as_json(path: Path, parts: list[ClaimPart], found: CheckedClaim) -> dict[str, Any]:
    """The whole result, for JSON: each part with its interval and verdict, the times, the conditions."""
    rows = []
    for part in parts:
        figure = found.memory if part.memory else found.speed
        fields = {"id": part.text, "statement": part.text, "claimed": part.claimed, "margin": part.margin}
        fields |= {"notebook": "09", "of": Rule(study="check"), "source": "file"}
        claim = Claim(**fields, metric="memory_ratio" if part.memory else "ratio")
        judged = verdict(claim, figure.interval).value
        rows.append({"claim": part.text, "read_as": part.reading, **_numbers(figure), "verdict": judged})
    return {
        "file": path.name,
        "sha256": found.source,
        "claim": found.claim,
        "claims": rows,
        "before_ms": _numbers(found.before_ms),
        "after_ms": _numbers(found.after_ms),
        "processes": [_numbers(each) for each in found.processes],
        "parity_error": found.parity_error,
        "smallest_effect_seen": found.detectable,
        "conditions": found.conditions,
    }


def markdown(report: dict[str, Any]) -> str:
    """For a terminal, and for a comment on a pull request."""
    lines = [_sentence(report), "", "| claim | read as | measured, 95 % interval | verdict |", "|---|---|---|---|"]
    for row in report["claims"]:
        cells = (row["claim"], row["read_as"], f"{_text(row)}x", row["verdict"])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    smallest = report["smallest_effect_seen"]
    sees = "Such runs tell no effect: they have no interval."
    if smallest is not None:
        sees = f"Four in five runs like this one would notice an effect of {number(100 * (smallest - 1))} %."
    error = report["parity_error"]
    same = f"results differ by {error:.1e} relative" if error else "results are identical"
    count = len(report["processes"])
    lines += [
        "",
        f"before {_text(report['before_ms'])} ms, after {_text(report['after_ms'])} ms; {same}.",
        f"{count} process{'es' * (count != 1)}, {report['before_ms']['n']} rounds, {report['conditions']}. {sees}",
    ]
    return "\n".join(lines) + "\n"


def _sentence(report: dict[str, Any]) -> str:
    said = "; ".join(f"{row['claim']}: {row['verdict']}, {_text(row)}x" for row in report["claims"])
    return f"**{report['file']}**: {said}"


def _figure(report: dict[str, Any], parts: list[ClaimPart], found: CheckedClaim) -> Figure:
    """The speed in each process and of all together, with the claimed ranges."""
    rows = [{"process": f"process {i + 1}", **each} for i, each in enumerate(report["processes"])]
    frame = pd.DataFrame([*rows, {"process": "all", **_numbers(found.speed)}]).assign(origin=Origin.MEASURED)
    title = _sentence(report).replace("*", "")
    fig = plots.bars(frame, y="process", label="time before over time after", unit="x", title=title, log=True)
    for part in parts:
        if not part.memory and part.claimed:
            low, high = part.claimed[0] / TOLERANCE, min(part.claimed[1], found.speed.high or math.inf) * TOLERANCE
            fig.axes[0].axvspan(low, high, alpha=0.12, zorder=0)
    return fig


def _numbers(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _text(row: dict[str, Any]) -> str:
    return estimate_text(Estimate(row["value"], row["low"], row["high"], row["n"]))
