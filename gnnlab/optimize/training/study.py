"""What notebook 03 races: pair terms, losses, input pipelines, and whole training loops to equal validation score.

races(fm(4, [64, 512], [64]), ...)                          # of `study`, as for all that is small
loops, reason = loops(recipe, "bf16")
raced = epochs(loops, training, validation, seeds=3)        # a row a loop, seed and epoch
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
from torch import Tensor

from gnnlab.optimize import interactions
from gnnlab.optimize.interactions.choice import Size, form_run
from gnnlab.optimize.study import CONTROL, Case
from gnnlab.optimize.training import losses
from gnnlab.optimize.training.input_pipeline import Batch, feed, one_pass, order
from gnnlab.optimize.training.loop import Trainer
from gnnlab.optimize.training.objective import Objective
from gnnlab.optimize.training.precision import why_not
from gnnlab.optimize.training.recipe import GUIDE_AFTER, GUIDE_BEFORE, Recipe
from gnnlab.optimize.training.validation import evaluate
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.memory import profile_memory_usage
from gnnlab.profiling.sampling import quiet
from gnnlab.workloads import planted_table, table_files
from gnnlab.workloads.deepfm import DeepFM
from gnnlab.workloads.tables import Table

BEFORE, AFTER, OURS, LOW = "guide's before", "guide's after", "ours", "ours, low precision"
TABLE = "table on the device"
LOOP, STACKED_LOOP, HALF = "pairwise loop", "stacked loop", "half-square"
FORWARD, TRAINING = "forward", "forward + backward"
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as rows of the table name them


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
    return {
        BEFORE: {"pipeline": "samples", "workers": 4},
        AFTER: {"pipeline": "samples", **(pinned or {"transfer": "dictionary"})},
        "batch indexing": {"pipeline": "batches", **pinned},
        "batch indexing, 2 workers": {"pipeline": "batches", "workers": 2, **pinned},
        TABLE: {"pipeline": "table"},
    }


def input_pipelines(data: Table, *, batch: int, device: str = "cpu") -> dict[str, Callable[[], list[Batch]]]:
    """A pass over the rows in batches on the device, when nobody computes, by each pipeline.

    The guide's "after" comes first, as the baseline that a race runs twice: its "before" starts worker processes anew
    in each pass, as at each epoch of the guide's, and takes many times as long.
    """
    recipes = {name: Recipe(batch_size=batch, device=device, **how) for name, how in pipelines(device).items()}
    indices = order(len(data), 0, 0).split(batch)
    return {name: partial(_pass, data, recipes[name], indices) for name in [AFTER, *(n for n in recipes if n != AFTER)]}


def _pass(data: Table, recipe: Recipe, indices: Sequence[Tensor]) -> list[Batch]:
    with feed(data, recipe) as batches:
        return one_pass(batches, indices)


def transfers(data: Table, batch: int, device: str) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """The columns of a batch to the device: one after the other, or all in one dictionary without waiting."""
    rows = data.rows(torch.arange(min(batch, len(data))))
    columns = {name: column.contiguous() for name, column in zip(rows.field_names, rows.fields.unbind(1), strict=True)}
    columns |= {f"target {name}": column for name, column in rows.targets.items()}
    held = {name: column.pin_memory() for name, column in columns.items()} if device != "cpu" else columns
    return {
        "one by one": partial(_moved, columns, device, False),
        "dictionary": partial(_moved, columns, device, True),
        "dictionary, pinned": partial(_moved, held, device, True),
    }


def _moved(columns: Mapping[str, Tensor], device: str, non_blocking: bool) -> dict[str, Tensor]:
    return {name: column.to(device, non_blocking=non_blocking) for name, column in columns.items()}


def loops(recipe: Recipe, low_precision: str) -> tuple[dict[str, Loop], str | None]:
    """The guide's loop before and after, ours, and ours in low precision (or why this device does not train in it).

    On a CUDA device the guide's "after" pins memory and trains in mixed precision; on a CPU it switches both off. The
    A/A control is ours a second time: its epochs are short, so noise shows in it most.
    """
    amp = {"transfer": "pinned", "precision": "fp16"} if recipe.device != "cpu" else {}
    forms = interactions.FORMS
    found = {
        BEFORE: Loop(replace(recipe, **GUIDE_BEFORE), forms[LOOP]),
        AFTER: Loop(replace(recipe, **(GUIDE_AFTER | amp)), forms[STACKED_LOOP]),
        OURS: Loop(recipe, interactions.pairs),
        CONTROL: Loop(recipe, interactions.pairs),
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


def last_scores(raced: pd.DataFrame, loop: str) -> np.ndarray:
    """The validation score of a loop after the last epoch, (seeds,); empty where it did not run."""
    rows = raced[(raced["loop"] == loop) & (raced["epoch"] == raced["epoch"].max())]
    return rows.sort_values("seed")["score"].to_numpy()


def score_difference(raced: pd.DataFrame, baseline: str, loop: str) -> Estimate | None:
    """Score of a loop minus the baseline's in the last epoch, paired by seed: the mean with Student's interval.

    None where a loop did not run.
    """
    ours, theirs = last_scores(raced, loop), last_scores(raced, baseline)
    return estimates.summary(ours - theirs, "mean") if len(ours) and len(theirs) else None


def step_memory(
    raced: Mapping[str, Loop], data: Table, *, embedding_dim: int = 64, hidden: int = 256, steps: int = 6
) -> pd.DataFrame:
    """MiB that a forward and backward pass of one batch holds above model and batch at its peak: loop, step, mib.

    On CUDA the allocator measures it, for `steps` batches; on a CPU the tensors alive are counted, for one.
    """
    rows = []
    for name, loop in raced.items():
        device, size = loop.recipe.device, loop.recipe.batch_size
        model = loop.model(data, 0, embedding_dim, hidden).to(device)
        objective = Objective(model, loop.recipe)
        for step in range(1 if device == "cpu" else steps):
            batch = data.rows(torch.arange(step * size, (step + 1) * size) % len(data))
            fields, targets = batch.fields.to(device), {n: column.to(device) for n, column in batch.targets.items()}
            if step == 0:
                _backward(objective, fields, targets)  # what is made once
            model.zero_grad()
            held = profile_memory_usage(_backward, objective, fields, targets, device=device)
            rows.append({"loop": name, "step": step, "mib": held.rise_mb})
    return pd.DataFrame(rows)


def _backward(objective: Objective, fields: Tensor, targets: Mapping[str, Tensor]) -> None:
    objective(fields, targets)[0].backward()
