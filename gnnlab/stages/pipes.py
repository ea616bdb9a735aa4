"""The child's end of the pipes to its parent: one line for each request and answer, whatever a driver prints."""

from __future__ import annotations

import os
import queue
from typing import BinaryIO


def channels() -> tuple[BinaryIO, BinaryIO]:
    """The parent's pipes, moved where nothing else writes; standard output joins the error stream, input is empty."""
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def listen(requests: BinaryIO, waiting: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; the end of the stream is the end of the parent, and of this process."""
    rest = b""
    while chunk := requests.read(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            waiting.put(line)
    os._exit(0)
