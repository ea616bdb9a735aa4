"""The outputs folder: a run of a notebook is a folder in it, put in place by one rename.

    outputs/quick/02_optimize_gnn/0007/     result.json  samples.parquet  notebook.ipynb  figures/

The JSON is the truth of a run (its schema: `docs/result-file.schema.json`). The newest run that passed is the result;
earlier ones that were made alike are pooled with it. Runs are written to a temporary folder and renamed, so a crash
never leaves a half-written one. Their names are numbers, one above the last: no clock decides which is the newest.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from gnnlab import machine
from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import LOCK, locked, write_json

from .table import Row, Strict, Table

SCHEMA_VERSION = 3  # rows of some results of 2 are as in 3
RESULT, SAMPLES, NOTEBOOK = "result.json", "samples.parquet", "notebook.ipynb"  # in the folder of a run
MARK, UNFINISHED = ".gnnlab", ".run-"  # in every outputs folder; before the name of a run that is not in place
END = "gnnlab_end"  # in the metadata of an output: later cells were not run
PLACE = "GNNLAB_RUN"  # in the environment of a kernel that the runner started: the folder that its run fills


class Status(StrEnum):
    """How the run of a notebook ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


GOOD = (Status.PASSED, Status.SKIPPED)


class FigureRecord(Strict):
    """A figure on disk. Paths are relative to the result file."""

    name: str
    title: str
    alt: str
    png: str
    svg: str
    key: bool = False  # the one that the front page shows


class ResultFile(Strict):
    """`result.json`: everything one run of one notebook found. `run` tells it from every other run."""

    model_config = ConfigDict(extra="ignore")  # fields of other versions

    schema_version: Literal[2, 3] = SCHEMA_VERSION
    run: str
    notebook: str
    params_set: str
    status: Status
    reason: str | None = None  # why skipped, failed or timed out
    parameters: dict[str, Any]
    made_from: str = ""  # digest of the code and the files that it was made from; "" where not known
    environment: Annotated[dict[str, Any], AfterValidator(machine.known)] = Field(default_factory=dict)
    rows: list[Row] = Field(default_factory=list)
    figures: list[FigureRecord] = Field(default_factory=list)
    started: str  # ISO 8601, UTC
    seconds: float = Field(0, ge=0)

    @classmethod
    def start(cls, notebook: str, params_set: str, parameters: dict[str, Any]) -> ResultFile:
        """The result file of a run that starts now; its status is failed until `finish`."""
        known = {"notebook": notebook, "params_set": params_set, "parameters": parameters, "status": Status.FAILED}
        return cls(run=uuid.uuid4().hex, started=datetime.now(UTC).isoformat(timespec="milliseconds"), **known)

    def finish(self, status: str, reason: str | None, **fields: Any) -> ResultFile:
        """The result file of a run that ends now, with its duration."""
        took = datetime.now(UTC) - datetime.fromisoformat(self.started)
        known = {"status": Status(status), "reason": reason, "seconds": round(max(0.0, took.total_seconds()), 1)}
        return self.model_copy(update=known | fields)


def make_folder(folder: Path) -> None:
    """Make `folder` an outputs folder. Raises `GnnlabError` where it has files in it and is none."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARK).exists() and {path.name for path in folder.iterdir()} - {LOCK}:
        why = "is not empty and is no outputs folder of this gnnlab"
        raise GnnlabError(f"output_dir {folder} {why}; choose a new folder or an empty one, or move this one away")
    (folder / MARK).touch()


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (`make_folder`) for this process; another that runs into it is a `GnnlabError`. What a killed
    process left of its run goes.
    """
    make_folder(folder)
    with locked(folder, "runs notebooks into") as held:
        for left in folder.glob(f"{UNFINISHED}*") if held else ():  # without locks it may be another's
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def place(folder: Path) -> Iterator[Path]:
    """An empty folder in `folder` for a run to fill, which goes at the end unless it was `put`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED, ignore_cleanup_errors=True) as name:
        yield Path(name)


def put(place: Path, notebook: str) -> Path:
    """Put the run in `place` among those of a notebook, by one rename; its folder, the one with the highest number."""
    runs = place.parent / notebook
    runs.mkdir(exist_ok=True)
    while True:
        target = runs / f"{1 + max(map(number, runs.iterdir()), default=0):04d}"
        try:
            return place.rename(target)
        except OSError:
            if not target.exists():  # else another process put a run there just now
                raise


def number(run: Path) -> int:
    """Of the folder of a run; those of docs/reference-runs have moments for names."""
    return int(re.sub(r"\D", "", run.name) or 0)


def write(path: Path, result: ResultFile, table: Table | None = None) -> None:
    """Write a result file with the rows and samples of `table`: samples first, so that none are ever missing."""
    if table is not None:
        table.write_samples(path.with_name(SAMPLES))
        result = result.model_copy(update={"rows": list(table)})
    write_json(path, result.model_dump(mode="json"))


def read(path: Path) -> ResultFile:
    """Read a result file; `GnnlabError` says in one line what is wrong with it."""
    try:
        content = path.read_bytes()
        return ResultFile.model_validate_json(content)
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror}; run it again") from None
    except ValidationError as error:
        wrong = ": ".join(filter(None, first_wrong(error)))
        version = re.search(rb'"schema_version": *(\d{1,9})\b', content)
        if version and int(version[1]) != SCHEMA_VERSION:
            wrong += f" (it is of version {int(version[1])}, this one writes {SCHEMA_VERSION})"
        raise GnnlabError(f"{path} is not a result file of this version: {wrong}; run it again") from None


def table_of(path: Path, result: ResultFile) -> Table:
    """The rows of a result file with their samples. Raises `GnnlabError` where those are missing or damaged."""
    table = Table(result.rows)
    if result.rows:
        table.read_samples(path.with_name(SAMPLES))
    return table


def paths(folder: Path, notebook: str = "[0-9][0-9]_*") -> list[Path]:
    """The result files of all runs of a notebook, the newest first."""
    return sorted(Path(folder).glob(f"{notebook}/*/{RESULT}"), key=lambda path: number(path.parent), reverse=True)


def readable(folder: Path, notebook: str) -> Iterator[tuple[Path, ResultFile]]:
    """The runs of a notebook that can be read, the newest first; of the others `runs_of` has a line."""
    for path in paths(folder, notebook):
        with suppress(GnnlabError):
            yield path, read(path)


def newest(folder: Path, notebook: str) -> tuple[Path | None, Path | None]:
    """The result files of the newest run that passed or was skipped, and of the newest failure after it."""
    failed = None
    for path, result in readable(folder, notebook):
        if result.status in GOOD:
            return path, failed
        failed = failed or path
    return None, failed


def runs_of(folder: Path) -> tuple[dict[str, list[tuple[ResultFile, Table]]], list[str]]:
    """The runs of each notebook that count, the newest first, and a line for each that cannot be read.

    Beside the newest that did not fail, those count that were made as it was: with the same parameters, code, input
    files and versions, on the same machine with as many cores and threads.
    """
    by_notebook, problems = {}, []
    for path in paths(folder):
        try:
            result = read(path)
            runs = by_notebook.setdefault(path.parent.parent.name, [])
            alike = all(made_as(other) == made_as(result) and other.run != result.run for other, _ in runs)
            if result.status in GOOD and alike:
                runs.append((result, table_of(path, result)))
        except GnnlabError as error:
            problems.append(str(error))
    return {name: runs for name, runs in sorted(by_notebook.items()) if runs}, problems


def made_as(result: ResultFile) -> list[Any]:
    """What decides over the numbers of a run; what it did not record is None."""
    seen, cpu = result.environment, result.environment.get("cpu") or {}
    machine = [cpu.get(name) for name in ("model", "cores", "logical", "usable", "quota")]
    others = [seen.get(name) for name in ("threads", "omp_num_threads", "devices", "python", "versions")]
    return [result.parameters, result.made_from or seen.get("commit"), *machine, *others]


if __name__ == "__main__":
    print(json.dumps(ResultFile.model_json_schema(), indent=1))
