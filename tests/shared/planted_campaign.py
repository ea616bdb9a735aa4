"""A campaign whose times are planted, for the tests of what is made of it: a folder as notebook 05 leaves it."""

import dataclasses
from contextlib import AbstractContextManager

import numpy as np

from gnnlab.campaign import checkpoints
from gnnlab.campaign.campaign import LocalUnits
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.campaign.checkpoints import record
from gnnlab.prediction.planted_truth import Truth
from gnnlab.units.unit import Availability
from gnnlab.workloads.graphsage import sage

FEATURES = 64
LAYER = sage(FEATURES)
SIZES = [(n, e) for n in (100, 200, 400) for e in (400, 800, 1600, 3200)]
BLOCKS = [*((n, n) for n in LAYER.numbers), (1, 5)]
UNITS = ("torch:CPU", "onnxruntime:CPU")
TRUTH = Truth(launch_ms=0.02)


def outcome(cell, half=0.005):
    """Launch, bytes and FLOPs of its block; onnxruntime takes twice as long as torch."""
    moved = LAYER.block(cell.first, cell.last).bytes_moved(cell.nodes, cell.edges)
    ms = TRUTH.compute_ms(LAYER.flops(cell.first, cell.last, cell.nodes, cell.edges)) + TRUTH.moving_ms(moved)
    ms *= 2 if cell.unit == "onnxruntime:CPU" else 1
    return timed(ms, half)


def timed(ms, half=0.005, status="measured"):
    samples = tuple((ms * np.linspace(1 - half, 1 + half, 25)).tolist())
    about = {"parity_error": 0.0, "device": "planted", "precision": "float32", "threads": 1}
    ci = (ms * (1 - half), ms * (1 + half))
    return CellResult(status, None, samples, ms, ci, ms * half, **about)


def no_time(status, reason):
    """The fields of an outcome without a time."""
    none = dict.fromkeys(("median_ms", "ci_ms", "std_ms"))
    return {"status": status, "reason": reason, "samples_ms": (), **none}


def cells(sizes=SIZES, blocks=BLOCKS, units=UNITS):
    return [Cell("sage", FEATURES, *size, *block, unit) for size in sizes for block in blocks for unit in units]


def leave(folder, changes=lambda cell: {}, answer=outcome, cells=None):
    """Write the campaign; `changes` of a cell replace fields of its outcome."""
    asked = globals()["cells"]() if cells is None else cells
    answers = [record(c, dataclasses.replace(answer(c), **changes(c))) for c in asked]
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write(folder, "cpugpu", answers, "planted")
    checkpoints.merge(folder)
    return folder


class PlantedUnits(AbstractContextManager):
    """Answers as `LocalUnits` does, at once."""

    call = LocalUnits.call

    def __init__(self, units, settings, timeout_s):
        self.settings = settings
        self.available = {unit: Availability(True, device="planted", version="1") for unit in units}

    def __call__(self, cells):
        for cell in cells:
            yield record(cell, outcome(cell), took_s=0.001)

    def __exit__(self, *exception):
        pass
