"""What training can be given, said before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training.metrics import varied_labels
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.workloads.tables import Table


def check(model: nn.Module, training: Table, validation: Table, recipe: Recipe, processes: int) -> None:
    """`OptimizeError` in one line where model, tables, recipe and number of processes do not go together."""
    for problem in _problems(model, training, validation, recipe, processes):
        raise OptimizeError(problem)


def _problems(model: nn.Module, training: Table, validation: Table, recipe: Recipe, processes: int) -> Iterable[str]:
    missing = [name for name in ("targets", "cardinalities", "log_variances") if not hasattr(model, name)]
    if missing:
        yield f"{type(model).__name__} has no {', '.join(missing)}; a model to train has them as DeepFM does"
    for name, table in (("training", training), ("validation", validation)):
        yield from _misfits(model, name, table)
    if recipe.step_rows > len(training):
        yield (
            f"a step takes batch_size {recipe.batch_size} x accumulate {recipe.accumulate} = {recipe.step_rows} rows, "
            f"the training table has {len(training)}; take a smaller batch"
        )
    for spec in training.specs:
        if _one_answer(training.targets[spec.name]):
            yield f"target {spec.name!r} has one answer only in the training table, nothing to learn; leave it out"
        if spec.kind == "labels" and _one_answer(validation.targets[spec.name]):
            yield f"target {spec.name!r} has labels of one answer only in the validation table; take more rows"
    if recipe.checkpointing and not isinstance(getattr(model, "deep", None), nn.Module):
        yield f"checkpointing=True is for a model with a branch `deep`, {type(model).__name__} has none"
    if recipe.sharded and processes == 1:
        yield "sharded=True splits a model over processes, here is one; start several by torchrun or set sharded=False"


def _misfits(model: nn.Module, name: str, table: Table) -> Iterable[str]:
    if tuple(model.targets) != tuple(table.specs):
        given = f"the model predicts {_named(model.targets)}, the {name} table holds {_named(table.specs)}"
        yield f"{given}; make them the same"
    if len(model.cardinalities) != len(table.cardinalities):
        given = f"the model has {len(model.cardinalities)} fields, the {name} table {len(table.cardinalities)}"
        yield f"{given}; make them the same"
    for field, own, size in zip(table.field_names, model.cardinalities, table.cardinalities, strict=False):
        if size > own:
            yield f"field {field!r} has {size} categories in the {name} table, {own} in the model; make it for {size}"


def _named(specs: Iterable[object]) -> str:
    return ", ".join(f"{spec.name} ({spec.size} {spec.kind})" for spec in specs)  # type: ignore[attr-defined]


def _one_answer(column: Tensor) -> bool:
    """Classes that are all the same, or labels none of which varies."""
    return not (varied_labels(column).any() if column.dim() == 2 else (column != column[0]).any())
