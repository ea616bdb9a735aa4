"""The folder of a training: checkpoints that are whole or not there, nothing pickled, and when one may be taken up.

    folder/checkpoint.json                 the facts as JSON, the name of the tensors' file and its digest; sealed
    folder/tensors-<16 hex>.safetensors    "model/<name>", "optimizer/<parameter>/<moment>", "losses"

The tensors are written first, under a new name; then `checkpoint.json` is replaced, in one rename; only then does the
file before it go. A kill at any moment leaves the one checkpoint or the other. Sharded tensors are kept whole, so that
they fit any number of processes. State of generators there is none: order and dropout are functions (`steps`).
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from gnnlab.errors import GnnlabError
from gnnlab.files import digest, locked, read_sealed, write_atomically, write_sealed
from gnnlab.training.process_group import all_agree, share
from gnnlab.training.recipe import TrainingRecipe
from gnnlab.training.steps import Stepper
from gnnlab.workloads.tables import FeatureTable

POINTER = "checkpoint.json"
_FORMAT = "gnnlab training checkpoint 2"
_MAY_CHANGE = ("epochs",)  # of a recipe: more of the same
_LEFT = "it was left as it is: restore it from a copy, or train into another folder"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, on the CPU, and facts as JSON holds them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint; the one before it stays until this one stands. `GnnlabError` where the disk refuses."""
    packed = safetensors.torch.save(dict(tensors))
    name = f"tensors-{secrets.token_hex(8)}.safetensors"
    write_atomically(folder / name, lambda file: file.write(packed), mode="wb")
    pointer = {"format": _FORMAT, "tensors": name, "tensors_digest": digest(packed), **facts}
    try:
        write_sealed(folder / POINTER, pointer)
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    for pattern in ("tensors-*.safetensors", ".tensors-*.safetensors.*.tmp", f".{POINTER}.*.tmp"):  # only ours
        for path in folder.glob(pattern):
            if path.name != name:
                path.unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint of a folder, None where there is none. `GnnlabError` where it is damaged or no checkpoint."""
    if not (folder / POINTER).exists():
        return None
    facts = read_sealed(folder / POINTER, _LEFT)
    name = facts.get("tensors") if facts.get("format") == _FORMAT else None
    if not isinstance(name, str) or Path(name).name != name:
        raise _damaged(folder, f"{POINTER} is not that of a {_FORMAT}")
    try:
        packed = (folder / name).read_bytes()
    except OSError as error:
        raise _damaged(folder, f"{name} is missing or cannot be read") from error
    if digest(packed) != facts.get("tensors_digest"):
        raise _damaged(folder, f"{name} is not what was written")
    try:
        return Checkpoint(safetensors.torch.load(packed), facts)
    except SafetensorError as error:
        raise _damaged(folder, f"{name} is no safetensors file") from error


def _damaged(folder: Path, what: str) -> GnnlabError:
    return GnnlabError(f"the checkpoint in {folder} is damaged: {what}; {_LEFT}")


# ---- of one training ------------------------------------------------------------------------------------------------


class RunFolder:
    """Checkpoints of one training in a folder, held and written by the first process; all processes must see it."""

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        training: FeatureTable,
        validation: FeatureTable,
        recipe: TrainingRecipe,
    ) -> None:
        self.folder, self._held = folder, ExitStack()
        switches = {**asdict(recipe), "device": torch.device(recipe.device).type}  # processes differ in its number
        self.identity = {
            "model": model_facts(model),
            "recipe": {name: value for name, value in switches.items() if name not in _MAY_CHANGE},
            "training table": table_facts(training),
            "validation table": table_facts(validation),
        }
        self.environment = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": share().world,
        }

    def open(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to go on from, None to start.

        Raises `GnnlabError`: the folder cannot be made, or another process trains into it; without `resume`, there is a
        checkpoint; it is damaged, or of another training; or processes see different ones.
        """
        if share().rank == 0:  # now, and not when the first epoch is done
            self._held.enter_context(locked(self.folder, "trains into"))
        if not resume:
            if (self.folder / POINTER).exists():
                problem = f"{self.folder} holds a checkpoint; resume=True takes it up, or train into another folder"
                raise GnnlabError(problem)
            return None
        saved = load(self.folder)
        if not all_agree(0 if saved is None else int(digest(saved.facts)[:12], 16)):
            raise GnnlabError(
                f"the processes see different checkpoints in {self.folder}; give a folder that all of them share"
            )
        if saved is not None:
            require_same(saved.facts, self.identity, self.folder)
            before = saved.facts.get("environment") or {}
            pairs = [(name, before.get(name), own) for name, own in self.environment.items()]
            if changed := "; ".join(f"{name} {then}, now {own}" for name, then, own in pairs if then != own):
                text = f"the checkpoint in {self.folder} was made with {changed}: losses may differ in their last bits"
                warnings.warn(text, stacklevel=4)
        return saved

    def close(self) -> None:
        """Let another training have the folder."""
        self._held.close()

    def save(self, position: dict[str, Any], losses: Sequence[float], stepper: Stepper) -> None:
        """Keep where training stands. All processes come here, and leave when the checkpoint stands.

        Raises `GnnlabError`: the disk refuses; the first process says why.
        """
        tensors = capture(stepper.model, stepper.optimizer)
        if share().rank:
            if not all_agree(True):
                raise GnnlabError(f"process 0 could not write a checkpoint into {self.folder}; it says why")
            return
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        facts = {"position": position, "scaler": stepper.scaler.state_dict(), "environment": self.environment}
        written = False
        try:
            save(self.folder, tensors, {**facts, **self.identity})
            written = True
        finally:
            all_agree(written)

    def restore(self, saved: Checkpoint, stepper: Stepper) -> dict[str, Any]:
        """Bring the stepper to where it stood; gives epoch, step, seconds, rows and losses, as the run has them."""
        try:
            position = {name: saved.facts["position"][name] for name in ("epoch", "step", "seconds", "rows")}
            put_back(stepper.model, stepper.optimizer, saved.tensors)
            stepper.scaler.load_state_dict(saved.facts["scaler"])
            return {**position, "losses": saved.tensors["losses"].tolist()}
        except (KeyError, TypeError) as error:
            raise _damaged(self.folder, f"it lacks {error}") from error


def model_facts(model: nn.Module) -> dict[str, Any]:
    """What a model is, whatever its weights: name, type and shape of each tensor, and a print of its structure."""
    state = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in model.state_dict().items()}
    return {"class": type(model).__name__, "structure": digest(str(model)), **state}


def table_facts(table: FeatureTable) -> dict[str, Any]:
    """What a table is: its rows and columns and a print of all that it holds."""
    columns = [table.fields, *(table.targets[spec.name] for spec in table.specs)]
    content = digest(*(column.cpu().contiguous().numpy().tobytes() for column in columns))
    names = [*table.field_names, *(spec.name for spec in table.specs)]
    return {"rows": len(table), "columns": ", ".join(names), "content": content}


def require_same(saved: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """`saved` and `own` hold facts by topic ("model", "recipe", ...).

    Raises `GnnlabError`: they differ; names the first fact that does, with both values.
    """
    for topic, facts in own.items():
        before = saved.get(topic)
        before = before if isinstance(before, dict) else {}
        for name in dict.fromkeys([*facts, *before]):
            there, here = before.get(name, "absent"), facts.get(name, "absent")
            if there != here:
                raise GnnlabError(
                    f"the checkpoint in {folder} is of another {topic}: {name} is {there} there and {here} here; it "
                    "was left as it is: train with what it was made with, or into another folder"
                )


# ---- model and optimizer as plain tensors by name, and back ----------------------------------------------------------


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies on the CPU: "model/<name>", "optimizer/<parameter>/<moment>". Collective where the model is sharded."""
    found = {f"model/{name}": _whole(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found[f"optimizer/{name}/{key}"] = _whole(value)
    return found


@torch.no_grad()
def put_back(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `capture` gave, bit by bit, for a model of the same names and shapes."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(_like(tensors[f"model/{name}"], tensor))
    for name, parameter in model.named_parameters():
        prefix = f"optimizer/{name}/"
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            key: value.to(parameter.device) if key == "step" else _like(value, parameter)
            for key, value in state.items()
        }


def _whole(tensor: Tensor) -> Tensor:
    tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _like(saved: Tensor, wanted: Tensor) -> Tensor:
    if _is_sharded(wanted):
        from torch.distributed.tensor import distribute_tensor

        # every process has it whole and keeps its part, a copy that does not hold on to the rest
        own = distribute_tensor(saved.to(wanted.device), wanted.device_mesh, wanted.placements, src_data_rank=None)
        return own.clone()
    return saved.to(wanted.device)


def _is_sharded(tensor: Tensor) -> bool:
    """A DTensor; importing its type takes most of a second, which only sharded training should pay."""
    return hasattr(tensor, "full_tensor")
