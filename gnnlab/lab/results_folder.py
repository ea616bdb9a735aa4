"""A folder of results: one run at a time, earlier results kept until new ones stand, no leftovers of dead runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from .results import ResultError

LOCK = ".lock"
_EARLIER = ".running.earlier"
_YOUNG_S = 10.0  # a lock without readable content that is younger is being written; an older one is a dead run's


class FolderInUseError(ValueError):
    """Another run works in the folder. The message is one line for the reader."""


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process, and clear what dead runs left in it.

    The lock names its process by id and start time, so that the lock of a dead run is known and taken over. Raises
    `FolderInUseError` where a living run holds it, `ResultError` where it cannot be written to.
    """
    lock = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock)
    except OSError as error:
        raise ResultError(f"could not write to {folder}: {error.strerror or error}") from None
    try:
        _clear_leftovers(folder)
        yield
    finally:
        lock.unlink(missing_ok=True)


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
    """A copy of what a notebook left (result file, executed notebook, figures) while a new run may replace it."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.result, self.notebook = folder, f"{name}.json", f"{name}.ipynb"
        self.place = folder / f"{name}{_EARLIER}"

    def keep(self) -> None:
        """Make the copy: whole or not at all."""
        part = self.place.with_name(f"{self.place.name}.part")
        part.mkdir()
        for file in self._files():
            (part / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / file, part / file)
        part.replace(self.place)

    def let_go(self) -> None:
        """The new results stand."""
        shutil.rmtree(self.place)

    def restore(self) -> None:
        """Put the copy back, where there is one. Needs no space on the disk."""
        if not self.place.is_dir():
            return
        for file in (self.result, self.notebook):
            if not (self.place / file).exists():
                (self.folder / file).unlink(missing_ok=True)
        for file in [path for path in self.place.rglob("*") if path.is_file()]:
            target = self.folder / file.relative_to(self.place)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
        shutil.rmtree(self.place)

    def _files(self) -> list[str]:
        """The files that exist of it, relative to the folder."""
        try:
            figures = json.loads((self.folder / self.result).read_bytes()).get("figures", [])
            named = [figure[kind] for figure in figures for kind in ("png", "svg")]
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # damaged: kept as it is
            named = []
        named += [self.result, self.notebook]
        inside = [file for file in named if (self.folder / file).resolve().is_relative_to(self.folder.resolve())]
        return [file for file in dict.fromkeys(inside) if (self.folder / file).is_file()]


def _clear_leftovers(folder: Path) -> None:
    """Undo what dead runs began: earlier results come back, half-written files go."""
    for place in folder.glob(f"*{_EARLIER}"):
        Earlier(folder, place.name.removesuffix(_EARLIER)).restore()
    for path in (*folder.glob("*.running.*"), *folder.rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


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
