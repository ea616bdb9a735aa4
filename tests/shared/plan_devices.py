"""Devices for the tests of plans: torch under several names, and some that fail; each is `plan_devices:name`."""

import os
import time
from dataclasses import dataclass

from gnnlab.stages.torch_devices import TorchDevice


@dataclass(frozen=True)
class Failing(TorchDevice):
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


def _raise():
    raise RuntimeError("out of power")


def cpu():
    return TorchDevice("plan_devices:cpu", "CPU", "torch")


def gpu():
    return TorchDevice("plan_devices:gpu", "CPU", "torch")


def npu():
    return TorchDevice("plan_devices:npu", "CPU", "torch")


def raises():
    return Failing("plan_devices:raises", "CPU", "torch", act=_raise)


def exits():
    return Failing("plan_devices:exits", "CPU", "torch", act=lambda: os._exit(7))


def hangs():
    return Failing("plan_devices:hangs", "CPU", "torch", act=lambda: time.sleep(3600))
