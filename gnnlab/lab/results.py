"""What a notebook leaves behind: the result file `NN_name.json` with the rows of its table, their samples beside it.

The JSON is the truth of a run; ledger, reports and comparisons are computed from it. Its JSON Schema is published in
`docs/result-file.schema.json`. Further runs of a notebook lie in `runs/`, one result file each.
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
RUNS = "runs"
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
    """`NN_name.json`: everything one run of one notebook found. `run` tells it from every other run.

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
    environment: dict[str, Any]
    rows: list[Row] = Field(default_factory=list)
    samples_sha256: str | None = None  # of NN_name.samples.parquet
    figures: list[FigureRecord] = Field(default_factory=list)
    purposes: dict[str, str] = Field(default_factory=dict)  # of studies whose forms are a choice: what for
    started: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)


def samples_path(path: Path) -> Path:
    """Where the samples of the result file at `path` lie."""
    return Path(path).with_suffix(".samples.parquet")


def write(path: Path, result: ResultFile, table: Table | None = None) -> None:
    """Write a result file with the rows and samples of `table`: samples first, so that none are ever missing."""
    if table is not None:
        written = table.write_samples(samples_path(path))
        result = result.model_copy(update={"rows": list(table), "samples_sha256": written})
    write_json(path, result.model_dump(mode="json"))


def read(path: Path) -> ResultFile:
    """Read a result file; `GnnlabError` says in one line what is wrong with it."""
    path = Path(path)
    try:
        return ResultFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise GnnlabError(f"no result file {path}; run the notebook first: gnnlab run {path.name[:2]}") from None
    except ValidationError as error:
        where, what = first_wrong(error)
        raise GnnlabError(
            f"{path} is not a result file of this version: {where or 'file'}: {what}; run it again"
        ) from None


def table_of(path: Path, result: ResultFile) -> Table:
    """The rows of a result file with their samples. Raises `GnnlabError` where the samples are not its own."""
    table = Table(result.rows)
    if result.samples_sha256 is not None:
        table.read_samples(samples_path(path), result.samples_sha256)
    return table


Loaded = tuple[ResultFile, Table]


def runs_of(folder: Path, notebook: str = "[0-9][0-9]_*") -> tuple[dict[str, list[Loaded]], list[str]]:
    """Every run of each notebook in a folder of results, the latest first, and a line for each that is of no use.

    Further runs count with the same parameters, commit, versions and devices only.
    """
    found: dict[str, list[Loaded]] = {}
    problems: list[str] = []
    for path in sorted(Path(folder).glob(f"{notebook}.json")):
        if path.name.endswith(".failed.json"):
            continue
        runs: dict[str, Loaded] = {}
        for file in [path, *further_runs(folder, path.stem)]:
            try:
                result = read(file)
                if runs and _made_from(result) != _made_from(next(iter(runs.values()))[0]):
                    problems.append(f"{file} has other parameters, code, versions or devices; it is not pooled")
                    continue
                runs.setdefault(result.run, (result, table_of(file, result)))
            except GnnlabError as error:
                problems.append(str(error))
        if runs:
            found[path.stem] = list(runs.values())
    return found, problems


def _made_from(result: ResultFile) -> tuple[Any, ...]:
    """What two runs must have in common to be samples of one thing."""
    known = result.environment
    return result.parameters, *(known.get(name) for name in ("commit", "dirty", "versions", "devices"))


def further_runs(folder: Path, notebook: str) -> list[Path]:
    """The result files of earlier runs of a notebook with the same parameters, code and machine."""
    found = (Path(folder) / RUNS).glob(f"{notebook}.[0-9]*.json")
    return sorted(path for path in found if path.name[len(notebook) + 1 : -len(".json")].isdigit())


def schema() -> dict[str, Any]:
    """JSON Schema of a result file."""
    return ResultFile.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
