"""What the tables of `training_study` say: frames for figures, titles and sentences, all computed from the numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from gnnlab.optimize import interactions
from gnnlab.optimize.study import BASELINE, CONTROL, Gain, geometric_mean
from gnnlab.optimize.study_reading import gain_text
from gnnlab.optimize.training.study import (
    AFTER,
    BEFORE,
    LOOP,
    LOW,
    OURS,
    TRAINING,
    last_scores,
    rounds_of_loops,
    score_difference,
)
from gnnlab.optimize.training.study_rows import KnownScores
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.workloads.tables import Table

LOOPS = (BEFORE, AFTER, OURS, LOW)
SAME_SCORE = 5e-5  # a score is shown to four digits


def table(data: Table) -> str:
    """What is trained on: rows, columns, and what was left out when it was read."""
    fields = ", ".join(f"{name} ({size:,})" for name, size in zip(data.field_names, data.cardinalities, strict=True))
    targets = ", ".join(f"{spec.name} ({spec.size} {spec.kind})" for spec in data.specs)
    notes = "".join(f" {note}." for note in data.notes)
    return f"{len(data):,} rows; fields with their categories: {fields}; targets: {targets}.{notes}"


def fm_part(table: pd.DataFrame, phase: str, dim: int) -> pd.DataFrame:
    """The forms that ran, at one phase and width, with the baseline by its own name: what a figure shows."""
    part = table[(table["phase"] == phase) & (table["dim"] == dim) & (table["form"] != CONTROL) & table["ms"].notna()]
    return part.assign(form=part["form"].replace(BASELINE, LOOP))


def fm_title(table: pd.DataFrame, phase: str, dim: int) -> str:
    """Which form is fastest at which batch, and which of those that need no compiler."""
    part = fm_part(table, phase, dim)
    best, eager = _fastest(part), _fastest(part[part["form"].isin(interactions.EAGER)])
    start = f"{part['fields'].iloc[0]} fields of width {dim}, {phase}: {best}"
    return start if best == eager else f"{start}; of the forms without a compiler {eager}"


def _fastest(part: pd.DataFrame) -> str:
    best = part.loc[part.groupby("batch")["ratio"].idxmax()].sort_values("batch")
    found: list[tuple[str, list[int]]] = []
    for form, batch in zip(best["form"], best["batch"], strict=True):
        if found and found[-1][0] == form:
            found[-1][1].append(batch)
        else:
            found.append((form, [batch]))
    if len(found) == 1:
        return f"{found[0][0]} fastest at every batch"
    return ", ".join(f"{form} at {_range(batches)}" for form, batches in found)


def _range(batches: Sequence[int]) -> str:
    return f"{batches[0]:,}" if len(batches) == 1 else f"{batches[0]:,} to {batches[-1]:,}"


def fm(table: pd.DataFrame) -> str:
    """Each form over the pairwise loop, over all sizes, by number of fields and phase; and how good the choice is."""
    parts = []
    for (fields, phase), part in table.groupby(["fields", "phase"], sort=False):
        texts = [_form_text(part[part["form"] == form]) for form in dict.fromkeys(part["form"]) if form != BASELINE]
        parts.append(f"- {fields} fields, {phase}: " + "; ".join(texts))
        if phase == TRAINING:
            parts.append(f"- {fields} fields, chosen: {chosen(part)}")
    return "\n".join(parts)


def _form_text(rows: pd.DataFrame) -> str:
    form, rounds = rows["form"].iloc[0], [r for r in rows["rounds"] if isinstance(r, np.ndarray)]
    if not rounds:
        return f"{form} {rows['notes'].iloc[0]}"
    gain = geometric_mean(rounds)
    over = f" over {gain.sizes} sizes" if gain.sizes > 1 else ""
    return f"{form} {gain.value:.2f} ({gain.ci[0]:.2f} to {gain.ci[1]:.2f}){over}"


def chosen(part: pd.DataFrame) -> str:
    """What was chosen at each size before the race, and how far behind the best of the race that was."""
    texts, behind = [], []
    for (batch, dim), size in part.groupby(["batch", "dim"], sort=False):
        forms = fm_part(size, size["phase"].iloc[0], dim).set_index("form")["ratio"]
        name = size["chosen"].iloc[0]
        texts.append(f"{name} at {batch:,} x {dim}")
        if name in forms:
            behind.append(forms.max() / forms[name] - 1)
    worst = max(behind, default=0)
    far = f"at most {worst:.0%} behind the best of the race" if worst >= 0.005 else "each the best of the race"
    return f"{', '.join(texts)}; {far}"


def loops_table(raced: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """Each loop: loop, speed over the guide's "before" with ci_low, ci_high; score, its difference; MiB of a step."""
    rows = []
    mib = memory.groupby("loop")["mib"].median()
    for loop in (name for name in LOOPS if name in set(raced["loop"])):
        gain = Gain(1.0, (1.0, 1.0), len(raced[raced["loop"] == loop]), 1)
        if loop != BEFORE:
            gain = geometric_mean(rounds_of_loops(raced, BEFORE, loop))
        difference = score_difference(raced, BEFORE, loop)
        rows.append(
            {
                "loop": loop,
                "ratio": gain.value,
                "ci_low": gain.ci[0],
                "ci_high": gain.ci[1],
                "n": gain.n,
                "epoch_s": raced.loc[raced["loop"] == loop, "seconds"].median(),
                "score": last_scores(raced, loop).mean(),
                "difference": difference.value,
                "difference_low": difference.low,
                "difference_high": difference.high,
                "step_mib": mib.get(loop, np.nan),
            }
        )
    return pd.DataFrame(rows)


def loops_title(table: pd.DataFrame) -> str:
    ratio = table.set_index("loop")["ratio"]
    return (
        f"A training epoch: ours is {ratio[OURS]:.3g} times as fast as the guide's before, its after {ratio[AFTER]:.3g}"
    )


def loops(table: pd.DataFrame) -> str:
    parts = []
    for row in table[table["loop"] != BEFORE].to_dict("records"):
        speed = Gain(row["ratio"], (row["ci_low"], row["ci_high"]), row["n"], 1)
        score = difference_text(Estimate(row["difference"], row["difference_low"], row["difference_high"], row["n"]))
        parts.append(f"- {row['loop']}: {gain_text(speed)}, {row['n']} epochs in turns; score {score}")
    return "\n".join(parts)


def difference_text(found: Estimate) -> str:
    """A difference of scores with its interval, in words first: the same, equal within noise, or different."""
    low, high = found.low, found.high
    text = f"{_signed(found.value)} ({low:+.4f} to {high:+.4f})"
    if max(abs(low), abs(high)) < SAME_SCORE:
        return "the same to four digits"
    return f"equal within noise: {text}" if low <= 0 <= high else f"different: {text}"


def _signed(value: float) -> str:
    """Four digits; a smaller difference is said to be that."""
    return f"{value:+.4f}" if abs(value) >= 5e-5 else "below 0.0001"


def score_lines(raced: pd.DataFrame) -> pd.DataFrame:
    """Mean score over seeds by loop and epoch with its interval (Student's t): loop, epoch, score, ci_low, ci_high."""
    rows = []
    for loop, epoch in itertools.product(LOOPS, dict.fromkeys(raced["epoch"])):
        part = raced[(raced["loop"] == loop) & (raced["epoch"] == epoch)]
        if len(part):
            found = estimates.summary(part["score"], "mean")
            ends = {"ci_low": found.low, "ci_high": found.high}
            rows.append({"loop": loop, "epoch": epoch, "score": found.value, **ends})
    return pd.DataFrame(rows)


def scores_title(raced: pd.DataFrame) -> str:
    low = score_difference(raced, OURS, LOW)
    if low is None:
        best = max(last_scores(raced, loop).mean() for loop in set(raced["loop"]))
        return f"Validation score after {raced['epoch'].max()} epochs: {best:.3f} at most"
    verdict = "equal within noise" if low.low <= 0 <= low.high else "different"
    return f"Validation score: {verdict} in low precision, {_signed(low.value)} over {low.n} seeds"


def precision(raced: pd.DataFrame, memory: pd.DataFrame, reason: str | None) -> str:
    """Low precision against float32 in the same loop: speed, memory, score; or why this device has none."""
    if reason is not None:
        return f"Low precision is not measured here: {reason}."
    gain = geometric_mean(rounds_of_loops(raced, OURS, LOW))
    mib = memory.groupby("loop")["mib"].median()
    score = difference_text(score_difference(raced, OURS, LOW))
    spread = np.ptp(last_scores(raced, OURS))
    return (
        f"Low precision in our loop: {gain_text(gain)}; a step holds {mib[LOW]:.1f} MiB, in float32 {mib[OURS]:.1f}; "
        f"score {score}, where seeds alone spread it over {spread:.4f}."
    )


def trained(raced: pd.DataFrame, known: KnownScores) -> str:
    """How far our loop gets from what a constant answer scores to what the truth itself scores, where it is planted."""
    reached = last_scores(raced, OURS).mean()
    start = f"Our loop reaches a validation score of {reached:.3f}, a constant answer {known.constant:.3f}"
    if known.best is None:
        return f"{start}; what is possible is not known for this table."
    return f"{start}, the planted truth itself {known.best:.3f}: it gets {known.share(reached):.0%} of the way."
