"""The folder of a training: what a checkpoint of it holds, and when one may be taken up."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnlab.optimize.training import checkpoints
from gnnlab.optimize.training.checkpoints import Checkpoint, CheckpointError
from gnnlab.optimize.training.engine import Engine
from gnnlab.optimize.training.process_group import all_agree, share
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.optimize.training.state import capture, restore
from gnnlab.workloads.tables import Table

_MAY_CHANGE = ("epochs",)  # of a recipe: more of the same


class RunFolder:
    """Checkpoints of one training in a folder, written by the first process; all processes must see it."""

    def __init__(self, folder: Path, model: nn.Module, training: Table, validation: Table, recipe: Recipe) -> None:
        self.folder = folder
        switches = {**asdict(recipe), "device": torch.device(recipe.device).type}  # processes differ in its number
        self.identity = {
            "model": checkpoints.model_facts(model),
            "recipe": {name: value for name, value in switches.items() if name not in _MAY_CHANGE},
            "training table": checkpoints.table_facts(training),
            "validation table": checkpoints.table_facts(validation),
        }
        self.environment = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": share().world,
        }

    def open(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to go on from, None to start.

        Raises:
            CheckpointError: the folder cannot be made; without `resume`, there is a checkpoint; it is damaged, or of
                another training; or processes see different ones.
        """
        if share().rank == 0:
            self._make()
        if not resume:
            checkpoints.require_none(self.folder)
            return None
        saved = checkpoints.load(self.folder)
        if not all_agree(0 if saved is None else int(saved.facts["sha256"][:12], 16)):
            raise CheckpointError(
                f"the processes see different checkpoints in {self.folder}; give a folder that all of them share"
            )
        if saved is not None:
            checkpoints.require_same(saved.facts, self.identity, self.folder)
            self._note_environment(saved)
        return saved

    def _make(self) -> None:
        """Now, and not when the first epoch is done."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be a folder for checkpoints: {error.strerror}; choose another"
            ) from error

    def _note_environment(self, saved: Checkpoint) -> None:
        before = saved.facts.get("environment") or {}
        pairs = [(name, before.get(name), own) for name, own in self.environment.items()]
        if changed := "; ".join(f"{name} {then}, now {own}" for name, then, own in pairs if then != own):
            text = f"the checkpoint in {self.folder} was made with {changed}: losses may differ in their last bits"
            warnings.warn(text, stacklevel=5)

    def save(self, position: dict[str, Any], losses: Sequence[float], engine: Engine) -> None:
        """Keep where training stands. All processes come here, and leave when the checkpoint stands.

        Raises:
            FileError: in the first process, where the disk refuses; `CheckpointError` in the others.
        """
        tensors = capture(engine.model, engine.optimizer)
        if share().rank:
            if not all_agree(True):
                raise CheckpointError(f"process 0 could not write a checkpoint into {self.folder}; it says why")
            return
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        facts = {"position": position, "scaler": engine.scaler.state_dict(), "environment": self.environment}
        written = False
        try:
            checkpoints.save(self.folder, tensors, {**facts, **self.identity})
            written = True
        finally:
            all_agree(written)

    def restore(self, saved: Checkpoint, engine: Engine) -> dict[str, Any]:
        """Bring the engine to where it stood; gives epoch, step, seconds, rows and losses, as the trainer has them."""
        try:
            position = {name: saved.facts["position"][name] for name in ("epoch", "step", "seconds", "rows")}
            restore(engine.model, engine.optimizer, saved.tensors)
            engine.scaler.load_state_dict(saved.facts["scaler"])
            return {**position, "losses": saved.tensors["losses"].tolist()}
        except (KeyError, TypeError) as error:
            raise checkpoints.damaged(self.folder, f"it lacks {error}") from error
