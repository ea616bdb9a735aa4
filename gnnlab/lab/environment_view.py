"""The environment of a run in a reader's words. Any value may be missing or of an unexpected kind: a file held it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KNOWN = {
    "commit", "dirty", "host", "os", "python", "cpu", "memory_gb", "devices", "versions", "threads", "load",
    "steal_percent", "clock_mhz", "finished",
}  # fmt: skip


def machine(environment: Mapping[str, Any]) -> str:
    """The machine in one phrase: "AMD EPYC 9R14, 2 cores, torch 2.13.0"."""
    cpu, versions = _mapping(environment.get("cpu")), _mapping(environment.get("versions"))
    parts = [str(cpu.get("model") or "an unnamed processor")]
    parts += [_count(cpu["cores"], "core")] if cpu.get("cores") else []
    parts += [str(d["name"]) for d in _devices(environment) if d.get("kind") != "CPU" and d.get("name")]
    parts += [f"torch {versions['torch']}"] if versions.get("torch") else []
    return ", ".join(parts)


def rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, value) of everything that is known; a null is left out, an unknown key comes last as it is."""
    cpu = _mapping(environment.get("cpu"))
    found = [
        ("Processor", _joined(cpu.get("model"), _cores(cpu))),
        ("Instructions", " ".join(map(str, _list(cpu.get("flags"))))),
        ("Caches", _joined(_bytes("L2", cpu.get("l2_cache_bytes")), _bytes("L3", cpu.get("l3_cache_bytes")))),
        ("Memory", _unit(environment.get("memory_gb"), "GB")),
        ("Devices", "; ".join(_device(d) for d in _devices(environment) if d.get("kind") != "CPU") or "CPU only"),
        ("State", _state(environment)),
        ("At its end", _state(_mapping(environment.get("finished")))),
        ("System", _joined(environment.get("os"), environment.get("host"))),
        ("Software", _software(environment)),
        ("Commit", _commit(environment)),
    ]
    found += [(str(key), str(value)) for key, value in environment.items() if key not in _KNOWN and value is not None]
    return [(name, value) for name, value in found if value]


def _state(environment: Mapping[str, Any]) -> str:
    load = _list(environment.get("load"))
    return _joined(
        _count(environment["threads"], "thread") if environment.get("threads") else None,
        "load " + " ".join(map(str, load)) if load else None,
        _unit(environment.get("steal_percent"), "% stolen by other guests"),
        _unit(environment.get("clock_mhz"), "MHz"),
    )


def _software(environment: Mapping[str, Any]) -> str:
    versions = _mapping(environment.get("versions"))
    python = f"Python {environment['python']}" if environment.get("python") else None
    return _joined(python, *(f"{name} {version}" for name, version in versions.items() if version))


def _commit(environment: Mapping[str, Any]) -> str:
    commit = environment.get("commit")
    if not commit:
        return ""
    return f"{commit}, with uncommitted changes" if environment.get("dirty") else str(commit)


def _cores(cpu: Mapping[str, Any]) -> str | None:
    cores, logical = cpu.get("cores"), cpu.get("logical")
    if not cores:
        return _count(logical, "logical core") if logical else None
    return _count(cores, "core") + (f" ({logical} logical)" if logical and logical != cores else "")


def _device(device: Mapping[str, Any]) -> str:
    return _joined(f"{device.get('kind', 'device')}: {device.get('name')}", device.get("driver"))


def _devices(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [device for device in _list(environment.get("devices")) if isinstance(device, Mapping)]


def _bytes(name: str, value: Any) -> str | None:
    return f"{name} {value / 2**20:g} MiB" if isinstance(value, int) and value > 0 else None


def _unit(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}" if isinstance(value, int | float) else f"{value} {unit}"


def _count(value: Any, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
