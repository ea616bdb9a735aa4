"""The one OpenVINO core of this process, and what is set on each device.

Each core installs a stack for signal handlers when its CPU plugin loads, and puts back the one before it when it goes
(OpenVINO 2026.4, `SigAltStackSetup` in its CPU plugin). Cores that are not deleted in reverse order leave a dangling
stack: the next handled signal, such as the end of a DataLoader's worker, ends the process. One core that is kept avoids
it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gnnlab.errors import Unavailable

if TYPE_CHECKING:
    import openvino

HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # what OpenVINO calls a precision


@cache
def openvino_core() -> openvino.Core:
    """Made at the first call, kept to the end of the process. Raises ImportError where OpenVINO is not installed."""
    import openvino

    return openvino.Core()


def configuration(processor: str, precision: str, threads: int) -> dict[str, Any]:
    """What is set on a device (CPU|GPU|NPU), so that all that runs there has the same conditions.

    The plugin picks none of it by itself: its CPU default is bf16 on some processors, and on CPUs it binds its threads
    to cores, which nothing that it is compared with does.
    """
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    if processor == "CPU":
        options |= {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    return options


def compile_for(model: Any, processor: str, precision: str, threads: int) -> openvino.CompiledModel:
    """A model, or the path of one, compiled under `configuration`.

    Raises `Unavailable` where the device computes in another precision: a CPU without bf16 takes the hint in silence
    and computes in float32.
    """
    compiled = openvino_core().compile_model(model, processor, configuration(processor, precision, threads))
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if taken != HINTS[precision]:
        raise Unavailable(f"OpenVINO's {processor} computes in {taken} here when asked for {precision}")
    return compiled
