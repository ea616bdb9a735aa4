"""Devices for the tests of plans: torch under several names, and some that fail; each is `plan_devices:name`."""

import os
import time
from dataclasses import dataclass
from functools import partial

from gnnlab.stages.torch_devices import TorchDevice

cpu, gpu, npu = (partial(TorchDevice, f"plan_devices:{name}", "CPU", "torch") for name in ("cpu", "gpu", "npu"))


@dataclass(frozen=True)
class Failing(TorchDevice):
    """Computes right for five calls, then acts."""

    act: object = None

    def load(self, *arguments, **conditions):
        loaded, calls = super().load(*arguments, **conditions), iter(range(5))
        right = loaded.run
        loaded.run = lambda values: right(values) if next(calls, None) is not None else self.act()
        return loaded


def _raise():
    raise RuntimeError("out of power")


raises = partial(Failing, "plan_devices:raises", "CPU", "torch", act=_raise)
exits = partial(Failing, "plan_devices:exits", "CPU", "torch", act=partial(os._exit, 7))
hangs = partial(Failing, "plan_devices:hangs", "CPU", "torch", act=partial(time.sleep, 3600))
