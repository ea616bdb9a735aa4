"""One training loop with switches: what each of them buys is measured on the same loop.

    history = train(model, training, validation, Recipe(epochs=20), folder=Path("run"), resume=True)
    history.table                                        # a row an epoch

    with Trainer(model, training, validation, recipe) as trainer:      # for measuring
        trainer.train_epoch()

Order and dropout depend on seed, epoch, step and process alone. So every input pipeline trains the same, and a run that
was killed and taken up again gives bit by bit the losses of one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training.checks import check
from gnnlab.optimize.training.engine import Engine
from gnnlab.optimize.training.input_pipeline import Batch, feed, order
from gnnlab.optimize.training.loss_record import LossRecord, first_bad
from gnnlab.optimize.training.peak_memory import forget_peak, peak_memory_mib
from gnnlab.optimize.training.process_group import share
from gnnlab.optimize.training.progress import bar
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.optimize.training.run_folder import RunFolder
from gnnlab.optimize.training.validation import evaluate
from gnnlab.workloads.tables import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class History:
    """What a training did. `epochs`: a row each; `losses`: one a step, the mean over its rows; `stopped`: why it ended.

    A row has epoch (from 1), train_loss, validation_loss, score (mean over targets) and score.<target> (accuracy, or
    AUROC for labels) on the validation table, labels_left_out (without AUROC), seconds (training), validation_seconds,
    samples_per_s (training), peak_memory_mib (CUDA: of the allocator in this epoch; CPU: of the process so far).
    """

    epochs: tuple[Row, ...]
    losses: tuple[float, ...]
    stopped: str

    @cached_property
    def table(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.epochs))

    @property
    def best(self) -> Row:
        """The epoch with the best validation score, the first of equals."""
        return max(self.epochs, key=lambda row: row["score"])


def train(
    model: nn.Module,
    training: Table,
    validation: Table,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_steps: int = 0,
    on_epoch: Callable[[Row], None] | None = None,
) -> History:
    """Train `model` in place, on the device of the recipe; afterwards it has the weights of the last epoch.

    With a `folder` there is a checkpoint after each epoch, and after every `checkpoint_steps` steps within it. With
    `resume` training goes on from the checkpoint, or starts where there is none; `epochs` may then be more than
    before. `on_epoch` is called with each row of the history. In a terminal there is a bar.

    Raises:
        OptimizeError: model, tables and recipe do not go together; a loss is not finite (epoch, step and batch named).
        CheckpointError: the checkpoint is damaged, of something else, or would be overwritten; it is left as it is.
    """
    with Trainer(model, training, validation, recipe, folder=folder, resume=resume) as trainer:
        return trainer.run(checkpoint_steps, on_epoch)


class Trainer:
    """A training that stands between two steps; within `with` it can go on.

    `epoch` and `step` are those that come next, from 0; `rows` and `losses` what was done before.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Table,
        validation: Table,
        recipe: Recipe,
        *,
        folder: Path | None = None,
        resume: bool = False,
    ) -> None:
        self.share = share()
        check(model, training, validation, recipe, self.share.world)
        if resume and folder is None:
            raise OptimizeError("resume=True takes up a checkpoint: give the folder that holds it")
        self.training, self.validation, self.recipe = training, validation, recipe
        self.epoch = self.step = 0
        self.rows: list[Row] = []
        self.losses: list[float] = []
        self.seconds = 0.0  # that the epoch in work took so far, or the last one
        self.folder = None if folder is None else RunFolder(Path(folder), model, training, validation, recipe)
        saved = None if self.folder is None else self.folder.open(resume)
        self.engine = Engine(model, recipe)
        if saved is not None:
            stood = self.folder.restore(saved, self.engine)
            self.epoch, self.step, self.seconds = stood["epoch"], stood["step"], stood["seconds"]
            self.rows, self.losses = stood["rows"], stood["losses"]

    def __enter__(self) -> Trainer:
        with ExitStack() as stack:
            stack.enter_context(self.engine)
            self._batches = stack.enter_context(feed(self.training, self.recipe))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, checkpoint_steps: int = 0, on_epoch: Callable[[Row], None] | None = None) -> History:
        """Train to the end: all epochs, or until patience is over."""
        if not isinstance(checkpoint_steps, int) or isinstance(checkpoint_steps, bool) or checkpoint_steps < 0:
            raise OptimizeError(f"checkpoint_steps must be an integer of 0 or more, got {checkpoint_steps!r}")
        steps = -(-len(self.training) // self.recipe.step_rows)
        first = self.share.rank == 0
        with bar(self.recipe.epochs * steps, self.epoch * steps + self.step, shown=first) as advance:
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
        forget_peak(self.recipe.device)
        steps = self._steps()
        batches = self._batches([self.share.of(batch) for step in steps[self.step :] for batch in step])
        record = LossRecord(sum(map(len, steps[self.step :])), self.step, self.recipe.device)
        for place in range(self.step, len(steps)):
            kept = checkpoint_steps and (place + 1) % checkpoint_steps == 0 and place + 1 < len(steps)
            self._train_step(place, steps[place], batches, record, read=kept or place + 1 == len(steps))
            self.step = place + 1
            if kept:
                self.seconds = time.perf_counter() - begun
                self._save()
            advance()
        self.engine.wait()
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

    def _train_step(
        self, place: int, step: tuple[Tensor, ...], batches: Iterator[Batch], record: LossRecord, *, read: bool
    ) -> None:
        self.engine.seed(self.epoch, place)
        self.engine.backward(batches, [len(batch) for batch in step], record)
        if read or record.due:
            self._read(record)
        self.engine.update()

    def _read(self, record: LossRecord) -> None:
        for step, values in record.new():
            if (bad := first_bad(values)) is not None:
                raise OptimizeError(
                    f"the loss is {values[bad]} in epoch {self.epoch + 1}, step {step + 1}, batch "
                    f"{step * self.recipe.accumulate + bad + 1} of the epoch; lower learning_rate "
                    f"({self.recipe.learning_rate:g}), set clip_norm or train in fp32"
                )
            self.losses.append(sum(values))

    def _row(self, train_loss: float) -> Row:
        """Validate, note the epoch, keep a checkpoint."""
        begun = time.perf_counter()
        found = evaluate(self.engine.objective, self.validation, self.share)
        row = {
            "epoch": self.epoch,
            "train_loss": train_loss,
            **found,
            "seconds": self.seconds,
            "validation_seconds": time.perf_counter() - begun,
            "samples_per_s": len(self.training) / self.seconds,
            "peak_memory_mib": peak_memory_mib(self.recipe.device),
        }
        self.rows.append(row)
        self._save()
        return row

    def _save(self) -> None:
        if self.folder is not None:
            position = {"epoch": self.epoch, "step": self.step, "seconds": self.seconds, "rows": self.rows}
            self.folder.save(position, self.losses, self.engine)
