"""A training that kills itself: `python killed_training.py FOLDER POINT COUNT`.

At the COUNT-th time that it comes to POINT: "tensors" (half of them written) or "pointer" (tensors written, the pointer
not yet).
"""

import os
import signal
import sys
from pathlib import Path

from training_cases import model, tables

from gnnlab.training import checkpoints
from gnnlab.training.loop import train
from gnnlab.training.recipe import TrainingRecipe

RECIPE = TrainingRecipe(batch_size=32, accumulate=2, epochs=4, learning_rate=0.01, clip_norm=1.0)
EVERY = 2  # steps between checkpoints; an epoch has 4


def killer(point, count, original):
    calls = iter(range(1, 10**6))

    def call(*arguments, **options):
        if next(calls) == count:
            if point == "tensors":
                path = arguments[0]
                path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return original(*arguments, **options)

    return call


def main(folder, point, count):
    name = {"tensors": "write_atomically", "pointer": "write_sealed"}[point]
    setattr(checkpoints, name, killer(point, int(count), getattr(checkpoints, name)))
    training, validation = tables()
    train(model(training), training, validation, RECIPE, folder=Path(folder), resume=True, checkpoint_steps=EVERY)


if __name__ == "__main__":
    main(*sys.argv[1:])
