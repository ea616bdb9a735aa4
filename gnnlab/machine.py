"""What the machine is and what is installed, as far as the system tells without loading a framework.

Whoever names a version, the processor or the caches of this machine asks here, so that all of them say the same.
"""

from __future__ import annotations

import math
import platform
import re
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
