"""`gnnlab check`: a claim of one's own, raced and judged as those of the ledger are."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnlab.lab.claims import Claim, Rule, Verdict, verdict
from gnnlab.lab.table import estimate_text, number
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite import claim_file
from gnnlab.rewrite.claim_file import CheckedClaim, ClaimPart, read_claim

from .tables import warn_if_busy

OK, REFUTED, INCONCLUSIVE = 0, 1, 3


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Race what the file claims, judge it, print it; the exit code is that of the worst part."""
    path = Path(arguments.file)
    warn_if_busy()
    options = {"processes": arguments.processes, "budget_s": arguments.budget, "inputs": arguments.inputs}
    measured = claim_file.measure(path, **options, tell=lambda line: print(line, file=sys.stderr))
    parts = [(part, _judged(part, measured)) for part in read_claim(measured.claim)]
    show(json.dumps(as_json(path, parts, measured), indent=2) if arguments.json else markdown(path, parts, measured))
    return exit_code([judged for _, judged in parts])


def exit_code(verdicts: list[Verdict]) -> int:
    """0 where all are reproduced or exceeded, 1 where one is refuted or weaker, else 3."""
    if any(v in (Verdict.REFUTED, Verdict.WEAKER) for v in verdicts):
        return REFUTED
    return OK if all(v in (Verdict.REPRODUCED, Verdict.EXCEEDED) for v in verdicts) else INCONCLUSIVE


def _judged(part: ClaimPart, measured: CheckedClaim) -> Verdict:
    fields = {"id": part.text, "statement": part.text, "claimed": part.claimed, "margin": part.margin}
    fields |= {"notebook": "09", "of": Rule(study="check"), "source": "file"}
    claim = Claim(**fields, metric="memory_ratio" if part.memory else "ratio")
    return verdict(claim, _ratio(part, measured).interval)


def _ratio(part: ClaimPart, measured: CheckedClaim) -> Estimate:
    return measured.memory if part.memory else measured.speed


def as_json(path: Path, parts: list[tuple[ClaimPart, Verdict]], measured: CheckedClaim) -> dict[str, Any]:
    """The whole result, for JSON: each part with its interval and verdict, the times, the conditions."""
    return {
        "file": path.name,
        "claim": measured.claim,
        "claims": [
            {"claim": part.text, "read_as": part.reading, **_numbers(_ratio(part, measured)), "verdict": judged.value}
            for part, judged in parts
        ],
        "before_ms": _numbers(measured.before_ms),
        "after_ms": _numbers(measured.after_ms),
        "processes": [_numbers(each) for each in measured.processes],
        "parity_error": measured.parity_error,
        "smallest_effect_seen": measured.detectable,
        "conditions": measured.conditions,
    }


def _numbers(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def markdown(path: Path, parts: list[tuple[ClaimPart, Verdict]], measured: CheckedClaim) -> str:
    """For a terminal, and for a comment on a pull request."""
    said = [f"{part.text}: {judged.value}, {estimate_text(_ratio(part, measured))}x" for part, judged in parts]
    lines = [f"**{path.name}**: {'; '.join(said)}", ""]
    lines += ["| claim | read as | measured, 95 % interval | verdict |", "|---|---|---|---|"]
    for part, judged in parts:
        lines.append(f"| {part.text} | {part.reading} | {estimate_text(_ratio(part, measured))}x | {judged.value} |")
    sees = "Such runs tell no effect: they have no interval."
    if measured.detectable is not None:
        percent = number(100 * (measured.detectable - 1))
        sees = f"Four in five runs like this one would notice an effect of {percent} %."
    error, count = measured.parity_error, len(measured.processes)
    same = f"results differ by {error:.1e} relative" if error else "results are identical"
    before, after = estimate_text(measured.before_ms), estimate_text(measured.after_ms)
    return "\n".join(
        [
            *lines,
            "",
            f"before {before} ms, after {after} ms; {same}.",
            f"{count} process{'es' * (count != 1)}, {measured.before_ms.n} rounds, {measured.conditions}. {sees}",
        ]
    )
