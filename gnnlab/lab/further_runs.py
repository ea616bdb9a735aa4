"""Further runs of a notebook: what its runs before the latest found, in `runs/`, each in a process of its own.

All of them were made from the same fingerprint as the latest. `runs.json` names their files with digests: only files
that it names, and that are as it says, are ever removed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from gnnlab.safe_files import write_atomically

from . import freshness, results
from .freshness import Further, Run, Runs


def count(run: Run) -> int:
    """How many runs there are, the latest included."""
    return len({run.run, *(each.run for each in run.further)})


def tidy(folder: Path, name: str, runs: Runs) -> None:
    """Drop from the record the further runs of a notebook whose files are missing or not as they were left."""
    run = runs.runs[name]
    whole = [each for each in run.further if all(_is_as_left(folder, *item) for item in each.files.items())]
    if len(whole) < len(run.further):
        discard(folder, [each for each in run.further if each not in whole])
        run.further = whole
        freshness.write_runs(folder, runs)


def keep(folder: Path, name: str, runs: Runs) -> None:
    """Copy result and samples of the latest run to `runs/NN_name.K.*`, each whole or not at all, before the next run.

    They are recorded before they are written. Does nothing where they are there. Raises `FileError`.
    """
    run = runs.runs[name]
    if run.run in {each.run for each in run.further}:
        return
    latest, copy = folder / f"{name}.json", _free_place(folder, name)
    sources = {results.samples_path(copy): results.samples_path(latest), copy: latest}
    contents = {path: source.read_bytes() for path, source in sources.items() if source.is_file()}
    files = {path.name: freshness.digest(content) for path, content in contents.items()}
    run.further.append(Further(run=run.run, files=files))
    freshness.write_runs(folder, runs)
    for path, content in contents.items():
        write_atomically(path, lambda file, content=content: file.write(content), mode="wb")


def discard(folder: Path, further: Sequence[Further]) -> None:
    """Remove files of further runs; one that someone has changed since is set aside, where nothing reads it."""
    for each in further:
        for file, digest in each.files.items():
            path = _place(folder, file)
            if _is_as_left(folder, file, digest):
                path.unlink()
            elif path.is_file():
                freshness.set_aside(path, "changed")
    if further and _is_empty(folder / results.RUNS):
        (folder / results.RUNS).rmdir()


def _place(folder: Path, file: str) -> Path:
    return folder / results.RUNS / Path(file).name


def _is_as_left(folder: Path, file: str, digest: str) -> bool:
    path = _place(folder, file)
    return path.is_file() and freshness.digest_file(path) == digest


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _free_place(folder: Path, name: str) -> Path:
    """The first `runs/NN_name.K.json` where there is neither a result nor samples."""
    places = (_place(folder, f"{name}.{number}.json") for number in itertools.count(1))
    return next(path for path in places if not any(map(os.path.lexists, (path, results.samples_path(path)))))
