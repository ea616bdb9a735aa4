"""On what machine, with what software and in what state was a number measured, and from what was it made?

A fingerprint has five parts, each a mapping so that a change can be named: parameters, code, inputs, versions, machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

import gnnlab
from gnnlab import files, machine, user_code
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
PARTS = ("parameters", "code", "inputs", "versions", "machine")
HOST_NAME = "GNNLAB_HOST"  # the name that results shall give this machine; they give none unless told, for people
NOT_CODE = ("__pycache__", "templates")  # templates render results; they do not make them
CELLS = "the notebook's code cells"

Fingerprint = dict[str, dict[str, Any]]


def collect() -> dict[str, Any]:
    """The environment of a run, ready for JSON. What the system does not tell is None, never a guess.

    Units: memory_gb in 10^9 bytes, clock_mhz in MHz, load as the system's 1, 5 and 15 minute averages,
    others_percent and steal_percent as the shares of all CPU time that other programs and other guests had just then.
    """
    return {**system(), "devices": devices(), **state()}


def system() -> dict[str, Any]:
    """What of it is known without loading a framework."""
    return {
        **_repository(),
        "host": os.environ.get(HOST_NAME) or None,
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": {
            "model": machine.processor(),
            "architecture": platform.machine(),
            "cores": psutil.cpu_count(logical=False),
            "logical": psutil.cpu_count(),
            "flags": list(_flags()),
            **{f"l{level}_cache_bytes": size for level, size in machine.cache_bytes().items()},
        },
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "versions": {name: machine.version(name) for name in PACKAGES},
    }


def state() -> dict[str, Any]:
    """What of the environment changes while a notebook runs; threads are those that torch takes, loaded or not."""
    torch = sys.modules.get("torch")
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        frequency = None
    return {
        "threads": torch.get_num_threads() if torch else (psutil.cpu_count(logical=False) or os.cpu_count() or 1),
        "load": [round(x, 2) for x in psutil.getloadavg()],
        **machine.at_work(),
        "clock_mhz": round(frequency.current) if frequency and frequency.current else None,
    }


def _repository() -> dict[str, Any]:
    """Commit of the code that ran, and whether it had uncommitted changes. None outside a git checkout."""
    here = Path(__file__).resolve().parent
    commit = git(here, "rev-parse", "--short=10", "HEAD")
    status = git(here, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if status is None else bool(status)}


def git(folder: Path, *arguments: str) -> str | None:
    """What git prints in `folder`; None where it refuses, or where there is no git."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command, options = ["git", "-C", str(folder), *arguments], {"text": True, "errors": "replace", "env": plain}
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=True, **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _flags() -> tuple[str, ...]:
    """Instructions that decide over speed, of those that the processor has."""
    known = machine.cpuinfo("flags", "Features").split()
    return tuple(flag for flag in SPEED_FLAGS if flag in known)


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


# ---- from what it was made -------------------------------------------------------------------------------------------


def surroundings() -> Fingerprint:
    """The parts of a fingerprint that all notebooks of a run share: code, versions, machine."""
    return {"code": package_code(), "versions": versions(), "machine": this_machine()}


def fingerprint(
    notebook: Path,
    parameters: Mapping[str, Any],
    needs: Sequence[Path],
    shared: Fingerprint,
    *,
    here: Path,
    folder: Path,
) -> Fingerprint:
    """What the results of a notebook are made from.

    `parameters` are all that it declares; `needs` are the result files that it builds on; `shared` comes from
    `surroundings`. Files and modules that parameters name are read relative to `here`, and what lies in `folder`,
    where the results go, does not count.
    """
    cells = [cell for cell in json.loads(notebook.read_bytes())["cells"] if cell["cell_type"] == "code"]
    tagged = [["".join(cell["source"]), cell["metadata"].get("tags", [])] for cell in cells]
    texts = [text for value in parameters.values() for text in (value if isinstance(value, list) else [value])]
    named = [path for text in texts if isinstance(text, str) for path in _named(text, here)]
    inputs = {
        path.relative_to(here).as_posix() if here in path.parents else str(path): files.digest(path)
        for path in named
        if folder not in path.parents
    }
    return {
        "parameters": dict(parameters),
        "code": {**shared["code"], CELLS: files.digest(tagged)},
        "inputs": {path.parent.parent.name: files.digest(path) for path in needs} | inputs,
        "versions": shared["versions"],
        "machine": shared["machine"],
    }


def package_code() -> dict[str, str]:
    """Digest of every module and data file of this package."""
    package = Path(gnnlab.__file__).parent
    names = [path.relative_to(package) for path in sorted(package.rglob("*")) if path.is_file()]
    code = [name for name in names if not any(part in NOT_CODE or part.startswith(".") for part in name.parts)]
    return {name.as_posix(): files.digest(package / name) for name in code}


def versions() -> dict[str, str]:
    """Versions of Python and of what this package requires, where installed."""
    try:
        requirements = importlib.metadata.requires("gnnlab") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return machine.versions()
    return machine.versions(*(re.match(r"[\w.-]+", line).group() for line in requirements if "extra ==" not in line))


def this_machine() -> dict[str, Any]:
    """Processor, cores and accelerators, as far as they are seen without loading a framework."""
    return {
        **machine.about(),
        "accelerators": sorted(map(str, [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev/accel").glob("accel*")])),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _named(text: str, here: Path) -> list[Path]:
    """The files that a parameter names: by a path, or as a module in `module:factory`."""
    try:
        if (here / text).is_file():
            return [(here / text).resolve()]
        return user_code.files_of(text.partition(":")[0], here) if re.fullmatch(r"[^\W\d][\w.]*:\w+", text) else []
    except (OSError, ValueError):  # too long for a name, or no name at all
        return []


# ---- for a reader ---------------------------------------------------------------------------------------------------

_EMPTY = {"cpu": {}, "versions": {}, "finished": {}, "devices": [], "load": []}


def in_a_phrase(environment: Mapping[str, Any]) -> str:
    """The machine in one phrase: "AMD EPYC 9R14, 2 cores, torch 2.13.0"."""
    known = readable(environment)
    cpu, torch = known["cpu"], known["versions"].get("torch")
    others = [device.get("name") for device in known["devices"] if device.get("kind") != "CPU"]
    cores = _counted(cpu.get("cores"), "core")
    return _joined(cpu.get("model") or "an unnamed processor", cores, *others, torch and f"torch {torch}")


def in_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, value) of what is known; what the system did not tell is left out."""
    known = readable(environment)
    cpu, cores = known["cpu"], _counted(known["cpu"].get("cores"), "core")
    logical = cpu.get("logical") != cpu.get("cores") and _counted(cpu.get("logical"), "logical core")
    caches = [(level, cpu.get(f"l{level}_cache_bytes")) for level in (2, 3)]
    others = [device for device in known["devices"] if device.get("kind") != "CPU"]
    devices = [_joined(f"{device.get('kind')}: {device.get('name')}", device.get("driver")) for device in others]
    rows = {
        "Processor": _joined(cpu.get("model"), cores, logical),
        "Instructions": " ".join(map(str, cpu.get("flags") or [])),
        "Caches": _joined(*(f"L{level} {size / 2**20:g} MiB" for level, size in caches if size)),
        "Memory": f"{known['memory_gb']} GB" if "memory_gb" in known else "",
        "Devices": "; ".join(devices) or "CPU only",
        "State": _state(known),
        "At its end": _state(readable(known["finished"])),
        "System": _joined(known.get("os"), known.get("host")),
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
        known["load"] and "load " + " ".join(map(str, known["load"])),
        "others_percent" in known and f"{known['others_percent']} % used by other programs",
        "steal_percent" in known and f"{known['steal_percent']} % stolen by other guests",
        "clock_mhz" in known and f"{known['clock_mhz']} MHz",
    )


def _counted(count: Any, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}" if count else ""


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)
