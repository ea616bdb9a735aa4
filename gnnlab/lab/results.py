"""The outputs folder: a run of a notebook is a folder in it, put in place by one rename.

    outputs/quick/02_optimize_gnn/20261122-101503-004217/     result.json  samples.parquet  notebook.ipynb  figures/

The JSON is the truth of a run (its schema: `docs/result-file.schema.json`); ledger, reports and comparisons are
computed from it. The newest run that passed is the result; earlier ones that were made from the same are pooled with it
(`runs_of`). A run that failed stands beside them. A run is written elsewhere in the folder first, so wherever a process
ends, the runs before it are there, or the new one, too. A rename cannot replace a folder with something in it: so each
run has a name of its own.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import LOCK, locked, write_json

from .table import Row, Strict, Table

SCHEMA_VERSION = 2
RESULT, SAMPLES, NOTEBOOK = "result.json", "samples.parquet", "notebook.ipynb"  # in the folder of a run
MARK = ".gnnlab"  # in every outputs folder
END = "gnnlab_end"  # in the metadata of an output: later cells were not run
PLACE = "GNNLAB_RUN"  # in the environment of a kernel that the runner started: the folder that its run fills


class Status(StrEnum):
    """How the run of a notebook ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


class FigureRecord(Strict):
    """A figure on disk. Paths are relative to the result file."""

    name: str
    title: str
    alt: str
    png: str
    svg: str
    key: bool = False  # the one that the front page shows


class ResultFile(Strict):
    """`result.json`: everything one run of one notebook found. `run` tells it from every other run.

    Fields of other versions are left out when it is read.
    """

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[2] = SCHEMA_VERSION
    run: str
    notebook: str
    params_set: str
    status: Status
    reason: str | None = None  # why skipped, failed or timed out
    parameters: dict[str, Any]
    fingerprint: dict[str, Any] = Field(default_factory=dict)  # from what it was made; {} where not known
    environment: dict[str, Any] = Field(default_factory=dict)
    rows: list[Row] = Field(default_factory=list)
    figures: list[FigureRecord] = Field(default_factory=list)
    purposes: dict[str, str] = Field(default_factory=dict)  # of studies whose forms are a choice: what for
    started: str  # ISO 8601, UTC
    seconds: float = Field(0, ge=0)

    @classmethod
    def begun(cls, notebook: str, params_set: str, parameters: dict[str, Any], **fields: Any) -> ResultFile:
        """That of a run that begins now; it has failed until it has `ended`."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = {"notebook": notebook, "params_set": params_set, "parameters": parameters, "started": now, **fields}
        return cls(run=uuid.uuid4().hex, status=Status.FAILED, **about)

    def ended(self, status: str, reason: str | None, **fields: Any) -> ResultFile:
        """That of a run that ends now, with its time."""
        took = datetime.now(UTC) - datetime.fromisoformat(self.started)
        known = {"status": Status(status), "reason": reason, "seconds": round(max(0.0, took.total_seconds()), 1)}
        return self.model_copy(update=known | fields)


def claim(folder: Path) -> None:
    """Make `folder` an outputs folder. Raises `GnnlabError` where it has files in it and is none."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = sorted({path.name for path in folder.iterdir()} - {LOCK})
    if foreign and not (folder / MARK).exists():
        raise GnnlabError(
            f"output_dir {folder} is not empty and is no outputs folder of this gnnlab ({foreign[0]} is there); "
            "choose a new folder or an empty one, or move this one away"
        )
    (folder / MARK).touch()


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder`, which `claim` makes or refuses, for this process; another that runs into it is a `GnnlabError`."""
    claim(folder)
    with locked(folder, "runs notebooks into"):
        yield


def begin(folder: Path, notebook: str) -> Path:
    """An empty folder for a run of `notebook` to fill; what a killed run left there goes."""
    place = folder / f".{notebook}.new"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def put(place: Path, folder: Path, notebook: str) -> Path:
    """Put a run in place, by one rename; returns where it is then."""
    target = folder / notebook / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    target.parent.mkdir(exist_ok=True)
    return place.rename(target)


def write(path: Path, result: ResultFile, table: Table | None = None) -> None:
    """Write a result file with the rows and samples of `table`: samples first, so that none are ever missing."""
    if table is not None:
        table.write_samples(path.with_name(SAMPLES))
        result = result.model_copy(update={"rows": list(table)})
    write_json(path, result.model_dump(mode="json"))


def read(path: Path) -> ResultFile:
    """Read a result file; `GnnlabError` says in one line what is wrong with it."""
    path = Path(path)
    try:
        return ResultFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise GnnlabError(f"no result file {path}; run the notebook first: gnnlab run") from None
    except ValidationError as error:
        wrong = ": ".join(filter(None, first_wrong(error)))
        raise GnnlabError(f"{path} is not a result file of this version: {wrong}; run it again") from None


def table_of(path: Path, result: ResultFile) -> Table:
    """The rows of a result file with their samples. Raises `GnnlabError` where those are missing or damaged."""
    table = Table(result.rows)
    if result.rows:
        table.read_samples(path.with_name(SAMPLES))
    return table


Loaded = tuple[ResultFile, Table]


def paths(folder: Path, notebook: str = "[0-9][0-9]_*") -> list[Path]:
    """The result files of all runs of a notebook, the newest first: the names of their folders are moments."""
    return sorted(Path(folder).glob(f"{notebook}/*/{RESULT}"), key=lambda path: path.parent.name, reverse=True)


def newest(folder: Path, notebook: str) -> tuple[Path | None, Path | None]:
    """The result file of the newest run that passed or skipped itself, and that of the newest that failed since."""
    failed = None
    for path in paths(folder, notebook):
        try:
            if read(path).status in (Status.PASSED, Status.SKIPPED):
                return path, failed
            failed = failed or path
        except GnnlabError:
            continue  # `runs_of` says so
    return None, failed


def runs_of(folder: Path, notebook: str = "[0-9][0-9]_*") -> tuple[dict[str, list[Loaded]], list[str]]:
    """The runs of each notebook that count, and a line for each that cannot be read.

    The newest comes first, then the earlier ones in their order, as far as they were made from the same as the newest:
    parameters, code, inputs, versions, machine. Those that failed do not count.
    """
    by_notebook: dict[str, list[Loaded]] = {}
    problems: list[str] = []
    for path in paths(folder, notebook):
        try:
            result = read(path)
            runs = by_notebook.setdefault(path.parent.parent.name, [])
            passed = result.status in (Status.PASSED, Status.SKIPPED)
            same = all(
                (other.fingerprint, other.parameters) == (result.fingerprint, result.parameters)
                and other.run != result.run
                for other, _ in runs
            )
            if passed and same:
                runs.append((result, table_of(path, result)))
        except GnnlabError as error:
            problems.append(str(error))
    return {name: [runs[0], *reversed(runs[1:])] for name, runs in sorted(by_notebook.items()) if runs}, problems


if __name__ == "__main__":
    print(json.dumps(ResultFile.model_json_schema(), indent=1))
