"""Times made up by a formula, for the tests of plans."""

from gnnlab.planning.costs import Costs
from gnnlab.prediction.predictor import Prediction
from gnnlab.workloads.graphsage import sage

UNITS = ("CPU", "GPU", "NPU")
SIZES = [(20, 40), (80, 80), (80, 300)]  # measured ones; what has more edges is interpolated, beyond 80 nodes not


class Formula:
    """A predictor: ms = launch + bytes / bandwidth + FLOPs / peak of a block, each unit its own numbers, all blocks
    known but those named in `lacking`."""

    def __init__(self, units, layer, lacking=(), spread=0.1):
        self.units, self.layer, self.lacking, self.spread = tuple(units), layer, set(lacking), spread
        self.speeds = {unit: 1 + place for place, unit in enumerate(units)}
        self.measured = {(u, *b): dict.fromkeys(SIZES, (1, 1, 1)) for u in units for b in layer.blocks()}

    def blocks(self, unit):
        return set(self.layer.blocks()) - {(first, last) for name, first, last in self.lacking if name == unit}

    def predict(self, unit, first, last, nodes, edges):
        speed = self.speeds[unit]
        moved = self.layer.block(first, last).bytes_moved(nodes, edges)
        ms = 0.02 * speed + moved / (1e6 * speed) + self.layer.flops(first, last, nodes, edges) * speed / 4e7
        origin = "extrapolated" if nodes > 80 else "interpolated"
        return Prediction(ms, ms * (1 - self.spread), ms * (1 + self.spread), origin)


def copy_ms(source, target, size_bytes):
    return 0.01 + size_bytes / 5e6


def costs(units=UNITS, layer=None, lacking=(), separate=(), processors=None):
    """`processors` of the units: their own names, or CPU for those with a colon."""
    layer = layer or sage(16)
    named = processors or {unit: "CPU" if ":" in unit else unit for unit in units}
    return Costs(layer, tuple(units), Formula(units, layer, lacking), copy_ms, named, frozenset(separate))
