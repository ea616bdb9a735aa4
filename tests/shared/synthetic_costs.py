"""Times made up by a formula, for the tests of plans."""

from dataclasses import replace
from types import SimpleNamespace

from gnnlab.prediction.predictor import Prediction
from gnnlab.workloads.graphsage import sage

UNITS = ("CPU", "GPU", "NPU")


class Synthetic:
    """ms = launch + bytes / bandwidth + FLOPs / peak of a block; each unit its own numbers, all blocks known but those
    named in `lacking`."""

    def __init__(self, units=UNITS, layer=None, lacking=(), spread=0.1, speeds=None):
        self.units, self.layer = tuple(units), layer or sage(16)
        self.lacking, self.spread = set(lacking), spread
        self.speeds = speeds or {unit: 1 + place for place, unit in enumerate(self.units)}

    def blocks(self, unit):
        every = {(a, b) for a in self.layer.numbers for b in self.layer.numbers if a <= b}
        return every - {(first, last) for name, first, last in self.lacking if name == unit}

    def time_ms(self, unit, first, last, nodes, edges):
        speed = self.speeds[unit]
        moved = self.layer.block(first, last).bytes_moved(nodes, edges)
        return 0.02 * speed + moved / (1e6 * speed) + self.layer.flops(first, last, nodes, edges) * speed / 4e7

    def predict(self, *key):
        ms = self.time_ms(*key)
        return Prediction(ms, ms * (1 - self.spread), ms * (1 + self.spread), "interpolated")

    def transfer_ms(self, source, target, size_bytes):
        return 0.0 if source == target else 0.01 + size_bytes / 5e6


class Predicted:
    """`Synthetic` times in the form of a fitted predictor, measured at two sizes, with transfers that are a line."""

    def __init__(self, units, layer):
        self.costs, self.units, self.layer = Synthetic(units, layer), tuple(units), layer
        self.measured = {
            (u, *block): dict.fromkeys([(20, 40), (80, 80), (80, 300)], (1, 1, 1))
            for u in units
            for block in layer.blocks()
        }

    def blocks(self, unit):
        return self.costs.blocks(unit)

    def predict(self, *key):
        return replace(self.costs.predict(*key), origin="extrapolated" if key[3] > 80 else "interpolated")


class Line:
    """Transfers whose plain copy is a line."""

    plain = SimpleNamespace(ms=lambda size_bytes: 0.01 + size_bytes / 5e6)
