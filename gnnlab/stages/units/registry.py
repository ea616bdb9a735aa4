"""Every processing unit by name, and which of them can be used here.

    units.all_units()["openvino:CPU"]
    units.probe(["openvino:GPU"])["openvino:GPU"].why     # tried in a child process: a driver may crash
    units.usable()                                        # names

A unit of your own is `module:factory`, where factory() returns a `unit.Unit`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache

from gnnlab.stages.errors import StageError
from gnnlab.stages.units import onnxruntime_units
from gnnlab.stages.units.openvino_units import OpenVINONPU, OpenVINOUnit
from gnnlab.stages.units.simulated import GPU, NPU, SCATTERS, SimulatedNPU, SimulatedUnit
from gnnlab.stages.units.torch_units import CompiledUnit, FastUnit, TorchUnit
from gnnlab.stages.units.unit import Availability, Loaded, Unavailable, Unit, first_line

__all__ = ["Availability", "Loaded", "Unavailable", "Unit", "all_units", "find", "probe", "usable"]

_CPU = ("float32", "bfloat16")
PROBE_S = 120  # a first torch.compile takes long


def all_units() -> dict[str, Unit]:
    """Every unit that the lab knows, usable here or not, by name."""
    return dict(_built_in())


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Unit]:
    units = [
        OpenVINOUnit("openvino:CPU", "CPU", "openvino", "openvino", precisions=_CPU),
        OpenVINOUnit("openvino-handbuilt:CPU", "CPU", "openvino", "handbuilt", "bag", precisions=_CPU),
        OpenVINOUnit("openvino:GPU", "GPU", "openvino", "openvino", precisions=("float32", "float16")),
        OpenVINONPU("openvino:NPU", "NPU", "openvino", "openvino", static_shapes=True, precisions=("float16",)),
        *onnxruntime_units.installed(),
        TorchUnit("torch:CPU", "CPU", "torch", precisions=_CPU),
        CompiledUnit("torch-compiled:CPU", "CPU", "torch", precisions=_CPU),
        FastUnit("fast:CPU", "CPU", "torch"),
        TorchUnit("torch:CUDA", "GPU", "torch", precisions=("float32", "float16", "bfloat16")),
        SimulatedUnit(
            "simulated:GPU", "GPU", "simulated", origin="simulated", precisions=("float32", "float16"), constants=GPU
        ),
        SimulatedNPU(
            "simulated:NPU", "NPU", "simulated", origin="simulated", static_shapes=True, precisions=("float16",),
            constants=NPU, cannot=frozenset(SCATTERS),
        ),
    ]  # fmt: skip
    return {unit.name: unit for unit in units}


def find(name: str) -> Unit:
    """A unit by its name, or one of your own as `module:factory`.

    Raises:
        StageError: there is no such unit.
    """
    if name in _built_in():
        return _built_in()[name]
    module, _, factory = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), factory)()
        said = f"{name} gives a {type(found).__name__}"
    except Exception as error:  # whatever a module of the user's own raises
        found, said = None, f"{type(error).__name__}: {first_line(error)}"
    if not isinstance(found, Unit):
        known = ", ".join(_built_in())
        raise StageError(f"unit {name!r} is not known; one of {known}, or module:factory for one of your own ({said})")
    return found


def probe(names: Iterable[str] | None = None) -> dict[str, Availability]:
    """Whether units can be used here, why not and what to install; all of them unless named.

    Each is tried in a child process under a time limit: what crashes or hangs there is not usable, and says so.
    """
    from gnnlab.stages.campaign.child import Child

    wanted = list(all_units() if names is None else names)
    with Child() as child:
        return {name: child.probe(name, PROBE_S) for name in wanted}


def usable(names: Iterable[str] | None = None) -> list[str]:
    """The names of those that can be used here."""
    return [name for name, found in probe(names).items() if found.usable]
