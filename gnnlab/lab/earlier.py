"""Earlier results of a notebook, kept until new ones stand.

What the runner makes for a while it writes down first, name by name, in `.running.json`. Of a dead run exactly what is
written there is cleared; no file is ever deleted for its name alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gnnlab.safe_files import write_json

from .results import ResultError, samples_path
from .table import Strict

RECORD = ".running.json"


class Record(Strict):
    """`.running.json`: what the run of a notebook makes for a while, written down before it is made."""

    schema_version: Literal[1] = 1
    notebook: str = Field(pattern=r"^\w+$")
    made: list[str]  # files that were not there before: a run that does not pass leaves none of them
    kept: list[str]  # earlier results, copied to `NN_name.running.earlier/`
    whole: bool  # whether the copies are all there: only then the run itself begins


@contextmanager
def earlier_results(folder: Path, name: str) -> Iterator[Earlier]:
    """Earlier results of a notebook come back at the end, after Ctrl-C too, unless they are let go of by then.

    Of a run that is killed they come back when the next run takes the folder.
    """
    earlier = Earlier(folder, name)
    try:
        earlier.keep()
        yield earlier
    except OSError as error:
        raise ResultError(
            f"could not write to {folder}: {error.strerror or error}; earlier results are kept"
        ) from error
    finally:
        earlier.restore()


class Earlier:
    """A copy of what a notebook left (result file, samples, executed notebook, figures) while a run may replace it.

    `running` is where that run writes its executed notebook.
    """

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.running, self.place = folder / f"{name}.running.ipynb", folder / f"{name}.running.earlier"

    def keep(self) -> None:
        """Make the copy. Raises `ResultError` where files of someone else are in its place."""
        for path in (self.running, self.place, self.folder / RECORD):
            if os.path.lexists(path):
                raise ResultError(f"{path} is in the way, and no run has recorded it as its own; move it elsewhere")
        kept = self._files()
        made = [self.running.name, *(file for file in _outputs(self.name) if not (self.folder / file).exists())]
        self._write(made, kept, whole=False)
        self.place.mkdir()
        for file in kept:
            (self.place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / file, self.place / file)
        self._write(made, kept, whole=True)

    def let_go(self) -> None:
        """The new results stand."""
        kept = _read_record(self.folder).kept
        self._clear(self._write([self.running.name], kept, whole=False))  # from here on the copy is not put back

    def restore(self) -> None:
        """Put the copy back, where there is a whole one, and remove the rest. Needs no space on the disk."""
        record = _read_record(self.folder)
        if record is None or record.notebook != self.name:
            return
        for file in record.kept if record.whole else ():
            with suppress(FileNotFoundError):  # it is back already: putting it back was stopped, and goes on
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                (self.place / file).replace(self.folder / file)
        self._clear(record)

    def _clear(self, record: Record) -> None:
        """Remove exactly what the record names, then the record."""
        for path in [*(self.folder / file for file in record.made), *(self.place / file for file in record.kept)]:
            path.unlink(missing_ok=True)
        folders = {parent for file in record.kept for parent in Path(file).parents}
        for each in sorted(folders | {Path()}, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # not there, or someone has put a file into it
                (self.place / each).rmdir()
        (self.folder / RECORD).unlink()

    def _write(self, made: list[str], kept: list[str], *, whole: bool) -> Record:
        record = Record(notebook=self.name, made=made, kept=kept, whole=whole)
        write_json(self.folder / RECORD, record.model_dump(mode="json"))
        return record

    def _files(self) -> list[str]:
        """The files that exist of it, relative to the folder."""
        result = f"{self.name}.json"
        try:
            figures = json.loads((self.folder / result).read_bytes()).get("figures", [])
            named = [figure[kind] for figure in figures for kind in ("png", "svg")]
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # damaged: kept as it is
            named = []
        files = [file for file in dict.fromkeys([*named, *_outputs(self.name)]) if _is_inside(self.folder, file)]
        return [file for file in files if (self.folder / file).is_file()]


def _outputs(name: str) -> tuple[str, ...]:
    return f"{name}.json", samples_path(Path(f"{name}.json")).name, f"{name}.ipynb"


def _is_inside(folder: Path, file: str) -> bool:
    return (folder / file).resolve().is_relative_to(folder.resolve())


def _read_record(folder: Path) -> Record | None:
    """What a run has written down; raises `ResultError` where it is no record of this runner."""
    path = folder / RECORD
    try:
        record = Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise ResultError(f"{path} is no record of a run; move it elsewhere, then run again") from None
    own = {f"{record.notebook}.running.ipynb", *_outputs(record.notebook)}
    if not own.issuperset(record.made) or not all(_is_inside(folder, file) for file in record.kept):
        raise ResultError(f"{path} names files that no run makes; move it elsewhere, then run again")
    return record


def clear_dead_run(folder: Path) -> None:
    """Undo what a dead run began: earlier results come back, what it made for a while goes."""
    record = _read_record(folder)
    if record is not None:
        Earlier(folder, record.notebook).restore()
