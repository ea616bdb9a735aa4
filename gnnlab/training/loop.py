"""The training loop: what it computes depends on the recipe alone, and it can be killed at any moment and taken up.

    history = train(model, training, validation, TrainingRecipe(epochs=20), folder=Path("run"), resume=True)
    history.table                                        # a row an epoch

Order and dropout depend on seed, epoch, step and process alone, so a run that was killed and taken up again gives bit
by bit the losses of one that was not.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.progress import progress
from gnnlab.training.checkpoints import RunFolder
from gnnlab.training.process_group import share
from gnnlab.training.recipe import TrainingRecipe
from gnnlab.training.steps import LossRecord, Stepper, evaluate, order, untrainable
from gnnlab.workloads.tables import FeatureTable

EpochRow = dict[str, Any]
MIB = 2**20


@dataclass(frozen=True)
class History:
    """What a training did. `epochs`: a row each; `losses`: one a step, the mean over its rows; `stopped`: why it ended.

    A row has epoch (from 1), train_loss, validation_loss, score (mean over targets) and score.<target> (accuracy, or
    AUROC for labels) on the validation table, labels_left_out (without AUROC), seconds (training), validation_seconds,
    samples_per_s (training), peak_memory_mib (CUDA: of the allocator in this epoch; CPU: of the process so far).
    """

    epochs: tuple[EpochRow, ...]
    losses: tuple[float, ...]
    stopped: str

    @cached_property
    def table(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.epochs))

    @property
    def best(self) -> EpochRow:
        """The epoch with the best validation score, the first of equals."""
        return max(self.epochs, key=lambda row: row["score"])


def train(
    model: nn.Module,
    training: FeatureTable,
    validation: FeatureTable,
    recipe: TrainingRecipe,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_steps: int = 0,
    on_epoch: Callable[[EpochRow], None] | None = None,
) -> History:
    """Train `model` in place, on the device of the recipe; afterwards it has the weights of the last epoch.

    With a `folder` there is a checkpoint after each epoch, and after every `checkpoint_steps` steps within it. With
    `resume` training goes on from the checkpoint, or starts where there is none; `epochs` may then be more than
    before. `on_epoch` is called with each row of the history. In a terminal there is a bar.
    Raises `GnnlabError`: model, tables and recipe do not go together; a loss is not finite (epoch, step and batch
    named); the checkpoint is damaged, of something else, or would be overwritten: it is left as it is.
    """
    whole_numbers(0, checkpoint_steps=checkpoint_steps)
    with TrainingRun(model, training, validation, recipe, folder=folder, resume=resume) as run:
        return run.finish(checkpoint_steps, on_epoch)


class TrainingRun:
    """A training that stands between two steps; within `with` it can go on.

    `epoch` and `step` are those that come next, from 0; `rows` and `losses` what was done before.
    """

    def __init__(
        self,
        model: nn.Module,
        training: FeatureTable,
        validation: FeatureTable,
        recipe: TrainingRecipe,
        *,
        folder: Path | None = None,
        resume: bool = False,
    ) -> None:
        self.share = share()
        for problem in _problems(model, training, validation, recipe, self.share.world):
            raise GnnlabError(problem)
        if resume and folder is None:
            raise GnnlabError("resume=True takes up a checkpoint: give the folder that holds it")
        self.training, self.validation, self.recipe = training, validation, recipe
        self.epoch = self.step = 0
        self.rows: list[EpochRow] = []
        self.losses: list[float] = []
        self.seconds = 0.0  # that the epoch in work took so far, or the last one
        self.folder = None if folder is None else RunFolder(Path(folder), model, training, validation, recipe)
        try:
            saved = None if self.folder is None else self.folder.open(resume)
            self.stepper = Stepper(model, training, recipe)
            if saved is not None:
                stood = self.folder.restore(saved, self.stepper)
                self.epoch, self.step, self.seconds = stood["epoch"], stood["step"], stood["seconds"]
                self.rows, self.losses = stood["rows"], stood["losses"]
        except BaseException:
            self._let_go()
            raise

    def __enter__(self) -> TrainingRun:
        self.stepper.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._let_go()
        self.stepper.__exit__(*exception)

    def _let_go(self) -> None:
        if self.folder is not None:
            self.folder.close()

    def finish(self, checkpoint_steps: int = 0, on_epoch: Callable[[EpochRow], None] | None = None) -> History:
        """Train to the end: all epochs, or until patience is over."""
        steps = -(-len(self.training) // self.recipe.step_rows)
        first = self.share.rank == 0
        behind = self.epoch * steps + self.step
        with progress("training steps", self.recipe.epochs * steps, done=behind, shown=first) as advance:
            while (stopped := self._stopped()) is None:
                row = self._row(self.train_epoch(checkpoint_steps, advance))
                if on_epoch is not None and first:
                    on_epoch(row)
        return History(tuple(self.rows), tuple(self.losses), stopped)

    def _stopped(self) -> str | None:
        """Why training is over, from what was done; None where it is not."""
        if self.recipe.patience and self.rows:
            best = max(range(len(self.rows)), key=lambda place: self.rows[place]["score"])
            if len(self.rows) - 1 - best >= self.recipe.patience:
                return f"no better validation score than that of epoch {best + 1} for {self.recipe.patience} epochs"
        return f"all {self.recipe.epochs} epochs done" if self.epoch >= self.recipe.epochs else None

    def train_epoch(self, checkpoint_steps: int = 0, advance: Callable[[], None] = lambda: None) -> float:
        """The steps of the current epoch that are to come, then the next epoch is current. Gives the mean loss."""
        begun = time.perf_counter() - (self.seconds if self.step else 0.0)  # with what it took before it was cut
        if self.stepper.device.type == "cuda":  # the peak of a process cannot be forgotten
            torch.cuda.reset_peak_memory_stats(self.stepper.device)
        steps, record = self._steps(), LossRecord(self.step, self.stepper.device)
        for place in range(self.step, len(steps)):
            last = place + 1 == len(steps)
            kept = checkpoint_steps and (place + 1) % checkpoint_steps == 0 and not last
            self.stepper.seed(self.epoch, place)
            self.stepper.backward(steps[place], record)
            if kept or last or record.due:
                self._read(record)
            self.stepper.update()
            self.step = place + 1
            if kept:
                self.seconds = time.perf_counter() - begun
                self._save()
            advance()
        self.stepper.wait()
        self.seconds = time.perf_counter() - begun
        rows = [sum(map(len, step)) for step in steps]
        losses = self.losses[-len(steps) :]
        self.epoch, self.step = self.epoch + 1, 0
        return sum(loss * count for loss, count in zip(losses, rows, strict=True)) / sum(rows)

    def _steps(self) -> list[tuple[Tensor, ...]]:
        """Rows of the current epoch's micro-batches, by step; the last ones may be smaller, or fewer."""
        batches = order(len(self.training), self.recipe.seed, self.epoch).split(self.recipe.batch_size)
        size = self.recipe.accumulate
        return [batches[first : first + size] for first in range(0, len(batches), size)]

    def _read(self, record: LossRecord) -> None:
        for step, values in record.new():
            bad = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
            if bad is not None:
                raise GnnlabError(
                    f"the loss is {values[bad]} in epoch {self.epoch + 1}, step {step + 1}, batch "
                    f"{step * self.recipe.accumulate + bad + 1} of the epoch; lower learning_rate "
                    f"({self.recipe.learning_rate:g}), set clip_norm or train in fp32"
                )
            self.losses.append(sum(values))

    def _row(self, train_loss: float) -> EpochRow:
        """Validate, note the epoch, keep a checkpoint."""
        begun = time.perf_counter()
        found = evaluate(self.stepper.objective, self.validation, self.share)
        row = {
            "epoch": self.epoch,
            "train_loss": train_loss,
            **found,
            "seconds": self.seconds,
            "validation_seconds": time.perf_counter() - begun,
            "samples_per_s": len(self.training) / self.seconds,
            "peak_memory_mib": _peak_mib(self.stepper.device),
        }
        self.rows.append(row)
        self._save()
        return row

    def _save(self) -> None:
        if self.folder is not None:
            position = {"epoch": self.epoch, "step": self.step, "seconds": self.seconds, "rows": self.rows}
            self.folder.save(position, self.losses, self.stepper)


def _peak_mib(device: torch.device) -> float:
    """CUDA: of the allocator since the epoch began. CPU: the largest resident set of this process since it started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / MIB
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


# ---- what training can be given, said before anything is computed ----------------------------------------------------


def _problems(
    model: nn.Module, training: FeatureTable, validation: FeatureTable, recipe: TrainingRecipe, processes: int
) -> Iterable[str]:
    missing = [name for name in ("targets", "cardinalities", "log_variances") if not hasattr(model, name)]
    if missing:
        yield f"{type(model).__name__} has no {', '.join(missing)}; a model to train has them as DeepFM does"
    for name, table in (("training", training), ("validation", validation)):
        yield from _misfits(model, name, table)
    if recipe.step_rows > len(training):
        yield (
            f"a step takes batch_size {recipe.batch_size} x accumulate {recipe.accumulate} = {recipe.step_rows} rows, "
            f"the training table has {len(training)}; take a smaller batch"
        )
    yield from untrainable(training, validation)
    if recipe.checkpointing and not isinstance(getattr(model, "deep", None), nn.Module):
        yield f"checkpointing=True is for a model with a branch `deep`, {type(model).__name__} has none"
    if recipe.sharded and processes == 1:
        yield "sharded=True splits a model over processes, here is one; start several by torchrun or set sharded=False"


def _misfits(model: nn.Module, name: str, table: FeatureTable) -> Iterable[str]:
    if tuple(model.targets) != tuple(table.specs):
        own, there = (
            ", ".join(f"{spec.name} ({spec.size} {spec.kind})" for spec in specs)
            for specs in (model.targets, table.specs)
        )
        yield f"the model predicts {own}, the {name} table holds {there}; make them the same"
    if len(model.cardinalities) != len(table.cardinalities):
        given = f"the model has {len(model.cardinalities)} fields, the {name} table {len(table.cardinalities)}"
        yield f"{given}; make them the same"
    for field, own, size in zip(table.field_names, model.cardinalities, table.cardinalities, strict=False):
        if size > own:
            yield f"field {field!r} has {size} categories in the {name} table, {own} in the model; make it for {size}"
