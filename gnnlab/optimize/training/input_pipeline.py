"""From a table to batches on the device: the guide's loader of samples, a loader of batches, and no loader at all.

    with feed(table, recipe) as batches:
        for fields, targets in batches(indices): ...        # indices: int64 (rows,) of each batch, in their order

Every pipeline gives the same batches, fields (B, M) int64 and targets by name. Which rows make a batch is decided
before, by `order` and `Share`: so an epoch can be taken up in its middle, and split over processes.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gnnlab.optimize.training.recipe import Recipe
from gnnlab.workloads.tables import Table

Batch = tuple[Tensor, dict[str, Tensor]]  # fields (B, M), targets by name
Batches = Callable[[Sequence[Tensor]], Iterator[Batch]]


def mixed(*numbers: int) -> int:
    """A seed of 63 bits from several numbers (seed, epoch, step, ...): the same for the same, unlike for others."""
    digest = hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def order(rows: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch takes the rows, int64 (rows,); a function of these numbers, so no state is kept."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(mixed(seed, epoch)))


@dataclass(frozen=True)
class Share:
    """What one of `world` processes takes of every batch: rows beside each other, in order of `rank`."""

    rank: int = 0
    world: int = 1

    def count(self, rows: int) -> int:
        """How many of so many rows; 0 for some processes where there are fewer rows than processes."""
        return (self.rank + 1) * rows // self.world - self.rank * rows // self.world

    def of(self, batch: Tensor) -> Tensor:
        """Its indices. A process with none computes the first row, for nothing: collective work needs all processes."""
        if self.world == 1:
            return batch
        first = self.rank * len(batch) // self.world
        return batch[first : first + self.count(len(batch))] if self.count(len(batch)) else batch[:1]


@contextmanager
def feed(table: Table, recipe: Recipe) -> Iterator[Batches]:
    """The pipeline of a recipe over a table; at the end its workers are stopped."""
    if recipe.pipeline == "table":
        yield _whole_table(table, recipe)
        return
    loaded = _Loaded(table, recipe)
    try:
        yield loaded
    finally:
        loaded.stop()


def one_pass(batches: Batches, indices: Sequence[Tensor]) -> list[Batch]:
    """All batches of a pass, in a list: what a pipeline delivers when nobody computes."""
    return list(batches(indices))


def _whole_table(table: Table, recipe: Recipe) -> Batches:
    """All rows on the device; a batch is one lookup a column."""
    fields, columns = _on_device(table, recipe.device)

    def batches(indices: Sequence[Tensor]) -> Iterator[Batch]:
        for batch in indices:
            rows = batch.to(fields.device)
            yield fields.index_select(0, rows), {name: column.index_select(0, rows) for name, column in columns.items()}

    return batches


def _on_device(table: Table, device: str) -> Batch:
    return table.fields.to(device), {name: column.to(device) for name, column in table.targets.items()}


class _Samples(Dataset):
    """The guide's: a row is a dictionary with a tensor for each column, and the loader collates such rows."""

    def __init__(self, table: Table) -> None:
        columns = zip(table.field_names, table.fields.unbind(dim=1), strict=True)
        self.columns = {("field", name): column.contiguous() for name, column in columns}
        self.columns |= {("target", name): column for name, column in table.targets.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[tuple[str, str], Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


class _Rows(Dataset):
    """Whole batches: the loader asks for all rows of one at once, so there is nothing to collate."""

    def __init__(self, table: Table) -> None:
        self.fields, self.targets = table.fields, table.targets

    def __len__(self) -> int:
        return len(self.fields)

    def __getitems__(self, rows: Tensor) -> dict[tuple[str, str], Tensor]:
        targets = {("target", name): column.index_select(0, rows) for name, column in self.targets.items()}
        return {("fields", ""): self.fields.index_select(0, rows), **targets}


class _Loaded:
    """`samples` and `batches`: a DataLoader, and the transfer of what it delivers."""

    def __init__(self, table: Table, recipe: Recipe) -> None:
        self.recipe, self.names = recipe, table.field_names
        self.by_sample = recipe.pipeline == "samples"
        self.indices: list[Any] = []  # what the loader's batch sampler goes through
        options: dict[str, Any] = {} if self.by_sample else {"collate_fn": _as_it_is}
        if recipe.prefetch:
            options["prefetch_factor"] = recipe.prefetch
        with _quiet_about_workers():
            self.loader = DataLoader(
                _Samples(table) if self.by_sample else _Rows(table),
                batch_sampler=self.indices,
                num_workers=recipe.workers,
                persistent_workers=recipe.persistent,
                pin_memory=recipe.transfer == "pinned",
                generator=torch.Generator(),  # torch's own one stays with dropout
                **options,
            )

    def __call__(self, indices: Sequence[Tensor]) -> Iterator[Batch]:
        self.indices[:] = [rows.tolist() for rows in indices] if self.by_sample else indices
        with _quiet_about_workers():
            delivered = iter(self.loader)
        for columns in delivered:
            moved = self._moved(columns)
            targets = {name: column for (kind, name), column in moved.items() if kind == "target"}
            if self.by_sample:
                yield torch.stack([moved["field", name] for name in self.names], dim=1), targets
            else:
                yield moved["fields", ""], targets

    def _moved(self, columns: Mapping[tuple[str, str], Tensor]) -> dict[tuple[str, str], Tensor]:
        waits = self.recipe.transfer == "plain"
        return {name: column.to(self.recipe.device, non_blocking=not waits) for name, column in columns.items()}

    def stop(self) -> None:
        """Workers that live on end with their iterator; torch has no public call for it."""
        if self.recipe.persistent and self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()
            self.loader._iterator = None


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _quiet_about_workers() -> Iterator[None]:
    """The number of workers is the reader's choice; the guide's 4 are more than small machines have processors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
