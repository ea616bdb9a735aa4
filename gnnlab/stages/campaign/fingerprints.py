"""What could change the time of a cell, as digests: who measures with another of these measures anew.

Shared by a campaign: the code that measures (every module of ours that the measuring one imports, and so on), the
versions of the runtimes, the machine, the settings. A cell's own: its fields, the weights and the models that it runs,
the unit's device and driver.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torch-geometric", "numpy", "openvino", "onnxruntime", "onnx")


def digest(data: Any) -> str:
    """Of anything that JSON can hold: 32 hexadecimal digits, the same for the same values in any order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def campaign(module: str, settings: Mapping[str, Any]) -> str:
    """What all cells of a campaign share. `module` is the one that measures, `settings` those that it measures by."""
    return digest({"code": code(module), "versions": versions(), "machine": machine(), "settings": dict(settings)})


@cache
def code(module: str) -> dict[str, str]:
    """Digest of the source of `module` and of every module of this package that it imports, directly or not."""
    found, waiting = {}, [module]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if path is None or name in found:
            continue
        content = path.read_bytes()
        found[name] = hashlib.sha256(content).hexdigest()[:32]
        waiting += _imports(ast.parse(content), name, path.name == "__init__.py")
    return dict(sorted(found.items()))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute, where installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def machine() -> dict[str, Any]:
    """The processor's name and its cores."""
    from cpuinfo import get_cpu_info

    return {"processor": get_cpu_info().get("brand_raw", platform.processor()), "cores": os.cpu_count()}


def _source(name: str) -> Path | None:
    """The file of a module of this package; None for any other name."""
    if name.partition(".")[0] != __package__.partition(".")[0]:
        return None
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name inside a module
        return None
    return Path(found.origin) if found and found.origin else None


def _imports(tree: ast.AST, name: str, is_package: bool) -> Iterator[str]:
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
