"""Files written whole or not at all, folders with one writer, folders made once, digests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)  # how NFS and Lustre refuse flock


def write_atomically(path: Path, write: Callable[[Any], None], mode: str = "w") -> None:
    """Write a file by `write(open file)` into a temporary file beside it, which then takes its place. On any error the
    file at `path` stays as it was; `GnnlabError` says what happened where the system refused.
    """
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # of a full disk it does not name the file
        raise GnnlabError(f"could not write {path}: {error.strerror or error}; it is as it was before") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, atomically. NaN and infinity are refused (`ValueError`)."""
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text + "\n"))


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds, with or without a byte order mark. Raises `GnnlabError` where it is missing, damaged, or
    has a key twice; `remedy` says what to do then."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(data := dict(pairs)) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise GnnlabError(f"{path} has the key {quoted(twice)} twice; keep one of them")
        return data

    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}; {remedy}") from None
    except GnnlabError:
        raise
    except (ValueError, RecursionError):
        raise GnnlabError(f"{path} is damaged; {remedy}") from None


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[bool]:
    """Hold `folder` (made where missing) for this process; `doing` completes the line that another one gets.

    The operating system releases the lock when the process ends, however it ends. On a file system without locks (some
    of clusters) it gives False, and a line on standard error says so.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise GnnlabError(f"another process {doing} {folder}; wait until it ends, or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"gnnlab: the file system of {folder} has no locks; run one process at a time there", file=sys.stderr)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def digest(*parts: Any) -> str:
    """32 hexadecimal digits of SHA-256 over bytes, the content of files (`Path`), and values that JSON can hold.

    The same for the same values in any order of keys. NaN is refused (`ValueError`), an unreadable file with `OSError`.
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        else:
            compact = {"sort_keys": True, "separators": (",", ":"), "allow_nan": False}
            text = part if isinstance(part, bytes) else json.dumps(part, **compact).encode()
            total.update(hashlib.sha256(text).digest())
    return total.hexdigest()[:32]
