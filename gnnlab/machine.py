"""What the machine is and what is installed, as far as the system tells without loading a framework.

Whoever names a version, the processor or the caches of this machine asks here, so that all of them say the same.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPUINFO = Path("/proc/cpuinfo")
COMPUTING = ("torch", "torch-geometric", "numpy", "openvino", "onnxruntime", "onnx")  # packages that decide over times


@cache
def version(package: str) -> str | None:
    """Installed version of a package, by the name that pip knows; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of `packages` (those that compute, unless named) that are installed."""
    found = {name: version(name) for name in packages or COMPUTING}
    return {"python": platform.python_version(), **{name: known for name, known in found.items() if known}}


@cache
def processor() -> str:
    """Name of the processor, as its maker writes it."""
    if CPUINFO.is_file():  # py-cpuinfo takes a second for what Linux has in a file
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found.group(1).strip()
    import cpuinfo

    return cpuinfo.get_cpu_info().get("brand_raw") or platform.processor() or platform.machine() or "unknown CPU"


def cores() -> int:
    """Logical cores that this process may use."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count() or 1


def about() -> dict[str, Any]:
    """What decides over times and stays the same: the processor's name and how many cores the machine has."""
    return {"processor": processor(), "cores": os.cpu_count()}


def cache_bytes() -> dict[int, int | None]:
    """Bytes of the second and third cache that the first core sees; None where the system does not tell (not Linux)."""
    sizes: dict[int, int | None] = {2: None, 3: None}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            sizes[level] = int(size.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
        except (OSError, ValueError):
            continue
    return {level: sizes[level] for level in (2, 3)}
