"""What the machine is, what is installed, and how busy it is.

Whoever names a version, the processor or the caches of this machine asks here, so that all of them say the same. Only
`environment`, `state` and `devices` load torch.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

MOST_OTHERS, MOST_STEAL = 15.0, 3.0  # percent of all CPU time; beyond it a machine is called busy
COMPUTING = ("torch", "torch-geometric", "numpy", "openvino", "onnxruntime", "onnx")  # packages that decide over times
PACKAGES = (
    *("torch", "torch-geometric", "numba", "numpy", "scipy", "scikit-learn", "pandas"),
    *("openvino", "onnxruntime", "onnx", "papermill", "nbconvert"),
)
SPEED_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")


@cache
def version(package: str) -> str | None:
    """Installed version of a package, by the name that pip knows; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of `packages` (those that compute, unless named) that are installed."""
    versions = {name: version(name) for name in packages or COMPUTING}
    return {"python": platform.python_version(), **{name: known for name, known in versions.items() if known}}


@cache
def processor() -> str:
    """Name of the processor, as its maker writes it where the system tells that."""
    return (cpuinfo("model name") or platform.processor() or platform.machine() or "unknown CPU").strip()


def cpuinfo(*fields: str) -> str:
    """What Linux says of the first core under the first of these names that it has; "" on other systems."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    match = re.search(rf"^(?:{'|'.join(fields)})\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1) if match else ""


def cores() -> int:
    """Logical cores that this process may use: those that it may run on, and no more than its control group's quota."""
    process = psutil.Process()
    bound = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count() or 1
    return min(bound, math.ceil(quota() or bound))


def quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPU time that the control groups of this process grant it (version 1 or 2), in cores; None where they set no
    limit, and on other systems than Linux.
    """
    lines = [line.split(":", 2) for line in own.read_text().splitlines()] if own.is_file() else []
    places = [groups / "cpu" / name.strip("/") for _, kinds, name in lines if "cpu" in kinds.split(",")]
    places += [groups / name.strip("/") for _, kinds, name in lines if not kinds]  # version 2
    limits = []
    for folder in [folder for place in places for folder in (place, *place.parents)]:
        with suppress(OSError, ValueError):  # in a container the group's own folder may be hidden, the mount is not
            if (folder / "cpu.max").is_file():
                limit, period = (folder / "cpu.max").read_text().split()
            else:
                limit, period = ((folder / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
            limits += [int(limit) / int(period)] if int(limit) > 0 else []
    return min(limits, default=None)


def at_work(interval_s: float = 0.3) -> dict[str, float | None]:
    """What else goes on now, seen over an interval, in percent of the time of all cores: `others_percent` is what other
    programs compute, `steal_percent` what the hypervisor gives to other guests; None where the system does not tell.
    """
    process = psutil.Process()
    before, own = psutil.cpu_times(), process.cpu_times()
    time.sleep(interval_s)
    after, mine = psutil.cpu_times(), process.cpu_times()
    counted = [name for name in after._fields if "guest" not in name]  # which is in user and nice already
    passed = {name: getattr(after, name) - getattr(before, name) for name in counted}
    total, steal = max(sum(passed.values()), 1e-9), passed.get("steal")
    worked = total - passed["idle"] - passed.get("iowait", 0.0) - (steal or 0.0)
    worked -= mine.user + mine.system - own.user - own.system
    return {
        "others_percent": round(100 * min(max(worked / total, 0.0), 1.0), 1),
        "steal_percent": None if steal is None else round(100 * steal / total, 1),
    }


def busy(seen: Mapping[str, Any]) -> str | None:
    """How busy the machine was by what `at_work` gave; None where it was quiet."""
    others, steal = seen.get("others_percent") or 0, seen.get("steal_percent") or 0
    reasons = [f"{others:.0f} % of its CPU time goes to other programs"] * (others > MOST_OTHERS)
    reasons += [f"{steal:.0f} % of its CPU time goes to other guests of its host"] * (steal > MOST_STEAL)
    return " and ".join(reasons) or None


def warning(seen: Mapping[str, Any] | None = None) -> str | None:
    """What to say before measuring on a machine that is busy now, or was by `seen`, which `at_work` gave."""
    why = busy(seen or at_work())
    return why and f"this machine is busy ({why}): times will be too long, intervals wide"


def cache_bytes() -> dict[int, int | None]:
    """Bytes of the second and third cache that the first core sees; None where the system does not tell (not Linux)."""
    sizes: dict[int, int | None] = {2: None, 3: None}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, ValueError):
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            sizes[level] = int(size.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
    return {level: sizes[level] for level in (2, 3)}


# ---- the environment of a run ---------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """The environment of a run, ready for JSON. What the system does not tell is None, never a guess.

    Units: memory_gb in 10^9 bytes, load as the system's 1, 5 and 15 minute averages, quota in cores, others_percent and
    steal_percent as the shares of all CPU time that other programs and other guests had just then.
    """
    flags = cpuinfo("flags", "Features").split()
    return {
        **_repository(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": {
            "model": processor(),
            "architecture": platform.machine(),
            "cores": psutil.cpu_count(logical=False),
            "logical": psutil.cpu_count(),
            "usable": cores(),
            "quota": quota(),
            "flags": [flag for flag in SPEED_FLAGS if flag in flags],
            **{f"l{level}_cache_bytes": size for level, size in cache_bytes().items()},
        },
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "versions": {name: version(name) for name in PACKAGES},
        "devices": devices(),
        **state(),
    }


KINDS = {  # of what of it is computed with
    **dict.fromkeys(("cpu", "versions", "finished"), dict),
    **dict.fromkeys(("model", "torch", "name", "kind"), str),
    **dict.fromkeys(("cores", "logical", "usable", "quota", "others_percent", "steal_percent"), (int, float)),
    "devices": list,
}


def known(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment from a file without what is of another kind than `environment` gives."""
    kinds = {name: (int, float) if name.endswith("_bytes") else KINDS.get(name, object) for name in environment}
    kept = {name: value for name, value in environment.items() if value is None or isinstance(value, kinds[name])}
    if devices := kept.get("devices"):
        devices = [known(device) for device in devices if isinstance(device, dict)]
        kept["devices"] = [device for device in devices if device.get("name") and device.get("kind")]
    return {name: known(value) if isinstance(value, dict) else value for name, value in kept.items()}


def state() -> dict[str, Any]:
    """What of the environment changes while a notebook runs."""
    import torch

    from gnnlab.measure.conditions import products

    return {
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "float32_products": products(),
        "load": [round(x, 2) for x in psutil.getloadavg()],
        **at_work(),
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

    from gnnlab.openvino_core import openvino_core

    found: list[dict[str, Any]] = [{"name": processor(), "kind": "CPU", "driver": None}]
    for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count())):
        memory_gb = round(gpu.total_memory / 1e9, 1)
        found.append({"name": gpu.name, "kind": "CUDA", "driver": f"CUDA {torch.version.cuda}", "memory_gb": memory_gb})
    with suppress(ImportError, RuntimeError):
        core, driver = openvino_core(), f"OpenVINO {version('openvino')}"
        for kind in [kind for kind in core.available_devices if kind != "CPU"]:
            found.append({"name": core.get_property(kind, "FULL_DEVICE_NAME"), "kind": kind, "driver": driver})
    return found
