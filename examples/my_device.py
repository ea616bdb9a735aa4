"""A device of one's own: `probe` says whether it can be used here, `load` makes some stages of a layer ready.

This one computes the stages with torch, one after the other. A device with memory of its own copies the inputs to it in
`run`, computes there, and copies the results back: all of that is timed.
"""

from dataclasses import dataclass
from functools import partial

import torch

from gnnlab.stages.devices import Availability, Device, Loaded


@dataclass(frozen=True)
class StageByStage(Device):
    def probe(self):
        return Availability(True, chip="this CPU", version=f"torch {torch.__version__}")

    def load(self, layer, first, last, model, *, nodes, edges, threads, precision):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        stages, written = layer.block(first, last).stages, layer.block(first, last).writes

        def run(values):  # numpy arrays by name in, numpy arrays by name out
            known = {name: torch.tensor(array) for name, array in values.items()}
            with torch.inference_mode():
                for stage in stages:
                    known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
            return {name: known[name].numpy() for name in written}

        close = partial(torch.set_num_threads, before)
        return Loaded(run, "this CPU", f"torch {torch.__version__}", close=close)


def make():
    return StageByStage("stage-by-stage", "CPU", "torch")
