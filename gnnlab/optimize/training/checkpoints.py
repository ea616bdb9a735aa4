"""Checkpoints that are whole or not there: tensors as safetensors, everything else as JSON, nothing pickled.

    folder/checkpoint.json                 the facts, the name of the tensors' file and its SHA-256
    folder/tensors-<16 hex>.safetensors

The tensors are written first, under a new name; then `checkpoint.json` is replaced, in one rename; only then does the
file before it go. A kill at any moment leaves the one checkpoint or the other.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from gnnlab.kernels.errors import OptimizeError
from gnnlab.safe_files import write_atomically, write_json
from gnnlab.workloads.tables import Table

POINTER = "checkpoint.json"
_FORMAT = "gnnlab training checkpoint 1"


class CheckpointError(OptimizeError):
    """A checkpoint that cannot be used; says in one line why, and that it was left as it is."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, on the CPU, and facts as JSON holds them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint; the one before it stays until this one stands. `FileError` where the disk refuses."""
    packed = safetensors.torch.save(dict(tensors))
    name = f"tensors-{secrets.token_hex(8)}.safetensors"
    write_atomically(folder / name, lambda file: file.write(packed), mode="wb")
    pointer = {"format": _FORMAT, "tensors": name, "sha256": hashlib.sha256(packed).hexdigest(), **facts}
    try:
        write_json(folder / POINTER, pointer)
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    _tidy(folder, name)


def _tidy(folder: Path, current: str) -> None:
    """Remove what earlier checkpoints, and writing that was killed, left behind: only files that are named as ours."""
    for pattern in ("tensors-*.safetensors", ".tensors-*.safetensors.*.tmp", f".{POINTER}.*.tmp"):
        for path in folder.glob(pattern):
            if path.name != current:
                path.unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint of a folder, None where there is none. `CheckpointError` where it is damaged or no checkpoint."""
    try:
        text = (folder / POINTER).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(folder, f"{POINTER} cannot be read ({error})") from error
    try:
        facts = json.loads(text)
    except ValueError as error:
        raise damaged(folder, f"{POINTER} is no JSON") from error
    name = facts.get("tensors") if isinstance(facts, dict) and facts.get("format") == _FORMAT else None
    if not isinstance(name, str) or Path(name).name != name:
        raise damaged(folder, f"{POINTER} is not that of a {_FORMAT}")
    return Checkpoint(_tensors(folder, facts), facts)


def _tensors(folder: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        packed = (folder / facts["tensors"]).read_bytes()
    except OSError as error:
        raise damaged(folder, f"{facts['tensors']} is missing or cannot be read") from error
    if hashlib.sha256(packed).hexdigest() != facts.get("sha256"):
        raise damaged(folder, f"{facts['tensors']} is not what was written")
    try:
        return safetensors.torch.load(packed)
    except SafetensorError as error:
        raise damaged(folder, f"{facts['tensors']} is no safetensors file") from error


def damaged(folder: Path, what: str) -> CheckpointError:
    """The error that says so."""
    return CheckpointError(
        f"the checkpoint in {folder} is damaged: {what}; it was left as it is: restore it from a copy, or train into "
        "another folder"
    )


def require_none(folder: Path) -> None:
    """`CheckpointError` where a training that does not resume would overwrite a checkpoint."""
    if (folder / POINTER).exists():
        raise CheckpointError(f"{folder} holds a checkpoint; resume=True takes it up, or train into another folder")


def model_facts(model: nn.Module) -> dict[str, Any]:
    """What a model is, whatever its weights: name, type and shape of each tensor, and a print of its structure."""
    state = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in model.state_dict().items()}
    return {"class": type(model).__name__, "structure": _digest(str(model).encode()), **state}


def table_facts(table: Table) -> dict[str, Any]:
    """What a table is: its rows and columns and a print of all that it holds."""
    columns = [table.fields, *(table.targets[spec.name] for spec in table.specs)]
    content = _digest(*(column.cpu().contiguous().numpy() for column in columns))
    names = [*table.field_names, *(spec.name for spec in table.specs)]
    return {"rows": len(table), "columns": ", ".join(names), "content": content}


def require_same(saved: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """`saved` and `own` hold facts by topic ("model", "recipe", ...).

    Raises:
        CheckpointError: they differ; names the first fact that does, with both values.
    """
    for topic, facts in own.items():
        before = saved.get(topic)
        before = before if isinstance(before, dict) else {}
        for name in dict.fromkeys([*facts, *before]):
            there, here = before.get(name, "absent"), facts.get(name, "absent")
            if there != here:
                raise CheckpointError(
                    f"the checkpoint in {folder} is of another {topic}: {name} is {there} there and {here} here; it "
                    "was left as it is: train with what it was made with, or into another folder"
                )


def _digest(*contents: Any) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()[:16]
