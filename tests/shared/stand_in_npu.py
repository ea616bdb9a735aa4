"""A stand-in for openvino:NPU: models of fixed sizes, as an NPU needs them, run by OpenVINO's CPU plugin."""

from dataclasses import dataclass

from gnnlab.stages.devices import Availability, find
from gnnlab.stages.runtimes import OpenVINODevice


@dataclass(frozen=True)
class StandIn(OpenVINODevice):
    def probe(self):
        return Availability(True, chip="a stand-in", version="of the CPU plugin")

    def load(self, *arguments, **conditions):
        return find("openvino:CPU").load(*arguments, **(conditions | {"precision": "float32"}))


def make():
    return StandIn("stand_in_npu:make", "NPU", "openvino", "openvino", static_shapes=True, precisions=("float16",))
