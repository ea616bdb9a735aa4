"""A folder of results: for results alone, for one run at a time, replaced whole or not at all, and what it says of its
runs (`runs.json`), so that a notebook runs again only where something has changed since.

What a run makes (result file, samples, figures, executed notebook) waits in `.NN_name.new` beside the earlier results,
which stand meanwhile. `commit` renames that folder to `.NN_name.done` and then moves file by file, the result file
last. Wherever the process ends, the earlier results are there, or a whole new set that `recover` moves to its place.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field, ValidationError

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import provenance, results
from .provenance import Fingerprint
from .table import Strict, sha256

LAB = "outputs/lab"  # below the repository: what cells write that someone runs one by one
STAGED = "GNNLAB_STAGED"  # in the environment of a kernel that the runner started: where its results wait
RUNS, SCHEMA = "runs.json", 2
RECORD = "record.json"  # in a staged folder: what `runs.json` is to say of the run
_DONE, _MORE, _NEW = ".done", ".more", ".new"  # the new results replace all earlier runs, or are one run more
# what notebooks write before they end, whoever runs them
_EARLY = {"exported_models", "inference_models", "packages", "plans", "stages", "tables", "traces"}
_WAITS = re.compile(rf"\.\d\d_.*({_DONE}|{_MORE}|{_NEW})|\.new-.*")


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process, and finish or clear what dead runs left in it.

    Raises `GnnlabError`, before anything is written, where the folder is not one of results, where a living run holds
    it, or where it cannot be written to.
    """
    refuse_foreign(folder)
    with files.locked(folder, "runs notebooks into"):
        with _writing_to(folder):
            recover(folder)
            for left in folder.glob(f".[0-9][0-9]_*{_NEW}/"):
                shutil.rmtree(left)
        if not (folder / RUNS).exists():  # by this the folder is known as one of results from now on
            write_runs(folder, Runs())
        yield


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GnnlabError(f"could not write to {folder}: {error.strerror or error}") from None


# ---- whose folder it is ---------------------------------------------------------------------------------------------


def refuse_foreign(folder: Path) -> None:
    """Raise `GnnlabError` where results cannot go to `folder`: it is git's own, or holds files of someone else."""
    if ".git" in folder.resolve().parts:
        raise GnnlabError(f"output_dir {folder} lies in .git; choose a folder for results alone")
    try:
        names = {path.name for path in folder.iterdir()} - {files.LOCK, files.HOLDER} if folder.is_dir() else set()
    except OSError as error:
        raise GnnlabError(f"could not read {folder}: {error.strerror or error}") from None
    tracked = (provenance.git(folder, "ls-files", "-z", "--", ".") or "") if names else ""
    if tracked := tracked.partition("\0")[0]:
        raise GnnlabError(f"output_dir {folder} holds files that git tracks ({tracked}); choose another folder")
    foreign = {name for name in names - _EARLY if not _WAITS.fullmatch(name)}
    ours = not foreign or RUNS in names or (folder / "exported_models").is_dir()
    if not ours and not any(_is_whole(path) for path in sorted(folder.glob("[0-9][0-9]_*.json"))):
        raise GnnlabError(
            f"output_dir {folder} is not empty and holds no results of gnnlab ({min(foreign)} is there); "
            "choose a new folder, or an empty one"
        )


def _is_whole(path: Path) -> bool:
    """Is it a result file that can be read, with its samples?"""
    try:
        results.table_of(path, results.read(path))
    except GnnlabError:
        return False
    return True


# ---- whole or not at all --------------------------------------------------------------------------------------------


def stage(folder: Path, name: str) -> Path:
    """An empty folder in which the results of notebook `name` wait. Raises `GnnlabError`."""
    place = folder / f".{name}{_NEW}"
    with _writing_to(folder):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    return place


def stage_by_hand(folder: Path) -> tempfile.TemporaryDirectory:
    """An empty folder for what one session makes; those of sessions that were killed go. Raises `GnnlabError`."""
    prefix = f".new-{files.digest(platform.node())[:8]}-"
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{prefix}*/"):
            process = re.match(r"(\d{1,9})-", left.name.removeprefix(prefix))
            if process and not psutil.pid_exists(int(process[1])):
                shutil.rmtree(left, ignore_errors=True)
        return tempfile.TemporaryDirectory(dir=folder, prefix=f"{prefix}{os.getpid()}-", ignore_cleanup_errors=True)


def for_exploring(root: Path, named: Path) -> Path:
    """Where cells write that someone runs by hand: the folder that they named, or `LAB` where that is the one of a
    parameter set or holds the results of a run.
    """
    sets = {root / "outputs" / path.name for path in (root / "params").iterdir() if path.is_dir()}
    return root / LAB if named in sets or (named / RUNS).exists() else named


def copy_for_exploring(source: Path, folder: Path, number: str) -> list[str]:
    """Copy the result of a notebook, and what notebooks leave for later ones, where `folder` has none; gives the names.

    Raises `GnnlabError`.
    """
    with _writing_to(folder):
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
    further ones, too. What is left of a run that failed goes. Raises `GnnlabError`.
    """
    recover(folder)  # what stands half moved was there first
    if run is not None:
        files.write_sealed(staged / RECORD, run.model_dump(mode="json"))
    with _writing_to(folder):
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
        with suppress(GnnlabError):  # a record that was changed is none: the notebook runs again
            runs.runs[name] = Run.model_validate(files.read_sealed(place / RECORD, "run it again"))
            write_runs(folder, runs)
    shutil.rmtree(place)


def _keep(folder: Path, name: str) -> None:
    """Move samples and then the result of the latest run to `runs/NN_name.K.*`."""
    kept = folder / results.RUNS
    kept.mkdir(exist_ok=True)
    number = 1
    while _is_whole(kept / f"{name}.{number}.json"):  # what does not read makes room
        number += 1
    for source in (results.samples_path(folder / f"{name}.json"), folder / f"{name}.json"):
        if source.exists():
            target = kept / source.name.replace(name, f"{name}.{number}", 1)
            if target.exists():
                files.set_aside(target, "changed")
            source.replace(target)


def _drop_further(folder: Path, name: str) -> None:
    """Remove the further runs of a notebook; what does not read someone has changed, so it is set aside."""
    for path in results.further_runs(folder, name):
        samples = results.samples_path(path)
        if _is_whole(path):
            path.unlink()
            samples.unlink(missing_ok=True)
            continue
        for each in (samples, path):
            if each.exists():
                files.set_aside(each, "changed")
    for path in (folder / results.RUNS).glob(f"{name}.*.samples.parquet"):
        if re.fullmatch(rf"{re.escape(name)}\.\d+\.samples\.parquet", path.name):
            path.unlink()  # a process ended between a result and its samples


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
    result_digest: str  # of NN_name.json
    fingerprint: Fingerprint

    @property
    def when(self) -> str:
        """Local time, to the minute."""
        return f"{datetime.fromisoformat(self.finished).astimezone():%Y-%m-%d %H:%M}"


class Runs(Strict):
    """`runs.json` of a results folder."""

    schema_version: Literal[2] = SCHEMA
    runs: dict[str, Run] = Field(default_factory=dict)
    sha256: str = ""


def read_runs(folder: Path) -> tuple[Runs, str | None]:
    """The record of a results folder, and a message where it is of no use here: then it is set aside, not deleted."""
    path = folder / RUNS
    try:
        content = path.read_bytes()
        runs = Runs.model_validate_json(content)
        files.unsealed(json.loads(content))
        return runs, None
    except FileNotFoundError:
        return Runs(), None
    except ValidationError as error:
        first = error.errors()[0]
        written = first["input"] if first["loc"] == ("schema_version",) else None
        if isinstance(written, int):
            why, what = "other", f"was written by another version of gnnlab (schema {written}, this one is {SCHEMA})"
        else:
            why, what = "damaged", f"is damaged ({first['msg']})"
    except (ValueError, RecursionError):
        why, what = "changed", "is not as gnnlab wrote it"
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}") from None
    kept = files.set_aside(path, why)
    return Runs(), f"{path} {what}; it was set aside as {kept.name} and its notebooks run again"


def write_runs(folder: Path, runs: Runs) -> None:
    """Write the record, atomically. Raises `GnnlabError`."""
    files.write_sealed(folder / RUNS, runs.model_dump(mode="json", exclude={files.SEAL}))


def record(result: results.ResultFile, path: Path, fingerprint: Fingerprint, seconds: float) -> Run:
    """The record of a run that has just ended with the result file at `path`."""
    return Run(
        status=result.status.value,
        reason=result.reason,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        result_digest=files.digest(path),
        fingerprint=fingerprint,
    )


def why_again(name: str, folder: Path, run: Run, now: Fingerprint) -> str | None:
    """Why a notebook has to run again: "code changed (profiling/timing.py)", or None when its results still hold."""
    lost = _lost(name, folder, run)
    if lost:
        return lost
    changed = [_changed(part, run.fingerprint.get(part, {}), now[part]) for part in now]
    return "; ".join(clause for clause in changed if clause) or None


def _lost(name: str, folder: Path, run: Run) -> str | None:
    """Which output is not as the run left it."""
    path = folder / f"{name}.json"
    try:
        if files.digest(path) != run.result_digest:
            return f"{path.name} is not as the run left it"
    except OSError:
        return f"{path.name} is missing"
    result, samples = results.read(path), results.samples_path(path)
    figures = [file for figure in result.figures for file in (figure.png, figure.svg)]
    for file in (f"{name}.ipynb", *figures, *([samples.name] if result.samples_sha256 else [])):
        if not (folder / file).is_file():
            return f"{file} is missing"
    if result.samples_sha256 and sha256(samples.read_bytes()) != result.samples_sha256:
        return f"{samples.name} is not the one that {path.name} names"
    return None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    absent = object()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name, absent) != now.get(name, absent))
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"
