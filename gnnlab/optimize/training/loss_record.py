"""Losses while an epoch runs: kept on the device, read as often as it costs nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gnnlab.optimize.training.process_group import summed

READ_STEPS = 64  # on a device whose losses have to be waited for


class LossRecord:
    """What each micro-batch adds to the loss of its step, step after step, summed over the processes when read.

    On a CPU a step is read before its gradients are used, so that a bad loss leaves the weights as they were; elsewhere
    reading waits for the device, and is done for many steps at once.
    """

    def __init__(self, batches: int, first_step: int, device: str) -> None:
        kind = torch.device(device).type
        self.values = torch.zeros(batches, dtype=torch.float64 if kind == "cpu" else torch.float32, device=device)
        self.read_steps, self.next_step = (1 if kind == "cpu" else READ_STEPS), first_step
        self.written = self.read = 0
        self.ends: list[int] = []  # of the steps not read yet, in `values`

    def add(self, loss: Tensor) -> None:
        self.values[self.written] = loss
        self.written += 1

    def end_step(self) -> None:
        self.ends.append(self.written)

    @property
    def due(self) -> bool:
        return len(self.ends) >= self.read_steps

    def new(self) -> Iterator[tuple[int, list[float]]]:
        """(step, what each of its micro-batches adds) for the steps that ended since the last time."""
        values = iter(summed(self.values[self.read : self.written].clone()).tolist())
        first, ends = self.read, self.ends
        self.read, self.ends = self.written, []
        for end in ends:
            yield self.next_step, list(itertools.islice(values, end - first))
            first, self.next_step = end, self.next_step + 1


def first_bad(values: list[float]) -> int | None:
    """The place of the first value that is NaN or infinite; None where all are numbers."""
    return next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
