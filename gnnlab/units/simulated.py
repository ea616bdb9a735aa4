"""A GPU and an NPU that are not here, by published constants: time = launch + max(bytes / bandwidth, FLOPs / peak).

Every number of theirs says `simulated`. They show how a plan comes about where the devices are missing, and say nothing
about any machine: a block is taken to be submitted once, to move exactly what it reads and writes, and to reach both
ceilings, which no real device does. The noise is drawn from the cell's own seed, 1 % of standard deviation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import Unavailable
from gnnlab.units.unit import Availability, Loaded, Unit

if TYPE_CHECKING:
    from gnnlab.workloads.staged import StagedLayer

NOISE = 0.01  # standard deviation over the time


@dataclass(frozen=True)
class Constant:
    """A published number and where it is published."""

    value: float
    source: str


@dataclass(frozen=True)
class Constants:
    """What a simulated device is made of. `peak_gflop_s` by precision; GB and GFLOP are 1e9."""

    device: str
    launch_us: Constant
    bandwidth_gb_s: Constant
    peak_gflop_s: Mapping[str, Constant]


_LAUNCH = Constant(
    42.46, "kernel launch on the integrated GPU of an i7-12700H, clpeak: github.com/intel/compute-runtime/issues/600"
)
GPU = Constants(
    device="Intel Arc graphics of a Core Ultra 7 155H",
    launch_us=_LAUNCH,
    bandwidth_gb_s=Constant(119.5, "LPDDR5x-7467 on 128 bits, the fastest memory in Intel's specification of the 155H"),
    peak_gflop_s={
        "float32": Constant(4608, "128 vector engines x 8 lanes x 2 x 2.25 GHz, Intel's specification of the 155H"),
        "float16": Constant(9216, "twice the lanes of float32 (Intel Xe-LPG)"),
    },
)
NPU = Constants(
    device="Intel NPU 3720",
    launch_us=Constant(_LAUNCH.value, f"not published; taken as that of the GPU ({_LAUNCH.source})"),
    bandwidth_gb_s=Constant(
        27, "get_dram_bandwidth_MBps(VPU_2_7) of Intel's own cost model, github.com/intel/npu-nn-cost-model"
    ),
    peak_gflop_s={
        "float16": Constant(
            5325,
            "2 tiles x 1024 float16 multiply-adds x 2 x 1.3 GHz; tiles and int8 rate (twice that of float16): "
            "chipsandcheese.com/2024/04/22/intel-meteor-lakes-npu, clock: github.com/openvinotoolkit/npu_compiler",
        )
    },
)


@dataclass(frozen=True)
class SimulatedUnit(Unit):
    """A device by its constants. `cannot`: names of stages that it does not run."""

    constants: Constants = GPU
    cannot: frozenset[str] = frozenset()

    def probe(self) -> Availability:
        return Availability(True, device=self._device(), version="constants of this package")

    def load(self, layer, first, last, artefact=None, *, nodes, edges, threads, precision) -> Loaded:
        from gnnlab.units.torch_units import TorchUnit

        block = layer.block(first, last)
        if left_out := [stage.name for stage in block.stages if stage.name in self.cannot]:
            raise Unavailable(f"{self.name} does not run {', '.join(left_out)}")
        like = TorchUnit("torch:CPU", "CPU", "torch")
        computed = like.load(layer, first, last, nodes=nodes, edges=edges, threads=threads, precision="float32")
        samples = self._samples(layer, first, last, nodes, edges, precision)
        notes = ["simulated from published constants; the values are torch's"]
        return Loaded(computed.run, self._device(), "simulated", notes, samples, computed.close)

    def time_ms(self, layer: StagedLayer, first: int, last: int, nodes: int, edges: int, precision: str) -> float:
        """launch + max(bytes / bandwidth, FLOPs / peak) of a block, in ms, without noise."""
        own = self.constants
        move_s = layer.block(first, last).bytes_moved(nodes, edges) / (own.bandwidth_gb_s.value * 1e9)
        compute_s = layer.flops(first, last, nodes, edges) / (own.peak_gflop_s[precision].value * 1e9)
        return own.launch_us.value * 1e-3 + max(move_s, compute_s) * 1e3

    def _samples(self, layer, first, last, nodes, edges, precision) -> tuple[float, ...]:
        from gnnlab.measure.timing import FIRST_SAMPLES  # brings scipy, a second that `gnnlab units` need not wait

        cell = f"{self.name} {layer.name} {layer.features} {first} {last} {nodes} {edges} {precision}"
        seed = int.from_bytes(hashlib.sha256(cell.encode()).digest()[:8])
        noise = np.exp(np.random.default_rng(seed).normal(0, NOISE, FIRST_SAMPLES))
        return tuple((self.time_ms(layer, first, last, nodes, edges, precision) * noise).tolist())

    def _device(self) -> str:
        return f"{self.constants.device} (simulated)"


# what S4's NPU could not run, and its like in a GAT layer: sums over targets
SCATTERS = ("REDUCE_SUM", "REDUCE_COUNT", "SOFTMAX", "SUM")
