"""What notebook 03 measured, as rows of the lab's one table: frames for `Lab.record`, fields named as a row's are.

lab.record("pair_terms", pairs(few), keys=SIZE, device="cpu")
lab.record("training_epoch", epochs(raced, loops, known), device="cpu")
lab.record("score_difference", differences(raced, loops, known, "bf16", reason), keys=["minus"], device="cpu")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.optimize.study import BASELINE, CONTROL
from gnnlab.optimize.study_rows import race_rows
from gnnlab.optimize.training.study import (
    AFTER,
    BEFORE,
    LOOP,
    LOW,
    OURS,
    PRECISIONS,
    Loop,
    last_scores,
    score_difference,
)
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.workloads.tables import Table, Target

SIZE = ["fields", "batch", "dim"]
CHOSEN = "chosen"  # the form that was chosen for a size before its race
EQUAL = "ours, equal score"  # our loop, where its score is seen to be that of the guide's before
MARGIN = 0.005  # of a validation score: what is closer is equal
TRAINED = 0.5  # of the way from a constant answer to the best possible; short of it, equal scores say little
Row = dict[str, Any]


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a race of pair terms, and where a form was chosen before it, "chosen" with that form's samples."""
    rows = race_rows(table, SIZE)
    choices = table.drop_duplicates(SIZE)[[*SIZE, "chosen"]].dropna()
    found = [_chosen(rows, choice) for choice in choices.to_dict("records")]
    return pd.concat([rows, pd.DataFrame(found)], ignore_index=True) if found else rows


def _chosen(rows: pd.DataFrame, choice: Mapping[str, Any]) -> Row:
    cell = rows[(rows[SIZE] == [choice[key] for key in SIZE]).all(axis=1)].set_index("form", drop=False)
    named = BASELINE if choice["chosen"] == LOOP else choice["chosen"]
    row = {**cell.loc[named].to_dict(), "form": CHOSEN, "notes": f"{choice['chosen']} at {_size(choice)}"}
    if named == BASELINE:
        found = estimates.ratio(row["samples"], row["samples"], cell.loc[CONTROL, "samples"])
        row |= {"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high, "baseline": BASELINE}
    return row


def _size(choice: Mapping[str, Any]) -> str:
    return f"{choice['batch']:,} x {choice['dim']}"


@dataclass(frozen=True)
class KnownScores:
    """What nobody has to train for: the score of a constant answer, and that of the truth where it is planted."""

    constant: float
    best: float | None

    def share(self, score: float) -> float:
        """How far a score is on the way from the constant answer to the truth."""
        return (score - self.constant) / (self.best - self.constant)

    def untrained(self, scores: np.ndarray) -> str | None:
        """Why scores (seeds,) are too near a constant answer for their equality to say much; None where they are not.

        Where the best possible score is not known, the mean has to be ten margins above the constant answer.
        """
        mean = float(np.mean(scores))
        if self.best is None:
            enough = mean >= self.constant + 10 * MARGIN
            return None if enough else f"{self.said(scores)}: less than {10 * MARGIN:g} above it"
        return None if self.share(mean) >= TRAINED else f"{self.said(scores)}, {TRAINED:.0%} are needed"

    def said(self, scores: np.ndarray) -> str:
        """What training reaches, beside what is known."""
        mean = float(np.mean(scores))
        start = f"training reaches a validation score of {mean:.3f}, a constant answer {self.constant:.3f}"
        return start if self.best is None else f"{start}, the truth {self.best:.3f}: {self.share(mean):.0%} of the way"


def known_scores(training: Table, validation: Table) -> KnownScores:
    """The scores on the validation table of the most frequent class of the training table, and of the truth."""
    constant = [_constant(spec, training, validation) for spec in training.specs]
    best = validation.best_score
    return KnownScores(float(np.mean(constant)), None if best is None else float(np.mean(list(best.values()))))


def _constant(spec: Target, training: Table, validation: Table) -> float:
    """Accuracy of the most frequent class; an AUROC of one answer for all rows is a half."""
    if spec.kind == "labels":
        return 0.5
    frequent = torch.bincount(training.targets[spec.name], minlength=spec.size).argmax()
    return float((validation.targets[spec.name] == frequent).double().mean())


def known(found: KnownScores) -> pd.DataFrame:
    """Rows of the scores that are computed from the tables, exactly."""
    exact = {**_SCORE, "statistic": "single", "origin": "counted", "interval": "exact", "n": 1, "precision": "float64"}
    rows = [{"form": "constant answer", "value": found.constant, **exact}]
    if found.best is None:
        reason = "what is possible is not known for this table"
        return pd.DataFrame([*rows, {**exact, "form": "truth", "status": "unavailable", "reason": reason}])
    return pd.DataFrame([*rows, {"form": "truth", "value": found.best, **exact}])


_SCORE = {"unit": "score", "better": "higher", "origin": "measured"}


def scores(raced: pd.DataFrame, loops: Mapping[str, Loop]) -> pd.DataFrame:
    """The validation score of each loop after each epoch, mean over the seeds; key: epoch."""
    return pd.DataFrame(
        {
            "epoch": epoch,
            "form": loop,
            "samples": part.sort_values("seed")["score"].to_numpy(),
            "statistic": "mean",
            "precision": _precision(loops[loop]),
            **_SCORE,
        }
        for (epoch, loop), part in raced.groupby(["epoch", "loop"], sort=False)
    )


def epochs(raced: pd.DataFrame, loops: Mapping[str, Loop], found: KnownScores) -> pd.DataFrame:
    """The time of an epoch of each loop, a sample for each seed and epoch, over the guide's before.

    The control is our loop against itself. "ours, equal score" is our loop where its score is seen to be the guide's.
    """
    wide = 1e3 * raced.pivot(index=["seed", "epoch"], columns="loop", values="seconds")
    noise = estimates.noise_floor(wide[OURS].to_numpy(), wide[CONTROL].to_numpy())
    rows = []
    for loop in (name for name in loops if name in wide):
        row = {"form": loop, "samples": wide[loop].to_numpy(), "precision": _precision(loops[loop]), **_TIME}
        base = OURS if loop == CONTROL else BEFORE
        if loop != BEFORE:
            ratio = estimates.ratio(wide[base].to_numpy(), row["samples"])
            row |= _over(base, ratio, 1.0 if loop == CONTROL else noise)
        rows.append(row)
    return pd.DataFrame([*rows, _at_equal_score(next(row for row in rows if row["form"] == OURS), raced, found)])


_TIME = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "status": "ok"}


def _over(base: str, ratio: Estimate, noise: float) -> Row:
    low, high = (None, None) if ratio.low is None else (ratio.low / noise, ratio.high * noise)
    return {"baseline": base, "ratio": ratio.value, "ratio_low": low, "ratio_high": high}


def _at_equal_score(row: Row, raced: pd.DataFrame, found: KnownScores) -> Row:
    """Our loop as the goal asks for it, or why there is none: scores that differ, or that say little."""
    difference = score_difference(raced, BEFORE, OURS)
    text = f"{difference.value:+.4f} ({_signed(difference.low)} to {_signed(difference.high)})"
    said = f"validation score minus that of {BEFORE}: {text} over {difference.n} seeds"
    reason = found.untrained(last_scores(raced, OURS))
    if reason is None and not within(difference):
        reason = f"{said}, not within {MARGIN:g}"
    if reason is not None:
        return {**{name: row[name] for name in ("precision", *_TIME)}, **_missing(EQUAL, reason)}
    return {**row, "form": EQUAL, "notes": said}


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.4f}"


def within(difference: Estimate) -> bool:
    """Does the whole interval of a difference of scores lie within the margin?"""
    return difference.low is not None and max(-difference.low, difference.high) <= MARGIN


def _missing(form: str, reason: str) -> Row:
    return {"form": form, "status": "unavailable", "reason": reason}


def differences(
    raced: pd.DataFrame, loops: Mapping[str, Loop], found: KnownScores, low_precision: str, reason: str | None
) -> pd.DataFrame:
    """The score of a loop minus another's after the last epoch, paired by seed: their mean; key: minus.

    `reason`: why the device does not train in `low_precision` (bf16|fp16). Where training is too near a constant
    answer, low precision has no difference but the reason.
    """
    rows = []
    for minus, loop in ((BEFORE, AFTER), (BEFORE, OURS), (OURS, CONTROL), (OURS, LOW)):
        row = {"minus": minus, "form": loop, "statistic": "mean", "status": "ok", **_SCORE}
        row["precision"] = PRECISIONS[low_precision] if loop == LOW else _precision(loops[loop])
        why = (reason or found.untrained(last_scores(raced, OURS))) if loop == LOW else None
        row["notes"] = found.said(last_scores(raced, OURS)) if loop == LOW else ""
        if why is None:
            row["samples"] = last_scores(raced, loop) - last_scores(raced, minus)
        rows.append(row if why is None else row | _missing(loop, why))
    return pd.DataFrame(rows)


def memory(held: pd.DataFrame, loops: Mapping[str, Loop]) -> pd.DataFrame:
    """MiB of a step of each loop, over the guide's before: measured for some batches on CUDA, counted on a CPU."""
    wide = held.pivot(index="step", columns="loop", values="mib")
    return pd.DataFrame(_memory(loop, wide, loops[loop]) for loop in loops)


def _memory(loop: str, wide: pd.DataFrame, of: Loop) -> Row:
    samples = wide[loop].to_numpy()
    row = {"form": loop, "unit": "MiB", "better": "lower", "precision": _precision(of)}
    if of.recipe.device == "cpu":
        exact = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1}
        row |= {**exact, "value": float(samples[0])}
    else:
        row |= {"origin": "measured", "statistic": "median", "samples": samples}
    if loop == BEFORE:
        return row
    base = OURS if loop == CONTROL else BEFORE
    return row | _over(base, estimates.ratio(wide[base].to_numpy(), samples), 1.0)


def _precision(loop: Loop) -> str:
    return PRECISIONS[loop.recipe.precision]
