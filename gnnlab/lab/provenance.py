"""On what machine, with what software and in what state was a number measured?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import cpuinfo
import psutil

from gnnlab.machine import cache_bytes
from gnnlab.openvino_core import openvino_core

PACKAGES = (
    "torch",
    "torch-geometric",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "openvino",
    "onnx",
    "papermill",
    "nbconvert",
)
SPEED_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")


def collect() -> dict[str, Any]:
    """The environment of a run, ready for JSON. What the system does not tell is None, never a guess.

    Units: memory_gb in 10^9 bytes, clock_mhz in MHz, load as the system's 1, 5 and 15 minute averages,
    steal_percent as the share of CPU time since boot that the hypervisor gave to others.
    """
    return {
        **_repository(),
        "host": platform.node(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "devices": devices(),
        "versions": versions(),
        **state(),
    }


def state() -> dict[str, Any]:
    """What of the environment changes while a notebook runs."""
    return {
        "threads": _threads(),
        "load": [round(x, 2) for x in psutil.getloadavg()],
        "steal_percent": _steal_percent(),
        "clock_mhz": _clock_mhz(),
    }


def versions() -> dict[str, str | None]:
    """Installed versions of the packages that matter for a measurement."""
    return {name: _version(name) for name in PACKAGES}


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _repository() -> dict[str, Any]:
    """Commit of the code that ran, and whether it had uncommitted changes. None outside a git checkout."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if status is None else bool(status)}


def _git(*arguments: str) -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def _cpu_static() -> dict[str, Any]:
    info = cpuinfo.get_cpu_info()
    flags = set(info.get("flags", []))
    return {
        "model": info.get("brand_raw") or platform.processor() or None,
        "architecture": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "logical": psutil.cpu_count(),
        "flags": [flag for flag in SPEED_FLAGS if flag in flags],
        **{f"l{level}_cache_bytes": size for level, size in cache_bytes().items()},
    }


def _cpu() -> dict[str, Any]:
    return dict(_cpu_static())


def cpu_name() -> str:
    """Name of the processor, as the tables print it."""
    return _cpu_static()["model"] or "unknown CPU"


def devices() -> list[dict[str, Any]]:
    """The accelerators that torch and OpenVINO can reach here, after the CPU itself."""
    return [{"name": cpu_name(), "kind": "CPU", "driver": None}, *_cuda_devices(), *_openvino_devices()]


def _cuda_devices() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "kind": "CUDA",
                "driver": f"CUDA {torch.version.cuda}",
                "memory_gb": round(properties.total_memory / 1e9, 1),
            }
        )
    return found


@cache
def _openvino_names() -> tuple[tuple[str, str], ...]:
    try:
        core = openvino_core()
        return tuple((kind, core.get_property(kind, "FULL_DEVICE_NAME")) for kind in core.available_devices)
    except (ImportError, RuntimeError):
        return ()


def _openvino_devices() -> list[dict[str, Any]]:
    driver = f"OpenVINO {_version('openvino')}"
    return [{"name": name, "kind": kind, "driver": driver} for kind, name in _openvino_names() if kind != "CPU"]


def _threads() -> int:
    """Threads that torch computes with now; where torch is not loaded, what it would take."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else (psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def _steal_percent() -> float | None:
    times = psutil.cpu_times()
    steal = getattr(times, "steal", None)
    return None if steal is None else round(100 * steal / max(sum(times), 1e-9), 2)


def _clock_mhz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return round(frequency.current, 0) if frequency and frequency.current else None
