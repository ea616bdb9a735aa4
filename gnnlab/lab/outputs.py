"""The results folder: its lock, atomic replacement of a notebook's results, and the record of its runs (`runs.json`).

A notebook runs again only where something has changed since its record was written.

What a run makes (result file, samples, figures, executed notebook) waits in `.NN_name.new` beside the earlier results,
which stand meanwhile. `commit` renames that folder to `.NN_name.done` and then moves file by file, the result file
last. Wherever the process ends, the earlier results are there, or a whole new set that `recover` moves to its place.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import results
from .provenance import Fingerprint
from .table import Strict

LAB = "outputs/lab"  # below the repository: what cells write that someone runs one by one
STAGED = "GNNLAB_STAGED"  # in the environment of a kernel that the runner started: where its results wait
RUNS = "runs.json"
RECORD = "record.json"  # in a staged folder: what `runs.json` is to say of the run
_DONE, _MORE, _NEW = ".done", ".more", ".new"  # the new results replace all earlier runs, or are one run more
_OURS = re.compile(r"runs\.json|\d\d_.*\.samples\.parquet|exported_models|stages")  # by one of these a folder is ours
# what notebooks write before they end, whoever runs them
_EARLY = {"exported_models", "inference_models", "packages", "plans", "stages", "tables", "traces"}


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process, and finish or clear what a killed run left in it.

    Raises `GnnlabError`, before anything is written, where the folder holds files of someone else or another run.
    """
    _require_ours(folder)
    with files.locked(folder, "runs notebooks into"):
        recover(folder)
        for left in folder.glob(f".[0-9][0-9]_*{_NEW}/"):
            shutil.rmtree(left)
        if not (folder / RUNS).exists():  # by this the folder is known as one of results from now on
            write_runs(folder, Runs())
        yield


def _require_ours(folder: Path) -> None:
    """Raise `GnnlabError` where `folder` is not empty and nothing in it is of gnnlab."""
    names = sorted({path.name for path in folder.iterdir()} - {files.LOCK}) if folder.is_dir() else []
    if names and not any(_OURS.fullmatch(name) for name in names):
        raise GnnlabError(
            f"output_dir {folder} is not empty and holds no results of gnnlab ({names[0]} is there); "
            "choose a new folder, or an empty one"
        )


# ---- whole or not at all --------------------------------------------------------------------------------------------


def stage(folder: Path, name: str) -> Path:
    """An empty folder in which the results of notebook `name` wait."""
    place = folder / f".{name}{_NEW}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def stage_by_hand(folder: Path) -> tempfile.TemporaryDirectory:
    """An empty folder for what one session makes."""
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=folder, prefix=f"{_NEW}-", ignore_cleanup_errors=True)


def for_exploring(root: Path, named: Path) -> Path:
    """Where cells write that someone runs by hand: the folder that they named, or `LAB` where that is the one of a
    parameter set or holds the results of a run.
    """
    sets = {root / "outputs" / path.name for path in (root / "params").iterdir() if path.is_dir()}
    return root / LAB if named in sets or (named / RUNS).exists() else named


def copy_for_exploring(source: Path, folder: Path, number: str) -> list[str]:
    """Copy the result of a notebook, and what notebooks leave for later ones, where `folder` has none; gives the
    names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(_EARLY - {"traces"}) + [path.name for path in source.glob(f"{number}_*") if path.is_file()]
    copied = [name for name in names if (source / name).exists() and not (folder / name).exists()]
    for name in copied:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        else:
            shutil.copy2(source / name, folder / name)
    return copied


def commit(staged: Path, folder: Path, name: str, run: Run | None = None, *, more: bool = False) -> None:
    """Put the staged results of a notebook in the place of the earlier ones, and `run` into the record.

    With `more` the earlier ones stay as a further run, in `runs/`; without it a recorded run takes the place of the
    further ones, too. What is left of a run that failed goes.
    """
    recover(folder)  # what stands half moved was there first
    if run is not None:
        files.write_json(staged / RECORD, run.model_dump(mode="json"))
    staged.rename(folder / f".{name}{_MORE if more else _DONE}")
    recover(folder)


def recover(folder: Path) -> None:
    """Move every whole set of results that waits in `folder` to its place."""
    for kind in (_DONE, _MORE):
        for place in sorted(folder.glob(f".[0-9][0-9]_*{kind}")):
            _move(place, folder, place.name[1 : -len(kind)], more=kind == _MORE)


def _move(place: Path, folder: Path, name: str, *, more: bool) -> None:
    """Each step may be the last one that a process does; done again, it goes on."""
    result = f"{name}.json"
    if (place / result).exists():
        if more and (folder / result).exists():  # else they are kept already
            _keep(folder, name)
        elif not more and (place / RECORD).exists():
            _drop_further(folder, name)
        os.utime(place / result)  # what was rendered while it waited is older
        waiting = [p for p in place.rglob("*") if p.is_file() and p.name not in (RECORD, result)]
        for path in [*sorted(waiting), place / result]:
            target = folder / path.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    for kind in ("json", "samples.parquet", "ipynb", "html"):  # of the last run that failed
        (folder / f"{name}.failed.{kind}").unlink(missing_ok=True)
    if (place / RECORD).exists():
        runs, _ = read_runs(folder)
        runs.runs[name] = Run.model_validate_json((place / RECORD).read_bytes())
        write_runs(folder, runs)
    shutil.rmtree(place)


def _keep(folder: Path, name: str) -> None:
    """Move samples and then the result of the latest run to `runs/NN_name.K.*`."""
    kept = folder / results.RUNS
    kept.mkdir(exist_ok=True)
    number = 1
    while (kept / f"{name}.{number}.json").exists():
        number += 1
    for source in (results.samples_path(folder / f"{name}.json"), folder / f"{name}.json"):
        if source.exists():
            source.replace(kept / source.name.replace(name, f"{name}.{number}", 1))


def _drop_further(folder: Path, name: str) -> None:
    """Remove the further runs of a notebook."""
    for path in (folder / results.RUNS).glob(f"{name}.*"):
        if re.fullmatch(rf"{re.escape(name)}\.\d+\.(json|samples\.parquet)", path.name):
            path.unlink()


def fail(staged: Path, folder: Path, name: str, result: results.ResultFile) -> Path | None:
    """Write what there is of a failed run beside the earlier results: `result`, with the rows that were staged, and its
    executed notebook, whose path is returned, if it has one."""
    path, table = folder / f"{name}.failed.json", None
    results.samples_path(path).unlink(missing_ok=True)  # of the run that failed before
    with suppress(GnnlabError):  # it may have ended while it wrote them
        left = results.read(staged / f"{name}.json")
        table = results.table_of(staged / f"{name}.json", left)
        result = result.model_copy(update={"run": left.run, "environment": left.environment})
    results.write(path, result, table)
    executed, kept = staged / f"{name}.ipynb", folder / f"{name}.failed.ipynb"
    kept.unlink(missing_ok=True)
    if executed.exists():
        executed.replace(kept)
    shutil.rmtree(staged, ignore_errors=True)
    return kept if kept.exists() else None


# ---- the record of its runs ------------------------------------------------------------------------------------------


class Run(Strict):
    """The last passed or skipped run of a notebook."""

    status: Literal["passed", "skipped"]
    reason: str | None = None
    finished: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)
    run: str  # the one that wrote NN_name.json
    fingerprint: Fingerprint

    @property
    def when(self) -> str:
        """Local time, to the minute."""
        return f"{datetime.fromisoformat(self.finished).astimezone():%Y-%m-%d %H:%M}"


class Runs(Strict):
    """`runs.json` of a results folder."""

    runs: dict[str, Run] = Field(default_factory=dict)


def read_runs(folder: Path) -> tuple[Runs, str | None]:
    """The record of a results folder, and a message where it cannot be used."""
    path = folder / RUNS
    try:
        return Runs.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return Runs(), None
    except ValidationError:
        return Runs(), f"{path} is damaged or of another version of gnnlab; its notebooks run again"


def write_runs(folder: Path, runs: Runs) -> None:
    files.write_json(folder / RUNS, runs.model_dump(mode="json"))


def record(result: results.ResultFile, fingerprint: Fingerprint, seconds: float) -> Run:
    """The record of a run that has just ended with this result."""
    return Run(
        status=result.status.value,
        reason=result.reason,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        run=result.run,
        fingerprint=fingerprint,
    )


def why_again(name: str, folder: Path, run: Run, now: Fingerprint) -> str | None:
    """Why a notebook has to run again: "code changed (profiling/timing.py)", or None when its results still hold."""
    path = folder / f"{name}.json"
    try:
        result = results.read(path)
    except GnnlabError:
        return f"{path.name} is missing or cannot be read"
    if result.run != run.run:
        return f"{path.name} is of another run"
    samples = [results.samples_path(path).name] if result.samples_sha256 else []
    for file in (f"{name}.ipynb", *samples):
        if not (folder / file).is_file():
            return f"{file} is missing"
    changed = [_changed(part, run.fingerprint.get(part, {}), now[part]) for part in now]
    return "; ".join(clause for clause in changed if clause) or None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    absent = object()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name, absent) != now.get(name, absent))
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"
