"""The rows of the ledger that notebook 03 records, each with a reason computed from the numbers.

`catalogue` is the claim catalogue: id -> an entry with `claimed` (low, high), either of which may be None. A row holds
the arguments of `Session.claim`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.optimize import interactions
from gnnlab.optimize.interactions.choice import Size, form_run
from gnnlab.optimize.study import CONTROL, geometric_mean, rounds_of
from gnnlab.optimize.study_claims import distance, holds, measured
from gnnlab.optimize.study_reading import interval_text
from gnnlab.optimize.training.objective import Objective
from gnnlab.optimize.training.study import (
    AFTER,
    BEFORE,
    FORWARD,
    LOW,
    OURS,
    STACKED_LOOP,
    TABLE,
    TRAINING,
    Loop,
    rounds_of_loops,
    score_difference,
)
from gnnlab.optimize.training.study_reading import chosen_rounds, difference_text, pipeline_rounds
from gnnlab.workloads.tables import Table

Row = dict[str, Any]
CUDA_ONLY = ("train.transfer", "train.amp", "train.amp_memory", "train.loader", "train.total")
NO_CUDA = "needs a CUDA device; params/gpu measures it there"
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


def guide(fm: pd.DataFrame, loss: pd.DataFrame) -> list[Row]:
    """The guide's claims that any machine can test: the stacked loop forward, and the preallocated loss."""
    forward = fm[fm["phase"] == FORWARD]
    gain = geometric_mean(rounds_of(forward, STACKED_LOOP))
    back = geometric_mean(rounds_of(fm[fm["phase"] == TRAINING], STACKED_LOOP))
    why = f"geometric mean over {gain.sizes} sizes; with the backward pass {back.value:.2f}{_floor(forward)}"
    rows = [measured("fm.vectorized", gain, why, figure="fm_forward")]
    gain = geometric_mean(rounds_of(loss, "preallocated"))
    ours = geometric_mean(rounds_of(loss, "weighted"))
    why = f"forward and backward of {loss['targets'].iloc[0]} targets; all weights at once, as ours: {ours.value:.2f}"
    return [*rows, measured("train.loss_tensor", gain, why + _floor(loss))]


def _floor(table: pd.DataFrame) -> str:
    noise = table[table["form"] == CONTROL]
    return "" if noise.empty else f"; the A/A control shows {interval_text(noise.iloc[0])}"


def accuracy(raced: pd.DataFrame, low_precision: str, reason: str | None) -> Row:
    """The guide's claim that mixed precision costs no accuracy: score in low precision minus that in float32."""
    found = score_difference(raced, OURS, LOW)
    if found is None:
        return {"id": "train.amp_accuracy", "measured": None, "why": f"needs a device that trains in it: {reason}"}
    last = raced[(raced["epoch"] == raced["epoch"].max()) & (raced["loop"] == OURS)]["score"]
    why = (
        f"{difference_text(found)}: validation score in {low_precision} minus that in float32 after "
        f"{raced['epoch'].max()} epochs, paired by seed; in float32 seeds alone spread over {np.ptp(last):.4f}"
    )
    row = {"id": "train.amp_accuracy", "measured": found["value"], "ci": found["ci"], "n": found["n"], "why": why}
    return {**row, "precision": PRECISIONS[low_precision], "figure": "scores"}


def on_cuda(
    moved: pd.DataFrame | None,
    passes: pd.DataFrame,
    raced: pd.DataFrame,
    memory: pd.DataFrame,
    low_precision: str,
) -> list[Row]:
    """The guide's claims for a CUDA device: measured where there is one, and `moved` with it."""
    if moved is None:
        return [{"id": id, "measured": None, "why": NO_CUDA} for id in CUDA_ONLY]
    rounds = {
        "train.transfer": (rounds_of(moved, "dictionary"), "columns of one batch, pageable memory"),
        "train.amp": (rounds_of_loops(raced, OURS, LOW), f"whole epochs of our loop, {low_precision} over float32"),
        "train.loader": (rounds_of(passes, AFTER), "a pass over the rows, 0 workers and pinned over 4 workers"),
        "train.total": (rounds_of_loops(raced, BEFORE, AFTER), "whole epochs, the guide's after over its before"),
    }
    rows = [_cuda_row(id, *found, low_precision if id == "train.amp" else "") for id, found in rounds.items()]
    mib = memory.set_index("loop")["mib"]
    if LOW not in mib:
        return [*rows, {"id": "train.amp_memory", "measured": None, "why": f"needs a device with {low_precision}"}]
    why = f"peak of one step above model and batch: {mib[OURS]:.1f} MiB in float32, {mib[LOW]:.1f} in {low_precision}"
    return [*rows, {"id": "train.amp_memory", "measured": mib[OURS] / mib[LOW], "why": why}]


def _cuda_row(id: str, rounds: Sequence[np.ndarray], what: str, low_precision: str) -> Row:
    if not rounds:
        return {"id": id, "measured": None, "why": f"{what}: not among what ran on this device"}
    options = {"precision": PRECISIONS[low_precision]} if low_precision else {}
    return measured(id, geometric_mean(rounds), what, **options)


def goals(
    fm_few: pd.DataFrame,
    fm_many: pd.DataFrame,
    passes: pd.DataFrame,
    raced: pd.DataFrame,
    catalogue: Mapping[str, Any],
    makers: Mapping[str, Callable[[], Callable[[], Any]]],
) -> list[Row]:
    """The lab's goals: how far each is, and where one is missed, what holds it. `makers` make the form to look at."""
    passed, guide_loader = pipeline_rounds(passes, TABLE)
    difference = score_difference(raced, BEFORE, OURS)
    score = f"validation score over {difference['n']} seeds {difference_text(difference)}"
    found = {
        "goal.fm_4": (chosen_rounds(fm_few), _sizes(fm_few), "fm_training"),
        "goal.fm_26": (chosen_rounds(fm_many), _sizes(fm_many), "fm_many"),
        "goal.input_pipeline": (
            passed,
            f"{passes['rows'].iloc[0]:,} rows, against the faster of the guide's two loaders here, its "
            f"{'after' if guide_loader == AFTER else 'before'}",
            "pipelines",
        ),
        "goal.training_epoch": (rounds_of_loops(raced, BEFORE, OURS), score, "loops"),
    }
    return [_goal(id, *what, catalogue[id].claimed[0], makers.get(id)) for id, what in found.items()]


def _goal(
    id: str,
    rounds: Sequence[np.ndarray],
    what: str,
    figure: str,
    target: float,
    make: Callable[[], Callable[[], Any]] | None,
) -> Row:
    if not rounds:
        return {"id": id, "measured": None, "why": f"{what}: the form is not among those of this run"}
    gain = geometric_mean(rounds)
    parts = [distance(gain, target), what]
    if gain.value < target and make is not None:
        parts.append(re.sub("## Call CompiledFxGraph .* ##", "the compiled kernel", holds(make())["sentence"]))
    return measured(id, gain, "; ".join(parts), figure=figure)


def _sizes(fm: pd.DataFrame) -> str:
    rows = fm[fm["phase"] == TRAINING].drop_duplicates(["batch", "dim"])
    sizes = [
        f"{batch:,} x {dim}: {name}"
        for batch, dim, name in zip(rows["batch"], rows["dim"], rows["chosen"], strict=True)
    ]
    return f"forward and backward, geometric mean over batch x width by the form chosen for each ({'; '.join(sizes)})"


def makers(
    fm_few: pd.DataFrame, fm_many: pd.DataFrame, loop: Loop, data: Table, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """For a goal that is missed: what to profile, at the largest size."""
    return {
        "goal.fm_4": partial(_largest, fm_few, loop.recipe.device),
        "goal.fm_26": partial(_largest, fm_many, loop.recipe.device),
        "goal.training_epoch": partial(_step, loop, data, sizes),
    }


def _largest(fm: pd.DataFrame, device: str) -> Callable[[], Any]:
    rows = fm[fm["phase"] == TRAINING]
    row = rows.loc[rows["batch"].idxmax()]
    size = Size(int(row["fields"]), int(row["batch"]), int(row["dim"]), device)
    return form_run(interactions.FORMS[row["chosen"]], size, as_list=True)


def _step(loop: Loop, data: Table, sizes: Mapping[str, int]) -> Callable[[], Any]:
    """A forward and backward pass of one batch."""
    rows = data.rows(torch.arange(min(loop.recipe.batch_size, len(data))))
    device = loop.recipe.device
    objective = Objective(loop.model(data, 0, **sizes).to(device), loop.recipe)
    fields, targets = rows.fields.to(device), {name: column.to(device) for name, column in rows.targets.items()}

    def step() -> None:
        with torch.inference_mode(False):
            objective(fields, targets)[0].backward()

    return step
