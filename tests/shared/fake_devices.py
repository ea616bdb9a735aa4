"""Devices that misbehave, each is `fake_devices:name`. They compute as torch:CPU does, but for what their name says."""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import misbehaving

from gnnlab.stages.devices import Availability
from gnnlab.stages.torch_devices import TorchDevice


@dataclass(frozen=True)
class Fake(TorchDevice):
    """`act()` when it is probed and loaded; `answer(number, results)` is what its call of that number gives."""

    act: Callable = misbehaving.behave
    answer: Callable | None = None

    def probe(self):
        self.act()
        return Availability(True, chip="fake", version="1")

    def load(self, *arguments, **conditions):
        self.act()
        loaded = super().load(*arguments, **conditions)
        if self.answer is None:
            return loaded
        numbers = itertools.count(1)
        return replace(loaded, bind=None, run=lambda values: self.answer(next(numbers), loaded.run(values)))


def fake(act=misbehaving.behave, answer=None, processor="CPU"):
    return partial(Fake, "fake", processor, "fake", act=act, answer=answer)


def off_by_one(results):
    return {name: array + 1 for name, array in results.items()}


behaves, gpu, npu = fake(), fake(processor="GPU"), fake(processor="NPU")
hangs, crashes, exits_at_once = map(fake, (misbehaving.hang, misbehaving.crash, misbehaving.leave_at_once))
raises, chatters, runs_out_of_memory = map(fake, (misbehaving.fail, misbehaving.chatter, misbehaving.run_out_of_memory))
lies = fake(answer=lambda number, results: off_by_one(results))
wrong_later = fake(answer=lambda number, results: off_by_one(results) if number > 1 else results)
sometimes_wrong = fake(answer=lambda number, results: off_by_one(results) if number % 5 == 0 else results)
crashes_later = fake(answer=lambda number, results: misbehaving.crash() if number > 3 else results)


def hangs_in_its_factory():
    time.sleep(3600)


@dataclass(frozen=True)
class ProbesToNothing(Fake):
    def probe(self):
        return None


probes_to_nothing = partial(ProbesToNothing, "fake", "CPU", "fake")


@dataclass(frozen=True)
class HeldOnce(Fake):
    """An NPU that hangs at its first measurement, after it made the file that FAKE_DEVICE_HELD names."""

    def load(self, *arguments, **conditions):
        held = Path(os.environ["FAKE_DEVICE_HELD"])
        if not held.exists():
            held.touch()
            time.sleep(600)
        return super().load(*arguments, **conditions)


held_once = partial(HeldOnce, "held", "NPU", "fake")
