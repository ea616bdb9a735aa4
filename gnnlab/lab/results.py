"""What a run of a notebook leaves in its folder: `result.json` with the rows of its table, their samples beside it.

The JSON is the truth of a run; ledger, reports and comparisons are computed from it. Its JSON Schema is published in
`docs/result-file.schema.json`. All runs of a notebook lie in `NN_name/`, a folder each (`gnnlab.lab.runs`).
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import write_json

from .table import Row, Strict, Table

SCHEMA_VERSION = 2
RESULT, SAMPLES, NOTEBOOK = "result.json", "samples.parquet", "notebook.ipynb"  # in the folder of a run
END = "gnnlab_end"  # in the metadata of an output: later cells were not run
RUN = "gnnlab_run"  # in the metadata of an output of an executed notebook: the `run` of its result file


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
    fingerprint: dict[str, dict[str, Any]] = Field(default_factory=dict)  # from what it was made; {} where not known
    environment: dict[str, Any]
    rows: list[Row] = Field(default_factory=list)
    figures: list[FigureRecord] = Field(default_factory=list)
    purposes: dict[str, str] = Field(default_factory=dict)  # of studies whose forms are a choice: what for
    started: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)


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
        where, what = first_wrong(error)
        raise GnnlabError(
            f"{path} is not a result file of this version: {where or 'file'}: {what}; run it again"
        ) from None


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


def schema() -> dict[str, Any]:
    """JSON Schema of a result file."""
    return ResultFile.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
