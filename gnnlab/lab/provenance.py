"""On what machine, with what software and in what state was a number measured? For JSON, and in words for a reader."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from gnnlab import machine
from gnnlab.openvino_core import openvino_core

PACKAGES = (
    *("torch", "torch-geometric", "numba", "numpy", "scipy", "scikit-learn", "pandas"),
    *("openvino", "onnxruntime", "onnx", "papermill", "nbconvert"),
)
SPEED_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")


def collect() -> dict[str, Any]:
    """The environment of a run, ready for JSON. What the system does not tell is None, never a guess.

    Units: memory_gb in 10^9 bytes, load as the system's 1, 5 and 15 minute averages, quota in cores, others_percent and
    steal_percent as the shares of all CPU time that other programs and other guests had just then.
    """
    flags = machine.cpuinfo("flags", "Features").split()
    return {
        **_repository(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": {
            "model": machine.processor(),
            "architecture": platform.machine(),
            "cores": psutil.cpu_count(logical=False),
            "logical": psutil.cpu_count(),
            "usable": machine.cores(),
            "quota": machine.quota(),
            "flags": [flag for flag in SPEED_FLAGS if flag in flags],
            **{f"l{level}_cache_bytes": size for level, size in machine.cache_bytes().items()},
        },
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "versions": {name: machine.version(name) for name in PACKAGES},
        "devices": devices(),
        **state(),
    }


def state() -> dict[str, Any]:
    """What of the environment changes while a notebook runs."""
    import torch

    from gnnlab.measure.conditions import products

    return {
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "float32_products": products(),
        "load": [round(x, 2) for x in psutil.getloadavg()],
        **machine.at_work(),
    }


def _repository() -> dict[str, Any]:
    """Commit of the code that ran, and whether it had uncommitted changes. None without git, or outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    options["env"] = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], **options).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(status)}


def devices() -> list[dict[str, Any]]:
    """The accelerators that torch and OpenVINO can reach here, after the CPU itself."""
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    cuda, openvino = {"kind": "CUDA", "driver": f"CUDA {torch.version.cuda}"}, f"OpenVINO {machine.version('openvino')}"
    return [
        {"name": machine.processor(), "kind": "CPU", "driver": None},
        *({"name": gpu.name, **cuda, "memory_gb": round(gpu.total_memory / 1e9, 1)} for gpu in gpus),
        *({"name": name, "kind": kind, "driver": openvino} for kind, name in _openvino() if kind != "CPU"),
    ]


@cache
def _openvino() -> tuple[tuple[str, str], ...]:
    """Kind and name of the devices that OpenVINO reaches."""
    try:
        core = openvino_core()
        return tuple((kind, core.get_property(kind, "FULL_DEVICE_NAME")) for kind in core.available_devices)
    except (ImportError, RuntimeError):
        return ()


# ---- for a reader ---------------------------------------------------------------------------------------------------

_EMPTY = {"cpu": {}, "versions": {}, "finished": {}, "devices": [], "load": []}


def in_a_phrase(environment: Mapping[str, Any]) -> str:
    """The machine in one phrase: "AMD EPYC 9R14, 1 of 2 cores, torch 2.13.0"; the cores that the run might use."""
    known = readable(environment)
    cpu, torch = known["cpu"], known["versions"].get("torch")
    others = [device.get("name") for device in known["devices"] if device.get("kind") != "CPU"]
    return _joined(cpu.get("model") or "an unnamed processor", _cores(cpu), *others, torch and f"torch {torch}")


def _cores(cpu: Mapping[str, Any]) -> str:
    """The cores that a run might use: "2 cores", "1 of 2 cores", "1.5 of 16 logical cores"."""
    usable, logical = cpu.get("usable"), cpu.get("logical")
    usable = usable and min(cpu.get("quota") or usable, usable)
    if usable in (None, logical):
        return _counted(cpu.get("cores"), "core")
    return f"{usable:g} of " + _counted(logical, "core" if logical == cpu.get("cores") else "logical core")


def in_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, value) of what is known; what the system did not tell is left out."""
    known = readable(environment)
    cpu, recorded = known["cpu"], "usable" in known["cpu"]
    logical = cpu.get("logical") != cpu.get("cores") and _counted(cpu.get("logical"), "logical core")
    caches = [(level, cpu.get(f"l{level}_cache_bytes")) for level in (2, 3)]
    others = [device for device in known["devices"] if device.get("kind") != "CPU"]
    devices = [_joined(f"{device.get('kind')}: {device.get('name')}", device.get("driver")) for device in others]
    rows = {
        "Processor": _joined(cpu.get("model"), _counted(cpu.get("cores"), "core"), logical),
        "Cores that it might use": _cores(cpu) if recorded else cpu and "not recorded",
        "Instructions": " ".join(map(str, cpu.get("flags") or [])),
        "Caches": _joined(*(f"L{level} {size / 2**20:g} MiB" for level, size in caches if size)),
        "Memory": f"{known['memory_gb']} GB" if "memory_gb" in known else "",
        "Devices": "; ".join(devices) or "CPU only",
        "State": _state(known),
        "At its end": _state(readable(known["finished"])),
        "System": known.get("os"),
        "Software": _joined(
            "python" in known and f"Python {known['python']}",
            *(f"{name} {version}" for name, version in known["versions"].items() if version),
        ),
        "Commit": _joined(known.get("commit"), known.get("dirty") and "with uncommitted changes"),
    }
    return [(name, value) for name, value in rows.items() if value]


def readable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is null; mappings and lists that are missing are empty."""
    return _EMPTY | {name: value for name, value in environment.items() if value is not None}


def _state(known: Mapping[str, Any]) -> str:
    return _joined(
        _counted(known.get("threads"), "thread"),
        "omp_num_threads" in known and f"OMP_NUM_THREADS {known['omp_num_threads']}",
        known.get("float32_products", "highest") != "highest" and f"float32 products: {known['float32_products']}",
        known["load"] and "load " + " ".join(map(str, known["load"])),
        "others_percent" in known and f"{known['others_percent']} % used by other programs",
        "steal_percent" in known and f"{known['steal_percent']} % stolen by other guests",
    )


def _counted(count: Any, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}" if count else ""


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)
