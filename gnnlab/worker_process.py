"""What runs in the process of a worker: it takes tasks from one pipe and answers on another until its parent is gone.

A message is one line of JSON: requests `{"id", "target", "arguments", "limit_s"}`, answers the fields of
`worker.Answer` with the same `id`; before a task with a limit is begun, `{"id", "begun": true}`.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from gnnlab.errors import one_line

GRACE_S = 3  # what hangs so far beyond its limit has lost its parent, who would have ended it
LOOK_S = 0.5  # between two looks whether the parent is there
DETAIL = 4096  # characters of a traceback that go along


def serve() -> None:
    """Do tasks until the parent closes the channel or is gone."""
    requests, answers = _channels()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    while True:
        request = json.loads(waiting.get())
        message = _do(request, answers)
        faulthandler.cancel_dump_traceback_later()
        try:
            send(answers, encode(message))
        except (TypeError, ValueError) as error:  # the value is nothing that JSON can hold
            send(answers, encode({"id": request["id"], "status": "raised", "reason": one_line(error)}))


def _do(request: Mapping[str, Any], answers: BinaryIO) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        function = _target(request["target"])
        if limit_s := request.get("limit_s"):
            send(answers, encode({"id": request["id"], "begun": True}))
            # a thread of C that needs no Python: it ends even a driver that hangs with the interpreter locked
            faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True)
        start = time.perf_counter()
        found = {"status": "done", "value": function(**request["arguments"])}
    except SystemExit:  # who asks for the end of the process gets it
        raise
    except BaseException as error:  # whatever a runtime or the user's code raises belongs to its task
        detail = traceback.format_exc()[-DETAIL:]
        found = {"status": "raised", "reason": one_line(error), "detail": detail}
    return {"id": request["id"], **found, "start_s": start, "end_s": time.perf_counter()}


@cache
def _target(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """The parent's pipes, moved where nothing else writes; standard output joins the error stream, input is empty."""
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def _listen(requests: BinaryIO, waiting: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; the end of the stream is the end of the parent, and of this process."""
    for request in read_lines(requests):
        waiting.put(request)
    os._exit(0)


def end_with_parent(pid: int | None = None, end: Callable[[], Any] = lambda: os._exit(1)) -> None:
    """Call `end` soon after the process that started this one is gone, however that ended.

    `pid`: its number, where it is known; without it a parent that is gone by now is not missed.
    """

    def watch() -> None:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(os.getppid() if pid is None else pid)
            # the parent's number stays what it was on Windows, and where a venv's Python starts another it is not ours
            while parent.is_running() and (os.name == "nt" or os.getppid() == parent.pid):
                time.sleep(LOOK_S)
        end()

    threading.Thread(target=watch, daemon=True).start()


def pin(core: int) -> None:
    """A target: keep every thread of the process on one core, where the system can do that."""
    if not hasattr(psutil.Process, "cpu_affinity"):
        return
    if hasattr(os, "sched_setaffinity"):  # threads that are there already have an affinity of their own
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    else:
        psutil.Process().cpu_affinity([core])


# ---- both ends of a pipe --------------------------------------------------------------------------------------------


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def send(pipe: BinaryIO, data: bytes) -> None:
    while data:
        data = data[pipe.write(data) :]


def read_lines(pipe: BinaryIO) -> Iterator[bytes]:
    """Every whole line; what is cut off at the end is none."""
    with suppress(OSError, ValueError):  # closed under the reader's hands
        yield from (found[:-1] for found in io.BufferedReader(pipe) if found.endswith(b"\n"))
