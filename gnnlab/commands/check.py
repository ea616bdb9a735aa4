"""Judge a claim of your own: a variant before, a variant after, raced in several processes.

The file defines before and after (functions or modules), inputs (by the names of arguments, or a tuple) and a
claim in words: "1.5x", "at least 10 %", "20 % faster", "same speed, half the memory". Exit code 0: reproduced
or exceeded; 1: refuted or weaker; 3: inconclusive; 2: bad input, or the two compute different results.

examples:
  gnnlab check examples/claims/expand.py
  gnnlab check my_claim.py --processes 10 > check.md     Markdown for a pull request
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import add_json, add_processes, existing_file, say, show, warn_if_busy

if TYPE_CHECKING:
    from gnnlab.check import ClaimPart
    from gnnlab.lab.claims import Verdict
    from gnnlab.measure.estimates import Estimate
    from gnnlab.measure.versus import Versus

    Judged = tuple[ClaimPart, Estimate | None, Verdict]  # what was measured of a part of the claim

OK, REFUTED, INCONCLUSIVE = 0, 1, 3


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=existing_file, metavar="CLAIM.py", help="defines before, after, inputs and claim")
    add_processes(parser, 5, 2.0)
    parser.add_argument(
        "--inputs", metavar="module:function", help="a function that returns the inputs, in place of the file's"
    )
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Race what the file claims, judge it, print it; the exit code is that of the worst part."""
    from gnnlab import check
    from gnnlab.lab.claims import Verdict

    path = Path(arguments.file)
    check.require_file(path)
    warn_if_busy()
    options = {name: getattr(arguments, name) for name in ("processes", "seconds", "inputs")}
    claim, read, measured = check.measure(path, **options, tell=say)
    parts = [_judged(part, measured) for part in check.read_claim(claim)]
    if arguments.json:
        show(json.dumps({"file": path.name, "read": read, "claim": claim, **_report(parts, measured)}, indent=2))
    else:
        show(_markdown(path.name, read, parts, measured))
    verdicts = {verdict for *_, verdict in parts}
    if verdicts & {Verdict.REFUTED, Verdict.WEAKER}:
        return REFUTED
    return OK if verdicts <= {Verdict.REPRODUCED, Verdict.EXCEEDED} else INCONCLUSIVE


def _judged(part: ClaimPart, measured: Versus) -> Judged:
    from gnnlab.lab.claims import Claim, Rule, verdict

    metric, ratio = ("memory_ratio", measured.memory.ratio) if part.memory else ("ratio", measured.speed)
    fields = {"id": part.text, "statement": part.text, "claimed": part.claimed, "margin": part.margin}
    fields |= {"notebook": "09", "of": Rule(study="check"), "source": "file", "metric": metric}
    return part, ratio, verdict(Claim(**fields), ratio and ratio.interval)


def _report(parts: list[Judged], measured: Versus) -> dict[str, object]:
    claims = [
        {"claim": part.text, "read_as": part.reading, **(asdict(ratio) if ratio else {}), "verdict": verdict.value}
        for part, ratio, verdict in parts
    ]
    why = {"memory_not_judged": measured.memory.why} if measured.memory and measured.memory.why else {}
    return {"claims": claims, **asdict(measured), **why, "smallest_effect_seen": measured.detectable}


def _markdown(name: str, read: str, parts: list[Judged], measured: Versus) -> str:
    """For a terminal, and for a comment on a pull request."""
    from gnnlab.lab.text import error_text, estimate_text, number

    verdicts, rows = [], []
    for part, ratio, judged in parts:
        text = f"{estimate_text(ratio)}x" if ratio else measured.memory.why
        if ratio and ratio.low is not None and ratio.low <= 1 <= ratio.high and not part.memory:
            text = f"no difference seen, {text}"
        verdicts.append(f"{part.text}: {judged.value}, {text}")
        rows.append(f"| {part.text} | {part.reading} | {text} | {judged.value} |")
    sees = "Such runs tell no effect: they have no interval."
    if measured.detectable is not None:
        sees = (
            f"Smallest effect that it would notice in four runs of five: {number(100 * (measured.detectable - 1))} %."
        )
    count = len(measured.processes)
    where = "one process: the interval is that within it" if count == 1 else f"{count} processes"
    lines = [
        f"**{name}**: {'; '.join(verdicts)}",
        "",
        f"Read {read}.",
        "",
        "| claim | read as | measured, 95 % interval | verdict |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Medians with 95 % intervals: before {estimate_text(measured.before_ms)} ms, after "
        f"{estimate_text(measured.after_ms)} ms; {error_text(measured.error)}.",
        f"{where}; {measured.before_ms.n} rounds, {measured.conditions}. {sees}",
    ]
    if measured.memory:
        peaks = f"before {measured.memory.before}; after {measured.memory.after}"
        lines.append(f"Peak memory beside model and inputs, in fresh processes: {peaks}.")
    return "\n".join(lines)
