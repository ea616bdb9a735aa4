"""Devices that misbehave, each is `fake_devices:name`. They compute as torch:CPU does, but for what their name says."""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import misbehaving

from gnnlab.stages.devices import Availability
from gnnlab.stages.torch_devices import TorchDevice

USABLE = Availability(True, chip="fake", version="1")


@dataclass(frozen=True)
class Fake(TorchDevice):
    """`act()` when it is probed and loaded; `about` is what its probe gives."""

    act: Callable = misbehaving.behave
    about: Availability | None = USABLE

    def probe(self):
        self.act()
        return self.about

    def load(self, *arguments, **conditions):
        self.act()
        return super().load(*arguments, **conditions)


class WrongLater(Fake):
    """Right in its first call only."""

    def load(self, *arguments, **conditions):
        loaded, calls = super().load(*arguments, **conditions), itertools.count()

        def run(values):
            wrong = next(calls) > 0
            return {name: array + wrong for name, array in loaded.run(values).items()}

        return replace(loaded, bind=None, run=run)


class HeldOnce(Fake):
    """Hangs at its first measurement, after it made the file that FAKE_DEVICE_HELD names."""

    def load(self, *arguments, **conditions):
        held = Path(os.environ["FAKE_DEVICE_HELD"])
        if not held.exists():
            held.touch()
            misbehaving.hang()
        return super().load(*arguments, **conditions)


behaves = partial(Fake, "fake", "CPU", "fake")
npu, held_once = partial(Fake, "fake", "NPU", "fake"), partial(HeldOnce, "held", "NPU", "fake")
wrong_later, probes_to_nothing = partial(WrongLater, "fake", "CPU", "fake"), partial(behaves, about=None)
hangs, crashes = partial(behaves, act=misbehaving.hang), partial(behaves, act=misbehaving.crash)
raises, exits_at_once = partial(behaves, act=misbehaving.fail), partial(behaves, act=misbehaving.leave_at_once)
runs_out_of_memory = partial(behaves, act=misbehaving.run_out_of_memory)
