"""Times made up by a formula, for the tests of plans."""

from gnnlab.bandwidth.predict import Prediction
from gnnlab.plans.costs import Costs
from gnnlab.workloads.graphsage import sage

DEVICES = ("CPU", "GPU", "NPU")
SIZES = [(20, 40), (80, 80), (80, 300)]  # measured ones; what has more edges is interpolated, beyond 80 nodes not


class Formula:
    """A predictor: ms = launch + bytes / bandwidth + FLOPs / peak of a block, each device its own numbers, all blocks
    known but those named in `lacking`. Times may be 10 % off."""

    def __init__(self, devices, layer, lacking=()):
        self.devices, self.layer, self.lacking = tuple(devices), layer, set(lacking)
        self.measured = {(d, *b): dict.fromkeys(SIZES, (1, 1, 1)) for d in devices for b in layer.blocks()}

    def blocks(self, device):
        known = self.layer.blocks() if device in self.devices else ()
        return set(known) - {(first, last) for name, first, last in self.lacking if name == device}

    def predict(self, device, first, last, nodes, edges):
        speed = 1 + self.devices.index(device)
        moved = self.layer.block(first, last).bytes_moved(nodes, edges)
        ms = 0.02 * speed + moved / (1e6 * speed) + self.layer.flops(first, last, nodes, edges) * speed / 4e7
        return Prediction(ms, 0.9 * ms, 1.1 * ms, "extrapolated" if nodes > 80 else "interpolated")


def costs(devices=DEVICES, layer=None, lacking=(), separate=()):
    """Each device is the processor of its name, or the CPU where that has a colon."""
    layer, processors = layer or sage(16), {device: "CPU" if ":" in device else device for device in devices}
    predictor = Formula(devices, layer, lacking)
    return Costs(
        layer, tuple(devices), predictor, lambda *hand_over: 0.01 + hand_over[2] / 5e6, processors, frozenset(separate)
    )


def blocks_without(device, *stages):
    """The blocks (device, first, last) of seven stages that hold one of `stages`, for `lacking`."""
    return [(device, a, b) for a in range(1, 8) for b in range(a, 8) if any(a <= n <= b for n in stages)]
