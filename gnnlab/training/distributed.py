"""The training loop under torchrun: each process takes its share of every batch, the result is that of one process.

    torchrun --standalone --nproc-per-node 2 -m gnnlab.training.distributed --recipe r.json --folder run

`r.json` holds the switches of a `TrainingRecipe`, those that differ from its defaults. batch_size counts the rows of
all processes together, so the number of processes changes speed alone. With "sharded": true the weights are split too
(`fully_shard`), for models that outgrow one device. The history goes to `run/history.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gnnlab.errors import GnnlabError
from gnnlab.files import write_json
from gnnlab.training.loop import History, train
from gnnlab.training.process_group import processes, share
from gnnlab.training.recipe import TrainingRecipe, from_json
from gnnlab.workloads import planted_table, tables
from gnnlab.workloads.deepfm import DeepFM


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a DeepFM on a planted table or on a table of the reader's; the exit status."""
    given = _parser().parse_args(arguments)
    try:
        recipe = _recipe(given.recipe)
        with processes(recipe.device) as device:
            history = _train(given, replace(recipe, device=device))
            if share().rank == 0:
                write_json(given.folder / "history.json", {"epochs": history.epochs, "stopped": history.stopped})
                print(history.stopped)
    except ValueError as error:  # of ours, one line each
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gnnlab.training.distributed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", type=Path, required=True, help="JSON file with switches of the training loop")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints; all processes must see it")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in the folder, if there is one"
    )
    parser.add_argument("--table", type=Path, help="CSV or Parquet; without it a planted table is trained on")
    parser.add_argument("--fields", nargs="+", default=[], help="categorical columns of the table")
    parser.add_argument("--targets", nargs="+", default=[], help="columns of the table to predict")
    parser.add_argument("--rows", type=int, default=20_000, help="of the planted table")
    parser.add_argument("--validation", type=float, default=0.2, help="share of the rows, 0..1")
    parser.add_argument("--hidden", type=int, default=256, help="width of the deep branch")
    parser.add_argument("--dropout", type=float, default=0.1, help="0..1; each process drops others")
    return parser


def _recipe(path: Path) -> TrainingRecipe:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise GnnlabError(f"the recipe {path} cannot be read: {error.strerror}; give a JSON file") from error
    except json.JSONDecodeError as error:
        raise GnnlabError(f"the recipe {path} is no JSON (line {error.lineno}: {error.msg})") from error


def _train(given: argparse.Namespace, recipe: TrainingRecipe) -> History:
    if given.table is None:
        table = planted_table.planted(given.rows)
    else:
        table = tables.load(given.table, fields=given.fields, targets=given.targets)
    training, validation = table.split(given.validation, recipe.seed)
    torch.manual_seed(recipe.seed)
    model = DeepFM(table.cardinalities, table.specs, hidden=given.hidden, dropout=given.dropout)
    folder = {"folder": given.folder, "resume": given.resume}
    return train(model, training, validation, recipe, on_epoch=_print, **folder)


def _print(row: dict[str, Any]) -> None:
    print(f"epoch {row['epoch']}: train loss {row['train_loss']:.4f}, score {row['score']:.4f}, "
          f"{row['samples_per_s']:,.0f} samples/s", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
