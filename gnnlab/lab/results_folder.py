"""A folder of results: for results alone, and for one run at a time."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from . import earlier, freshness, results
from .results import ResultError

LOCK = ".lock"
_YOUNG_S = 10.0  # a lock without readable content that is younger is being written; an older one is a dead run's


class FolderError(ValueError):
    """A folder that results cannot go to. The message is one line for the reader."""


class FolderInUseError(ValueError):
    """Another run works in the folder. The message is one line for the reader."""


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process, and clear what dead runs left in it.

    The lock names its process by id and start time, so that the lock of a dead run is known and taken over. Raises
    `FolderError`, before anything is written, where the folder is not one of results, `FolderInUseError` where a living
    run holds it, `ResultError` where it cannot be written to.
    """
    refuse_foreign(folder)
    lock = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock)
    except OSError as error:
        raise ResultError(f"could not write to {folder}: {error.strerror or error}") from None
    try:
        earlier.clear_dead_run(folder)
        if not (folder / freshness.RUNS).exists():  # by this the folder is known as one of results from now on
            freshness.write_runs(folder, freshness.Runs())
        yield
    finally:
        lock.unlink(missing_ok=True)


# ---- whose folder it is ---------------------------------------------------------------------------------------------


def refuse_foreign(folder: Path) -> None:
    """Raise `FolderError` where results cannot go to `folder`: it is git's own, or holds files of someone else."""
    if ".git" in folder.resolve().parts:
        raise FolderError(f"output_dir {folder} lies in .git; choose a folder for results alone")
    names = _names_in(folder)
    if not names:
        return
    tracked = _tracked(folder)
    if tracked:
        raise FolderError(f"output_dir {folder} holds files that git tracks ({tracked}); choose another folder")
    if not _is_ours(folder, names):
        raise FolderError(
            f"output_dir {folder} is not empty and holds no results of gnnlab ({min(names)} is there); "
            "choose a new folder, or an empty one"
        )


def _names_in(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    except OSError as error:
        raise ResultError(f"could not read {folder}: {error.strerror or error}") from None


def _tracked(folder: Path) -> str | None:
    """The first file in `folder` that git tracks; None where there is none, or no git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--", "."]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        listed = subprocess.run(command, capture_output=True, timeout=60, check=True, env=plain).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.partition(b"\0")[0].decode(errors="replace") or None


def _is_ours(folder: Path, names: set[str]) -> bool:
    """Does it hold the runner's record, models that were exported, or a result file that can be read?"""
    if freshness.RUNS in names or (folder / "exported_models").is_dir():
        return True
    return any(_is_result(path) for path in sorted(folder.glob("[0-9][0-9]_*.json")))


def _is_result(path: Path) -> bool:
    try:
        results.read(path)
    except ResultError:
        return False
    return True


# ---- the lock -------------------------------------------------------------------------------------------------------


def _acquire(lock: Path) -> None:
    for _ in range(2):
        try:
            with lock.open("x", encoding="utf-8") as file:
                json.dump({"pid": os.getpid(), "started": psutil.Process().create_time()}, file)
            return
        except FileExistsError:
            _remove_stale(lock)
    raise FolderInUseError(f"another run has just started in {lock.parent}; wait until it ends")


def _remove_stale(lock: Path) -> None:
    """Remove the lock of a dead run; raises `FolderInUseError` where its run lives."""
    content = _content(lock)
    try:
        holder = json.loads(content)
        alive, who = _is_alive(int(holder["pid"]), float(holder["started"])), f"process {holder['pid']}"
    except (ValueError, KeyError, TypeError, OverflowError):
        alive, who = _age_s(lock) < _YOUNG_S, "another process"
    if alive:
        raise FolderInUseError(f"{who} is running notebooks into {lock.parent}; wait until it ends, or stop it")
    aside = lock.with_name(f"{LOCK}.{os.getpid()}.stale")
    try:
        lock.replace(aside)
    except FileNotFoundError:  # another run was quicker
        return
    if _content(aside) != content:  # another run had taken over in between: give its lock back
        aside.replace(lock)
        raise FolderInUseError(f"another run has just started in {lock.parent}; wait until it ends")
    aside.unlink()


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.AccessDenied:  # it lives, and belongs to someone else
        return True
    except (psutil.NoSuchProcess, ValueError):
        return False
