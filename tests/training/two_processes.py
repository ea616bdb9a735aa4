"""What torchrun starts for the tests: trains in every way that has an equal in one process, and writes what came out.

`torchrun ... two_processes.py FOLDER`
"""

import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from training_cases import model, tables

from gnnlab.errors import GnnlabError
from gnnlab.training import checkpoints
from gnnlab.training.checkpoints import capture
from gnnlab.training.loop import train
from gnnlab.training.process_group import processes, share
from gnnlab.training.recipe import TrainingRecipe
from gnnlab.training.steps import Stepper

# 225 rows: by 28 the last batch has one row, which one of two processes computes; by 50, 3 at a time, it has 25
PLAIN = TrainingRecipe(batch_size=28, epochs=2, learning_rate=0.01)
RECIPES = {
    "plain": PLAIN,
    "accumulated": replace(PLAIN, batch_size=50, accumulate=3, clip_norm=0.5),
    "recomputed": replace(PLAIN, checkpointing=True, epochs=1),
    "sharded": replace(PLAIN, batch_size=75, sharded=True),
    "sharded, accumulated": replace(PLAIN, batch_size=50, accumulate=3, clip_norm=0.5, epochs=1, sharded=True),
}


def outcome(recipe, **options):
    """Trains with dropout off and from rank's own weights: those of process 0 must reach the others."""
    training, validation = tables()
    made = model(training, dropout=0, seed=share().rank)
    history = train(made, training, validation, recipe, **options)
    state = capture(made, torch.optim.AdamW(made.parameters()))  # whole, also of a sharded model
    rows = [{k: row[k] for k in ("train_loss", "validation_loss", "score")} for row in history.epochs]
    return {"losses": history.losses, "rows": rows, "weights": {k: t.tolist() for k, t in state.items()}}


def interrupted(recipe, folder):
    """Stops after one epoch, goes on from its checkpoint."""
    outcome(replace(recipe, epochs=1), folder=folder)
    return outcome(recipe, folder=folder, resume=True)


def error(action):
    try:
        action()
    except GnnlabError as caught:
        return f"{type(caught).__name__}: {caught}"
    return None


def main(folder):
    with processes("cpu"):
        found = {name: outcome(recipe) for name, recipe in RECIPES.items()}
        for name in ("plain", "sharded"):
            found[f"{name}, resumed"] = interrupted(RECIPES[name], folder / name)
        own = folder / f"of process {share().rank}"  # process 1 finds no checkpoint in its folder
        outcome(replace(PLAIN, epochs=1), folder=own)
        again = partial(outcome, PLAIN, folder=own, resume=True)
        errors = {"folders": error(again), "nan": error(bad_loss), "disk": error(partial(full_disk, folder / "full"))}
        (folder / f"errors-{share().rank}.json").write_text(json.dumps(errors))
        if share().rank == 0:
            (folder / "found.json").write_text(json.dumps(found))


def bad_loss():
    """A loss that is bad in process 1 alone stops both, before its gradients are used."""
    backward = Stepper.backward

    steps = itertools.count(1)

    def spoiled(stepper, batches, record):
        backward(stepper, batches, record)
        if share().rank == 1 and next(steps) == 3:
            record.steps[-1][-1] = torch.tensor(float("nan"))

    Stepper.backward = spoiled
    try:
        outcome(PLAIN)
    finally:
        Stepper.backward = backward


def full_disk(folder):
    def refuse(*arguments):
        raise GnnlabError("no space left")

    save, checkpoints.save = checkpoints.save, refuse
    try:
        outcome(PLAIN, folder=folder)
    finally:
        checkpoints.save = save


if __name__ == "__main__":
    main(Path(sys.argv[1]))
