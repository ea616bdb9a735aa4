"""Units for the tests of plans: torch under several names, and units that fail; each is `plan_units:name`."""

import os
import time
from dataclasses import dataclass

from gnnlab.units.torch_units import TorchUnit


@dataclass(frozen=True)
class Failing(TorchUnit):
    """Computes right until the call of this number, then does something else."""

    act: object = None
    at: int = 5

    def load(self, *arguments, **conditions):
        loaded, calls = super().load(*arguments, **conditions), [0]
        right = loaded.run

        def run(values):
            calls[0] += 1
            if calls[0] > self.at:
                self.act()
            return right(values)

        loaded.run = run
        return loaded


def cpu():
    return TorchUnit("plan_units:cpu", "CPU", "torch")


def gpu():
    return TorchUnit("plan_units:gpu", "CPU", "torch")


def npu():
    return TorchUnit("plan_units:npu", "CPU", "torch")


def _raise():
    raise RuntimeError("out of power")


def raises():
    return Failing("plan_units:raises", "CPU", "torch", act=_raise)


def exits():
    return Failing("plan_units:exits", "CPU", "torch", act=lambda: os._exit(7))


def hangs():
    return Failing("plan_units:hangs", "CPU", "torch", act=lambda: time.sleep(3600))
