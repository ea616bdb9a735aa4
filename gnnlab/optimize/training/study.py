"""What notebook 03 races: pair terms, losses, input pipelines, and whole training loops to equal validation score.

races(fm([4], [64, 512], 256, FORMS), ...)                  # of `study`, as for all that is small
raced = epochs(loops("cpu", recipe), training, validation, seeds=3)     # a row a loop, seed and epoch
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from gnnlab.optimize import interactions
from gnnlab.optimize.interactions.choice import Size, form_run
from gnnlab.optimize.study import Case, races
from gnnlab.optimize.training import losses
from gnnlab.optimize.training.input_pipeline import Batch, feed, one_pass, order
from gnnlab.optimize.training.loop import Trainer
from gnnlab.optimize.training.objective import Objective
from gnnlab.optimize.training.precision import why_not
from gnnlab.optimize.training.recipe import GUIDE_AFTER, GUIDE_BEFORE, Recipe
from gnnlab.optimize.training.validation import evaluate
from gnnlab.profiling.memory import profile_memory_usage
from gnnlab.profiling.sampling import quiet
from gnnlab.workloads import planted_table, table_files
from gnnlab.workloads.deepfm import DeepFM
from gnnlab.workloads.tables import Table

BEFORE, AFTER, OURS, LOW = "guide's before", "guide's after", "ours", "ours, low precision"
TABLE = "table on the device"
LOOP, STACKED_LOOP, HALF = "pairwise loop", "stacked loop", "half-square"
PASS_ROWS = 20_000
FORWARD, TRAINING = "forward", "forward + backward"


@dataclass(frozen=True)
class Loop:
    """A training loop: its switches, and how its model computes the pair terms."""

    recipe: Recipe
    interactions: Callable[[Tensor], Tensor]

    def model(self, table: Table, seed: int, embedding_dim: int, hidden: int) -> DeepFM:
        """A new model; of the same seed all loops start with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = {"embedding_dim": embedding_dim, "hidden": hidden, "interactions": self.interactions}
            return DeepFM(table.cardinalities, table.specs, **sizes)


def table(spec: str, rows: int, fields: Sequence[str] = (), targets: Sequence[str] = ()) -> Table:
    """`planted` with so many rows, or a CSV or Parquet file with the columns named. Raises `TableError`."""
    if spec == "planted":
        return planted_table.planted(rows)
    return table_files.load(spec, fields=list(fields), targets=list(targets))


def fm(
    fields: int,
    batches: Sequence[int],
    dims: Sequence[int],
    *,
    phases: Sequence[str] = (FORWARD, TRAINING),
    compiled: bool = False,
    device: str = "cpu",
) -> list[Case]:
    """The pair terms from M separate embeddings (B, D), as the guide has them: every form, over its pairwise loop.

    With `compiled` also the loop by `torch.compile`. With the backward pass, the label names the form that was chosen
    for the size before anything of this race is known.
    """
    left_out = {LOOP} if compiled else {LOOP, "compiled loop"}
    forms = [name for name in interactions.FORMS if name not in left_out]
    return [_fm(fields, *size, forms, device) for size in itertools.product(phases, dims, batches)]


def _fm(fields: int, phase: str, dim: int, batch: int, forms: Sequence[str], device: str) -> Case:
    size = Size(fields, batch, dim, device, training=phase == TRAINING)
    chosen = interactions.choose(fields, batch, dim, device) if size.training else None
    label = {"fields": fields, "batch": batch, "dim": dim, "phase": phase, "chosen": chosen}
    runs = {name: form_run(interactions.FORMS[name], size, as_list=True) for name in [LOOP, *forms]}
    return Case(label, runs.pop(LOOP), runs)


def fm_sum(fields: int, batch: int, dim: int, *, device: str = "cpu") -> Case:
    """Where only the sum of all pairs is asked for: summed up, and by the half-square. Forward and backward."""
    size = Size(fields, batch, dim, device)
    forms = {HALF: form_run(interactions.half_square, size, as_list=True, columns=1)}
    label = {"fields": fields, "batch": batch, "dim": dim}
    return Case(label, form_run(_summed_loop, size, as_list=True, columns=1), forms, {HALF: 1e-4})


def _summed_loop(embeddings: interactions.Embeddings) -> Tensor:
    return interactions.FORMS[LOOP](embeddings).sum(-1, keepdim=True)


def loss_forms(data: Table, batch: int, *, device: str = "cpu") -> Case:
    """The losses of all targets as one, forward and backward; the baseline is the guide's `stack().sum()`."""
    rows = data.rows(torch.arange(min(batch, len(data))))
    random = torch.Generator().manual_seed(0)
    logits = {spec.name: torch.randn(len(rows), spec.size, generator=random).to(device) for spec in data.specs}
    targets = {name: column.to(device) for name, column in rows.targets.items()}
    starts = [*logits.values(), torch.zeros(len(data.specs), device=device)]
    for start in starts:
        start.requires_grad_()
    runs = {name: partial(_loss, form, logits, targets, data.specs, starts) for name, form in losses.FORMS.items()}
    return Case({"batch": len(rows), "targets": len(data.specs)}, runs.pop("stack"), runs)


def _loss(form: losses.Form, logits: Any, targets: Any, specs: Any, starts: list[Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):
        loss = form(logits, targets, specs, starts[-1])
        return loss.detach(), *torch.autograd.grad(loss, starts)


def pipelines(device: str = "cpu") -> dict[str, dict[str, Any]]:
    """Switches of each input pipeline; the first two are the guide's."""
    pinned = {"transfer": "pinned"} if device != "cpu" else {}
    before = {"pipeline": "samples", "workers": 4}
    return {
        BEFORE: before,
        AFTER: {"pipeline": "samples", **(pinned or {"transfer": "dictionary"})},
        "samples, 2 workers": {**before, "workers": 2},
        "batch indexing": {"pipeline": "batches", **pinned},
        "batch indexing, 2 workers": {"pipeline": "batches", "workers": 2, **pinned},
        TABLE: {"pipeline": "table"},
    }


def input_pipelines(data: Table, *, batch: int, device: str = "cpu") -> Case:
    """A pass over the first 20,000 rows in batches on the device, when nobody computes.

    Worker processes start anew in each pass, as they do at each epoch of the guide's.
    """
    data = data.rows(torch.arange(min(PASS_ROWS, len(data))))
    recipes = {name: Recipe(batch_size=batch, device=device, **how) for name, how in pipelines(device).items()}
    indices = order(len(data), 0, 0).split(batch)
    passes = {name: partial(_pass, data, recipe, indices) for name, recipe in recipes.items()}
    return Case({"rows": len(data), "batch": batch}, passes.pop(BEFORE), passes)


def _pass(data: Table, recipe: Recipe, indices: Sequence[Tensor]) -> list[Batch]:
    with feed(data, recipe) as batches:
        return one_pass(batches, indices)


def transfer(data: Table, batch: int, device: str) -> Case:
    """The columns of a batch to the device: one after the other, or all in one dictionary without waiting."""
    rows = data.rows(torch.arange(min(batch, len(data))))
    columns = {name: column.contiguous() for name, column in zip(rows.field_names, rows.fields.unbind(1), strict=True)}
    columns |= {f"target {name}": column for name, column in rows.targets.items()}
    held = {name: column.pin_memory() for name, column in columns.items()} if device != "cpu" else columns
    moves = {
        "dictionary": partial(_moved, columns, device, True),
        "dictionary, pinned": partial(_moved, held, device, True),
    }
    return Case({"batch": len(rows), "columns": len(columns)}, partial(_moved, columns, device, False), moves)


def _moved(columns: Mapping[str, Tensor], device: str, non_blocking: bool) -> dict[str, Tensor]:
    return {name: column.to(device, non_blocking=non_blocking) for name, column in columns.items()}


def moved(data: Table, batch: int, device: str, racing: Mapping[str, Any]) -> pd.DataFrame | None:
    """`transfer` raced, where there is somewhere to transfer to."""
    return None if device == "cpu" else races([transfer(data, batch, device)], **racing, control=False)


def loops(recipe: Recipe, low_precision: str) -> tuple[dict[str, Loop], str | None]:
    """The guide's loop before and after, ours, and ours in low precision (or why this device does not train in it).

    On a CUDA device the guide's "after" pins memory and trains in mixed precision; on a CPU it switches both off.
    """
    amp = {"transfer": "pinned", "precision": "fp16"} if recipe.device != "cpu" else {}
    forms = interactions.FORMS
    found = {
        BEFORE: Loop(replace(recipe, **GUIDE_BEFORE), forms[LOOP]),
        AFTER: Loop(replace(recipe, **(GUIDE_AFTER | amp)), forms[STACKED_LOOP]),
        OURS: Loop(recipe, interactions.pairs),
    }
    reason = why_not(low_precision, recipe.device)
    if reason is None:
        found[LOW] = Loop(replace(recipe, precision=low_precision), interactions.pairs)
    return found, reason


def epochs(
    raced: Mapping[str, Loop],
    training: Table,
    validation: Table,
    *,
    seeds: int,
    embedding_dim: int = 64,
    hidden: int = 256,
) -> pd.DataFrame:
    """Train every loop from the same weights on the same batches, epoch by epoch in turns, in random order.

    Columns: loop, seed, epoch (from 1), seconds (training alone, without the validation), train_loss, validation_loss,
    score, samples_per_s. What a loop prepares at its first steps (compiling, measuring forms) is done before.
    """
    random, rows = np.random.default_rng(0), []
    sizes = {"embedding_dim": embedding_dim, "hidden": hidden}
    for loop in raced.values():
        _prepare(loop, training, validation, sizes)
    for seed in range(seeds):
        with ExitStack() as stack:
            trainers = {}
            for name, loop in raced.items():
                model, recipe = loop.model(training, seed, **sizes), replace(loop.recipe, seed=seed)
                trainers[name] = stack.enter_context(Trainer(model, training, validation, recipe))
            for epoch in range(next(iter(raced.values())).recipe.epochs):
                for name in random.permutation(list(trainers)):
                    rows.append({"loop": str(name), "seed": seed, "epoch": epoch + 1, **_epoch(trainers[name])})
    return pd.DataFrame(rows)


def _prepare(loop: Loop, training: Table, validation: Table, sizes: dict[str, int]) -> None:
    """A whole batch, a ragged one as at the end of an epoch, and a validation."""
    batch = loop.recipe.step_rows
    few = training.rows(torch.arange(min(len(training), batch + len(training) % batch)))
    with Trainer(loop.model(training, 0, **sizes), few, validation, loop.recipe) as trainer:
        _epoch(trainer)


def _epoch(trainer: Trainer) -> dict[str, float]:
    with quiet():
        begun = time.perf_counter()
        loss = trainer.train_epoch()
        seconds = time.perf_counter() - begun
    found = evaluate(trainer.engine.objective, trainer.validation, trainer.share)
    rate = len(trainer.training) / seconds
    return {"seconds": seconds, "train_loss": loss, **found, "samples_per_s": rate}


def rounds_of_loops(raced: pd.DataFrame, baseline: str, loop: str) -> list[np.ndarray]:
    """ms of an epoch of two loops, beside each other in time: one table (n, 2), none where a loop did not run."""
    wide = raced.pivot(index=["seed", "epoch"], columns="loop", values="seconds")
    return [1e3 * wide[[baseline, loop]].to_numpy()] if {baseline, loop} <= set(wide) else []


def score_difference(raced: pd.DataFrame, baseline: str, loop: str) -> dict[str, Any] | None:
    """Score of a loop minus the baseline's in the last epoch, paired by seed: value, ci (Student's t), n.

    None where a loop did not run.
    """
    last = raced[raced["epoch"] == raced["epoch"].max()].pivot(index="seed", columns="loop", values="score")
    if not {baseline, loop} <= set(last):
        return None
    return mean_of((last[loop] - last[baseline]).to_numpy())


def mean_of(values: np.ndarray) -> dict[str, Any]:
    """Mean with its 95 % interval by Student's t: value, ci, n; no interval of one value."""
    mean, n = float(np.mean(values)), len(values)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else float("inf")
    return {"value": mean, "ci": (mean - half, mean + half), "n": n}


def step_memory(raced: Mapping[str, Loop], data: Table, *, embedding_dim: int = 64, hidden: int = 256) -> pd.DataFrame:
    """MiB that a forward and backward pass of one batch holds above model and batch at its peak, by loop: loop, mib."""
    rows = []
    for name, loop in raced.items():
        device = loop.recipe.device
        batch = data.rows(torch.arange(min(loop.recipe.batch_size, len(data))))
        model = loop.model(data, 0, embedding_dim, hidden).to(device)
        objective, fields = Objective(model, loop.recipe), batch.fields.to(device)
        targets = {name: column.to(device) for name, column in batch.targets.items()}
        _backward(objective, fields, targets)  # what is made once
        model.zero_grad()
        held = profile_memory_usage(_backward, objective, fields, targets, device=device)
        rows.append({"loop": name, "mib": held.rise_mb})
    return pd.DataFrame(rows)


def _backward(objective: Objective, fields: Tensor, targets: Mapping[str, Tensor]) -> None:
    objective(fields, targets)[0].backward()
