"""Units that misbehave, for the tests of workers; each is `fake_units:name`."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import misbehaving

from gnnlab.units.torch_units import TorchUnit
from gnnlab.units.unit import Availability, Unit


@dataclass(frozen=True)
class Fake(Unit):
    act: object = None

    def probe(self):
        self.act()
        return Availability(True)

    def load(self, layer, first, last, artefact, **conditions):
        self.act()
        like = TorchUnit("torch:CPU", "CPU", "torch")
        return like.load(layer, first, last, **conditions)


def fake(act):
    return lambda: Fake("fake", "CPU", "fake", act=act)


hangs, exits_at_once = map(fake, (misbehaving.hang, misbehaving.leave_at_once))
raises, chatters = map(fake, (misbehaving.fail, misbehaving.chatter))
runs_out_of_memory, behaves = fake(misbehaving.run_out_of_memory), fake(misbehaving.behave)


@dataclass(frozen=True)
class Liar(Fake):
    """Computes something else than it should."""

    def load(self, *arguments, **conditions):
        loaded = super().load(*arguments, **conditions)
        right = loaded.run
        loaded.run = lambda values: {name: array + 1 for name, array in right(values).items()}
        return loaded


def lies():
    return Liar("lies", "CPU", "fake", act=misbehaving.behave)


@dataclass(frozen=True)
class HeldOnce(Fake):
    """An NPU that hangs at its first cell, after it made the file that FAKE_UNIT_HELD names."""

    def load(self, *arguments, **conditions):
        held = Path(os.environ["FAKE_UNIT_HELD"])
        if not held.exists():
            held.touch()
            time.sleep(600)
        return super().load(*arguments, **conditions)


def held_once():
    return HeldOnce("held", "NPU", "fake", act=misbehaving.behave)
