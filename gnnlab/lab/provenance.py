"""On what machine, with what software and in what state was a number measured? For JSON, and for a reader."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
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
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(git, env=own, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)}


def devices() -> list[dict[str, Any]]:
    """The accelerators that torch and OpenVINO can reach here, after the CPU itself."""
    import torch

    found: list[dict[str, Any]] = [{"name": machine.processor(), "kind": "CPU", "driver": None}]
    for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count())):
        memory_gb = round(gpu.total_memory / 1e9, 1)
        found.append({"name": gpu.name, "kind": "CUDA", "driver": f"CUDA {torch.version.cuda}", "memory_gb": memory_gb})
    with suppress(ImportError, RuntimeError):
        core, driver = openvino_core(), f"OpenVINO {machine.version('openvino')}"
        for kind in [kind for kind in core.available_devices if kind != "CPU"]:
            found.append({"name": core.get_property(kind, "FULL_DEVICE_NAME"), "kind": kind, "driver": driver})
    return found


def in_a_phrase(environment: Mapping[str, Any]) -> str:
    """The machine in one phrase: "AMD EPYC 9R14, 2 cores, torch 2.13.0", or "1.5 of 8 logical cores" of a run that
    might use no more.
    """
    cpu, versions = environment.get("cpu") or {}, environment.get("versions") or {}
    cores, logical = cpu.get("cores"), cpu.get("logical")
    usable = min(filter(None, (cpu.get("usable"), cpu.get("quota"))), default=logical)
    text = f"{cores} core{'s' * (cores != 1)}" if usable == logical else f"{usable:g} of {logical} logical cores"
    others = [device["name"] for device in environment.get("devices") or () if device["kind"] != "CPU"]
    torch = versions.get("torch")
    parts = [cpu.get("model") or "an unnamed processor", cores and text, *others, torch and f"torch {torch}"]
    return ", ".join(filter(None, parts))


LABELS = {  # what a reader sees in place of a name of the JSON
    "dirty": "uncommitted changes",
    "memory_gb": "memory (GB)",
    "usable": "cores that the run might use",
    "omp_num_threads": "OMP_NUM_THREADS",
    "float32_products": "precision of float32 products",
    "load": "load (1, 5, 15 min)",
    "others_percent": "used by other programs (%)",
    "steal_percent": "taken by other guests (%)",
    "finished": "at its end",
}


def in_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what the environment holds, in words; what the system did not tell is left out."""
    rows = [
        (LABELS.get(name, name.removesuffix("_bytes").replace("_", " ")), _words(name, value))
        for name, value in environment.items()
    ]
    return [(name, words) for name, words in rows if words]


def _words(name: str, value: Any) -> str:
    """ "model AMD EPYC, cores 2" of a mapping; bytes as MiB."""
    if isinstance(value, Mapping):
        return ", ".join(" ".join(row) for row in in_rows(value))
    if isinstance(value, list):
        return ("; " if value and isinstance(value[0], Mapping) else " ").join(_words(name, one) for one in value)
    if name.endswith("_bytes") and value is not None:
        return f"{value / 2**20:g} MiB"
    return "" if value is None else str(value)
