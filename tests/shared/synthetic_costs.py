"""Times made up by a formula, for the tests of plans."""

from gnnlab.bandwidth.predict import Prediction
from gnnlab.plans.costs import Costs
from gnnlab.workloads.graphsage import sage

DEVICES = ("CPU", "GPU", "NPU")
SIZES = [(20, 40), (80, 80), (80, 300)]  # measured ones; what has more edges is interpolated, beyond 80 nodes not


class Formula:
    """A predictor: ms = launch + bytes / bandwidth + FLOPs / peak of a block, each device its own numbers, all blocks
    known but those named in `lacking`."""

    def __init__(self, devices, layer, lacking=(), spread=0.1):
        self.devices, self.layer, self.lacking, self.spread = tuple(devices), layer, set(lacking), spread
        self.speeds = {device: 1 + place for place, device in enumerate(devices)}
        self.measured = {(d, *b): dict.fromkeys(SIZES, (1, 1, 1)) for d in devices for b in layer.blocks()}

    def blocks(self, device):
        known = self.layer.blocks() if device in self.devices else ()
        return set(known) - {(first, last) for name, first, last in self.lacking if name == device}

    def predict(self, device, first, last, nodes, edges):
        speed = self.speeds[device]
        moved = self.layer.block(first, last).bytes_moved(nodes, edges)
        ms = 0.02 * speed + moved / (1e6 * speed) + self.layer.flops(first, last, nodes, edges) * speed / 4e7
        origin = "extrapolated" if nodes > 80 else "interpolated"
        return Prediction(ms, ms * (1 - self.spread), ms * (1 + self.spread), origin)


def copy_ms(source, target, size_bytes):
    return 0.01 + size_bytes / 5e6


def costs(devices=DEVICES, layer=None, lacking=(), separate=(), processors=None):
    """`processors` of the devices: their own names, or CPU for those with a colon."""
    layer = layer or sage(16)
    named = processors or {device: "CPU" if ":" in device else device for device in devices}
    return Costs(layer, tuple(devices), Formula(devices, layer, lacking), copy_ms, named, frozenset(separate))


def blocks_without(device, *stages):
    """The blocks (device, first, last) of seven stages that hold one of `stages`, for `lacking`."""
    return [(device, a, b) for a in range(1, 8) for b in range(a, 8) if any(a <= n <= b for n in stages)]
