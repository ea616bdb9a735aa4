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
from typing import TYPE_CHECKING

from .arguments import add_json, count, existing_file, seconds
from .tables import show, warn_if_busy

if TYPE_CHECKING:
    from gnnlab.check import CheckedClaim, ClaimPart
    from gnnlab.lab.claims import Verdict
    from gnnlab.measure.estimates import Estimate

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
    from gnnlab import check as claim_file
    from gnnlab.lab.claims import Verdict

    path = Path(arguments.file)
    claim_file.require_file(path)
    warn_if_busy()
    options = {"processes": arguments.processes, "budget_s": arguments.budget, "inputs": arguments.inputs}
    measured = claim_file.measure(path, **options, tell=lambda line: print(line, file=sys.stderr))
    parts = [(part, *_judged(part, measured)) for part in claim_file.read_claim(measured.claim)]
    if arguments.json:
        claims = [
            {"claim": part.text, "read_as": part.reading, **asdict(ratio), "verdict": verdict.value}
            for part, ratio, verdict in parts
        ]
        report = {"file": path.name, "claims": claims, **asdict(measured), "smallest_effect_seen": measured.detectable}
        show(json.dumps(report, indent=2))
    else:
        show(_markdown(path.name, parts, measured))
    verdicts = {verdict for *_, verdict in parts}
    if verdicts & {Verdict.REFUTED, Verdict.WEAKER}:
        return REFUTED
    return OK if verdicts <= {Verdict.REPRODUCED, Verdict.EXCEEDED} else INCONCLUSIVE


def _judged(part: ClaimPart, measured: CheckedClaim) -> tuple[Estimate, Verdict]:
    """What was measured of a part of the claim, and the verdict."""
    from gnnlab.lab.claims import Claim, Rule, verdict

    metric, ratio = ("memory_ratio", measured.memory) if part.memory else ("ratio", measured.speed)
    fields = {"id": part.text, "statement": part.text, "claimed": part.claimed, "margin": part.margin}
    fields |= {"notebook": "09", "of": Rule(study="check"), "source": "file", "metric": metric}
    return ratio, verdict(Claim(**fields), ratio.interval)


def _markdown(name: str, parts: list[tuple[ClaimPart, Estimate, Verdict]], measured: CheckedClaim) -> str:
    """For a terminal, and for a comment on a pull request."""
    from gnnlab.lab.text import error_text, estimate_text, number

    verdicts, rows = [], []
    for part, ratio, judged in parts:
        text = f"{estimate_text(ratio)}x"
        if ratio.low is not None and ratio.low <= 1 <= ratio.high:
            text = f"no difference seen, {text}"
        verdicts.append(f"{part.text}: {judged.value}, {text}")
        rows.append(f"| {part.text} | {part.reading} | {text} | {judged.value} |")
    sees = "Such runs tell no effect: they have no interval."
    if measured.detectable is not None:
        percent = number(100 * (measured.detectable - 1))
        sees = f"Four in five runs like this one would notice an effect of {percent} %."
    before, after = estimate_text(measured.before_ms), estimate_text(measured.after_ms)
    count = len(measured.processes)
    return "\n".join(
        [
            f"**{name}**: {'; '.join(verdicts)}",
            "",
            "| claim | read as | measured, 95 % interval | verdict |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Medians with 95 % intervals: before {before} ms, after {after} ms; {error_text(measured.parity_error)}.",
            f"{count} process{'es' * (count != 1)}, {measured.before_ms.n} rounds, {measured.conditions}. {sees}",
        ]
    )
