"""Every processing unit by name, and which of them can be used here.

    units.all_units()["openvino:CPU"]
    units.probe(["openvino:GPU"])["openvino:GPU"].why     # tried in a worker: a driver may crash

A unit of your own is `module:factory`, where factory() returns a `unit.Unit`; that is its name everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from gnnlab import user_code
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError
from gnnlab.units import onnxruntime_units
from gnnlab.units.openvino_units import OpenVINOUnit
from gnnlab.units.simulated import GPU, NPU, SCATTERS, SimulatedUnit
from gnnlab.units.torch_units import CompiledUnit, FastUnit, TorchUnit
from gnnlab.units.unit import Availability, Unit

_CPU = ("float32", "bfloat16")
PROBE_S = 120  # a first torch.compile takes long


@lru_cache(maxsize=1)
def all_units() -> Mapping[str, Unit]:
    """Every unit that the lab knows, usable here or not, by name."""
    units = [
        OpenVINOUnit("openvino:CPU", "CPU", "openvino", "openvino", precisions=_CPU),
        OpenVINOUnit("openvino-handbuilt:CPU", "CPU", "openvino", "handbuilt", "bag", precisions=_CPU),
        OpenVINOUnit("openvino:GPU", "GPU", "openvino", "openvino", precisions=("float32", "float16")),
        # an NPU computes in float16 whatever is asked (docs.openvino.ai, NPU device: computation precision is FP16)
        OpenVINOUnit("openvino:NPU", "NPU", "openvino", "openvino", static_shapes=True, precisions=("float16",)),
        *onnxruntime_units.installed(),
        TorchUnit("torch:CPU", "CPU", "torch", precisions=_CPU),
        CompiledUnit("torch-compiled:CPU", "CPU", "torch", precisions=_CPU),
        FastUnit("fast:CPU", "CPU", "torch"),
        TorchUnit("torch:CUDA", "GPU", "torch", precisions=("float32", "float16", "bfloat16")),
        SimulatedUnit(
            "simulated:GPU", "GPU", "simulated", origin="simulated", precisions=("float32", "float16"), constants=GPU
        ),
        SimulatedUnit(
            "simulated:NPU", "NPU", "simulated", origin="simulated", static_shapes=True, precisions=("float16",),
            constants=NPU, cannot=frozenset(SCATTERS),
        ),
    ]  # fmt: skip
    return MappingProxyType({unit.name: unit for unit in units})


def find(name: str) -> Unit:
    """A unit by its name, or one of your own as `module:factory`.

    Raises `GnnlabError`: there is no such unit.
    """
    if name in all_units():
        return all_units()[name]
    try:
        with user_code.importable():
            unit = user_code.call(name, user_code.load(name))
        why = f"{name} gives a {type(unit).__name__}"
    except GnnlabError as error:
        unit, why = None, str(error)
    if not isinstance(unit, Unit):
        known = ", ".join(all_units())
        raise GnnlabError(f"unit {name!r} is not known; one of {known}, or module:factory for one of your own ({why})")
    return unit


def tried(names: Iterable[str]) -> dict[str, Unit]:
    """The units of these names. One of the user's own is made in a worker first: its factory may hang or exit.

    Raises `GnnlabError`: there is no such unit, or it hung or ended the process.
    """
    names = list(names)
    with Worker() as worker:
        for name in (name for name in names if name not in all_units()):
            answer = worker.call(f"{__name__}:name_of", {"name": name}, timeout_s=PROBE_S)
            if answer.lost:
                answer.get(of=f"unit {name}")
    return {name: find(name) for name in names}


def name_of(name: str) -> str:
    """For a worker: the name of the unit that `find` gives."""
    return find(name).name


def probe(names: Iterable[str] | None = None) -> dict[str, Availability]:
    """Whether units can be used here, why not and what to install; all of them unless named.

    Each is tried in a worker under a time limit: what crashes or hangs there is not usable.
    """
    wanted = list(all_units() if names is None else names)
    with Worker() as worker:
        return {name: probe_by(worker, name) for name in wanted}


def probe_by(worker: Worker, name: str, timeout_s: float = PROBE_S) -> Availability:
    """Try a unit in a worker. One that hangs or crashes there is not usable."""
    answer = worker.call(f"{__name__}:probe_here", {"name": name}, timeout_s=timeout_s)
    if answer.status == "done":
        return Availability(**answer.value)
    return Availability(False, answer.reason, "repair or remove its driver" if answer.lost else None)


def probe_here(name: str) -> dict[str, Any]:
    """Try a unit in this process, which its driver may end."""
    return find(name).probe().to_json()
