"""Files that survive what happens to a machine: written whole or not at all, locked, found by what they were made from.

write_json(path, data)                                 # a kill or a full disk leaves what was there before
write_sealed(path, data); read_sealed(path, remedy)     # what is read back is what was written, or it is not believed
records, file, message = take_lines(path, lost)         # the same for each line of a file that grows: `sealed_line`
with locked(folder, "measures into"): ...              # one process at a time; the next is told who holds it
made = Store(folder).make(key, lambda empty: export(empty / "model.onnx"))     # made once for each key
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gnnlab.errors import DISK_ERRORS, GnnlabError

LOCK = ".lock"
MADE_FROM = "made_from.json"  # in a folder of `made_once`: its key
SEAL = "sha256"  # of a JSON object: the digest of all else in it
FILE, NUMBER = "file", "line"  # of a sealed line: whose it is, and its place
CONTENTS = "contents.json"  # of an entry of a store: the digest of each of its files

# ---- whole or not at all --------------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Any], None], mode: str = "w") -> None:
    """Write a file by `write(open file)` into a temporary file beside it, which then takes its place.

    On any error the file at `path` stays as it was; `GnnlabError` says what happened where the system refused.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".tmp")
        temporary = Path(name)
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:  # of a full disk it does not name the file
        raise GnnlabError(f"could not write {path}: {error.strerror or error}; it is as it was before") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, atomically. NaN and infinity are refused (`ValueError`)."""
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text + "\n"))


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds. Raises `GnnlabError` where it is missing or damaged; `remedy` says what to do then."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}; {remedy}") from None
    except (ValueError, RecursionError):
        raise GnnlabError(f"{path} is damaged; {remedy}") from None


# ---- read back as it was written, or not believed ------------------------------------------------------------------


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` and the digest of all of it: a change of any value in it is noticed when it is read back.

    It guards against accident and edits, not against who computes the digest anew.
    """
    plain = json.loads(json.dumps(dict(data), allow_nan=False))  # keys and numbers as a file gives them back
    return {**plain, SEAL: digest(plain)}


def unsealed(data: Any) -> dict[str, Any]:
    """What `sealed` was given. Raises `ValueError` where this is not what it gave."""
    try:
        plain = {name: value for name, value in data.items() if name != SEAL}
        if data[SEAL] == digest(plain):
            return plain
    except (AttributeError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError("the content does not have the digest that was written with it")


def write_sealed(path: Path, data: Mapping[str, Any]) -> None:
    """Write `data` as JSON with its digest, atomically, for `read_sealed`."""
    write_json(path, sealed(data))


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """What `write_sealed` wrote. Raises `GnnlabError` where the file is missing or was changed; `remedy` says what
    to do then."""
    data = read_json(path, remedy)
    try:
        return unsealed(data)
    except ValueError:
        raise GnnlabError(f"{path} is damaged: it is not as gnnlab wrote it, so it is not believed; {remedy}") from None


def sealed_line(record: Mapping[str, Any], file: str, number: int) -> bytes:
    """A record as line `number`, from 0, of the one file that bears the name `file` in each of its lines.

    Keys in order, no spaces, and the digest of all of it, so that a line can be believed without the others, and one
    that was doubled, dropped, moved or brought from elsewhere is noticed. NaN is refused (`ValueError`).
    """
    return _as_json(sealed({**record, FILE: file, NUMBER: number})) + b"\n"


class Lines(NamedTuple):
    """What can be believed of a file of sealed lines, in the order in which it was written; None where lines are lost.

    `as_written`: nothing was lost, doubled or moved.
    """

    records: list[dict[str, Any] | None]
    file: str
    as_written: bool


def read_lines(content: bytes) -> Lines:
    """The records in `content`: of all lines that are exactly as `sealed_line` made them, and of the same file.

    Of a line that comes twice one counts; of two with the same number neither.
    """
    *whole, _ = content.split(b"\n")
    read = {line: record for line in dict.fromkeys(whole) if (record := _believed(line)) is not None}
    file = Counter(record[FILE] for record in read.values()).most_common(1)[0][0] if read else ""
    good = {line: record for line, record in read.items() if record[FILE] == file}
    times = Counter(record[NUMBER] for record in good.values())
    in_order = sorted((r[NUMBER], line) for line, r in good.items() if times[r[NUMBER]] == 1)
    records: list[dict[str, Any] | None] = []
    following = 0
    for number, line in in_order:
        if number != following:
            records.append(None)
        records.append({name: value for name, value in good[line].items() if name not in (FILE, NUMBER)})
        following = number + 1
    if whole and whole[-1] not in good:
        records.append(None)
    as_written = None not in records and b"".join(line + b"\n" for _, line in in_order) == content
    return Lines(records, file, as_written)


def _believed(line: bytes) -> dict[str, Any] | None:
    try:
        record = unsealed(json.loads(line))
        file, number = record[FILE], record[NUMBER]
        known = type(file) is str and type(number) is int and number >= 0
        return record if known and _as_json(sealed(record)) == line else None
    except (ValueError, KeyError, RecursionError):
        return None


def take_lines(path: Path, lost: Mapping[str, Any] | None = None) -> tuple[list[dict[str, Any]], str, str | None]:
    """The records of a file of sealed lines, the name that its next lines bear, and a message where it was damaged.

    Such a file is kept beside `path`, which then holds what can be believed, with `lost`, if given, in the place of
    what cannot. A missing file has no records. Raises `GnnlabError` where it can be neither read nor mended.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}") from None
    found = read_lines(content)
    records = [record or lost for record in found.records if record or lost]
    if found.as_written:
        return records, found.file or uuid.uuid4().hex, None
    kept, file = name_aside(path), uuid.uuid4().hex  # a copy, so that the file is there whenever this is ended
    write_atomically(kept, lambda f: f.write(content), mode="wb")
    write_atomically(path, lambda f: f.writelines(sealed_line(r, file, n) for n, r in enumerate(records)), mode="wb")
    good = sum(record is not None for record in found.records)
    return records, file, f"{path} was not as written and is kept as {kept.name}; {good} of its records are believed"


def set_aside(path: Path, why: str = "damaged") -> Path:
    """Give a file that may be someone's work a name under which nothing reads it: "runs.json.damaged-1"."""
    return path.replace(name_aside(path, why))


def name_aside(path: Path, why: str = "damaged") -> Path:
    """The first such name that is free."""
    names = (path.with_name(f"{path.name}.{why}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


# ---- one process at a time ------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process; `doing` completes the line that another one gets.

    The operating system releases the lock when the process ends, however it ends. Raises `GnnlabError`: "another
    process measures into outputs/quick".
    """
    from filelock import FileLock, Timeout

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise GnnlabError(f"another process {doing} {folder}; wait until it ends, or stop it") from None
    try:
        yield
    finally:
        lock.release()


# ---- found by content -----------------------------------------------------------------------------------------------


def digest(*parts: Any) -> str:
    """32 hexadecimal digits of SHA-256 over bytes, the content of files (`Path`), and values that JSON can hold.

    The same for the same values in any order of keys. NaN is refused (`ValueError`), an unreadable file with `OSError`.
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        else:
            text = part if isinstance(part, bytes) else _as_json(part)
            content = hashlib.sha256(text).digest()
        total.update(content)
    return total.hexdigest()[:32]


def _as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def made_once(place: Path, key: Mapping[str, Any], build: Callable[[Path], None], *, anew: bool = False) -> float:
    """Fill the folder `place` by `build(empty folder)`, unless it is there and was made from the same `key` (JSON).

    Returns the seconds that it took, 0 where it was there. With `anew` it is built in any case. It is put in place by
    renaming: a kill leaves a whole folder or none.
    """
    place, made_from = Path(place), json.loads(json.dumps(key))
    with suppress(OSError, ValueError):
        if not anew and json.loads((place / MADE_FROM).read_text(encoding="utf-8")) == made_from:
            return 0.0
    start = time.perf_counter()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-", ignore_cleanup_errors=True) as name:
        fresh = Path(name) / "made"
        fresh.mkdir()
        build(fresh)
        write_json(fresh / MADE_FROM, made_from)
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Made:
    """An entry of a store: its folder, the bytes of its files, and the seconds it took if it was `made` just now."""

    folder: Path
    size_bytes: int
    made: bool
    seconds: float


class Store:
    """Entries in `folder`, each a folder of files named by the digest of the key it was made from.

    An entry that is whole is used again; one that is missing, incomplete or changed is made anew. It is made in a
    folder of its own and put in place by renaming, so that a kill leaves nothing half done, and of an entry that was
    being replaced the one before.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def get(self, key: Mapping[str, Any]) -> Path | None:
        """The folder of the entry of `key`; None where there is no whole one."""
        place = self._place(key)
        return next((found for found in (place, _before(place)) if _size_if_whole(found) is not None), None)

    def make(self, key: Mapping[str, Any], build: Callable[[Path], None], *, anew: bool = False) -> Made:
        """The entry of `key` (JSON: all that it depends on), built by `build(empty folder)` unless it is there.

        With `anew` it is built in any case; the one before stays until the new one is whole.
        Raises `GnnlabError`: the disk refuses; nothing half made stays. What `build` raises is passed on.
        """
        if not anew and (found := self.get(key)):
            return Made(found, _size_if_whole(found) or 0, made=False, seconds=0.0)
        place, start = self._place(key), time.perf_counter()
        failed: OSError | None = None  # of `build` itself, such as a compiler that is not there
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".making-", ignore_cleanup_errors=True) as name:
                fresh = Path(name) / "entry"
                fresh.mkdir()
                try:
                    build(fresh)
                except OSError as error:
                    failed = None if error.errno in DISK_ERRORS else error
                    raise
                write_sealed(fresh / CONTENTS, {"key": dict(key), "files": _digests(fresh)})
                if anew or _size_if_whole(place) is None:  # else another process was faster, with the same content
                    _replace(place, fresh)
        except OSError as error:
            if error is failed:
                raise
            raise GnnlabError(
                f"could not store {place.name} in {self.folder}: {error.strerror or error}; free some space or choose "
                "another folder"
            ) from error
        return Made(place, _size_if_whole(place) or 0, made=True, seconds=time.perf_counter() - start)

    def _place(self, key: Mapping[str, Any]) -> Path:
        """ "onnx-1f0c…" where the key has a kind."""
        kind = f"{key['kind']}-" if "kind" in key else ""
        return self.folder / f"{kind}{digest(dict(key))[:24]}"


def _before(place: Path) -> Path:
    """Where an entry waits while another one takes its place; `Store.get` finds it there after a kill."""
    return place.with_name(f"{place.name}.before")


def _replace(place: Path, fresh: Path) -> None:
    """Put an entry in its place; a kill at any moment leaves a whole one, where there was one."""
    if _size_if_whole(place) is not None:
        shutil.rmtree(_before(place), ignore_errors=True)
        place.rename(_before(place))
    elif place.exists():
        shutil.rmtree(place)
    fresh.rename(place)
    shutil.rmtree(_before(place), ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CONTENTS)
    return {path.relative_to(folder).as_posix(): digest(path) for path in files}


def _size_if_whole(folder: Path) -> int | None:
    """Bytes of an entry whose files are all there, unchanged; else None."""
    try:
        listed = unsealed(json.loads((folder / CONTENTS).read_text(encoding="utf-8")))["files"]
        if not listed or listed != _digests(folder):
            return None
        return sum((folder / name).stat().st_size for name in listed)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
