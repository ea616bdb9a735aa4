"""A stand-in for openvino:NPU: models of fixed sizes, as an NPU needs them, run by OpenVINO's CPU plugin."""

from dataclasses import dataclass

from gnnlab.units.openvino_units import OpenVINOUnit
from gnnlab.units.unit import Availability


@dataclass(frozen=True)
class StandIn(OpenVINOUnit):
    def probe(self):
        return Availability(True, device="a stand-in", version="of the CPU plugin")

    def load(self, *arguments, **conditions):
        cpu = OpenVINOUnit("openvino:CPU", "CPU", "openvino", "openvino")
        return cpu.load(*arguments, **(conditions | {"precision": "float32"}))


def make():
    return StandIn("stand_in_npu:make", "NPU", "openvino", "openvino", static_shapes=True, precisions=("float16",))
