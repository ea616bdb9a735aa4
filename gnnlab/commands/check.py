"""Judge a claim of your own: a form before, a form after, raced in several processes.

The file defines before and after (functions or modules), inputs (by the names of arguments, or a tuple) and a
claim in words: "1.5x", "at least 10 %", "20 % faster", "same speed, half the memory". Exit code 0: reproduced
or exceeded; 1: refuted or weaker; 3: inconclusive; 2: bad input, or the two compute different results.

examples:
  gnnlab check examples/claims/expand.py
  gnnlab check my_claim.py --processes 10 > check.md     Markdown for a pull request
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import add_json, count, existing_file, seconds
from .tables import show, warn_if_busy

if TYPE_CHECKING:
    from gnnlab.lab.claims import Verdict
    from gnnlab.profiling.estimates import Estimate
    from gnnlab.rewrite.claim_file import CheckedClaim, ClaimPart

OK, REFUTED, INCONCLUSIVE = 0, 1, 3


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=existing_file, metavar="CLAIM.py", help="defines before, after, inputs and claim")
    parser.add_argument(
        "--processes", type=count, default=5, metavar="N", help="fresh processes to race in (%(default)s)"
    )
    parser.add_argument(
        "--budget", type=seconds, default=2.0, metavar="S", help="seconds of sampling in each (%(default)g)"
    )
    parser.add_argument(
        "--inputs", metavar="module:function", help="a function that returns the inputs, in place of the file's"
    )
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Race what the file claims, judge it, print it; the exit code is that of the worst part."""
    from gnnlab.rewrite import claim_file

    path = Path(arguments.file)
    claim_file.require_file(path)
    warn_if_busy()
    options = {"processes": arguments.processes, "budget_s": arguments.budget, "inputs": arguments.inputs}
    measured = claim_file.measure(path, **options, tell=lambda line: print(line, file=sys.stderr))
    parts = [(part, _judged(part, measured)) for part in claim_file.read_claim(measured.claim)]
    show(json.dumps(as_json(path, parts, measured), indent=2) if arguments.json else markdown(path, parts, measured))
    return exit_code([judged for _, judged in parts])


def exit_code(verdicts: list[Verdict]) -> int:
    """0 where all are reproduced or exceeded, 1 where one is refuted or weaker, else 3."""
    from gnnlab.lab.claims import Verdict

    if any(v in (Verdict.REFUTED, Verdict.WEAKER) for v in verdicts):
        return REFUTED
    return OK if all(v in (Verdict.REPRODUCED, Verdict.EXCEEDED) for v in verdicts) else INCONCLUSIVE


def _judged(part: ClaimPart, measured: CheckedClaim) -> Verdict:
    from gnnlab.lab.claims import Claim, Rule, verdict

    fields = {"id": part.text, "statement": part.text, "claimed": part.claimed, "margin": part.margin}
    fields |= {"notebook": "09", "of": Rule(study="check"), "source": "file"}
    claim = Claim(**fields, metric="memory_ratio" if part.memory else "ratio")
    return verdict(claim, _ratio(part, measured).interval)


def _ratio(part: ClaimPart, measured: CheckedClaim) -> Estimate:
    return measured.memory if part.memory else measured.speed


def as_json(path: Path, parts: list[tuple[ClaimPart, Verdict]], measured: CheckedClaim) -> dict[str, Any]:
    """The whole result, for JSON: each part with its interval and verdict, the times, the conditions."""
    claims = [
        {"claim": part.text, "read_as": part.reading, **asdict(_ratio(part, measured)), "verdict": judged.value}
        for part, judged in parts
    ]
    return {"file": path.name, "claims": claims, **asdict(measured), "smallest_effect_seen": measured.detectable}


def markdown(path: Path, parts: list[tuple[ClaimPart, Verdict]], measured: CheckedClaim) -> str:
    """For a terminal, and for a comment on a pull request."""
    from gnnlab.lab.text import estimate_text, number

    verdicts = [f"{part.text}: {judged.value}, {estimate_text(_ratio(part, measured))}x" for part, judged in parts]
    lines = [f"**{path.name}**: {'; '.join(verdicts)}", ""]
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
