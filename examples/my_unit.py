"""A processing unit of one's own: `probe` says whether it can be used here, `load` makes some stages of a layer ready.

This one computes the stages with torch, one after the other. A unit for a device of yours copies the inputs to it,
runs there, and copies the results back: all of that is timed.
"""

from dataclasses import dataclass

import torch

from gnnlab.units.unit import Availability, Loaded, Unit


@dataclass(frozen=True)
class StageByStage(Unit):
    def probe(self):
        return Availability(True, device="this CPU", version=f"torch {torch.__version__}")

    def load(self, layer, first, last, artefact, *, nodes, edges, threads, precision):
        torch.set_num_threads(threads or torch.get_num_threads())
        blocks = [layer.block(number, number) for number in range(first, last + 1)]
        wanted = layer.block(first, last).writes  # what later stages read

        def run(values):  # numpy arrays by name in, numpy arrays by name out
            known = {name: torch.from_numpy(array) for name, array in values.items()}
            with torch.inference_mode():
                for block in blocks:
                    known |= zip(block.writes, block(*(known[name] for name in block.reads)), strict=True)
            return {name: known[name].numpy() for name in wanted}

        return Loaded(run, "this CPU", f"torch {torch.__version__}")


def make():
    return StageByStage("stage-by-stage", "CPU", "torch")
