"""What runs in the process of a worker: it does tasks in their order until its parent is gone. And how processes end.

A request is a line of JSON, `{"target", "arguments", "limit_s"}`, an answer the fields of `worker.Answer`; before a
task with a limit begins, `null`.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import psutil

from gnnswap.errors import one_line

GRACE_S = 3  # what hangs so far beyond its limit has lost its parent, who would have ended it
LOOK_S = 0.5  # between two looks whether the parent is there
DETAIL = 4096  # characters of a traceback that go along


def serve() -> None:
    """Do tasks until the parent is gone. Standard output joins the error stream, so that prints get into no answer."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        """The end of the stream is the end of the parent, of this process and of what it started."""
        for line in requests:
            waiting.put(line)
        end_tree(os.getpid())

    threading.Thread(target=listen, daemon=True).start()
    while True:
        print(_answer(answers, **json.loads(waiting.get())), file=answers, flush=True)


def _answer(answers: TextIO, target: str, arguments: dict[str, Any], limit_s: float | None) -> str:
    try:
        function = _function(target)
        if limit_s:
            print("null", file=answers, flush=True)
            # a thread of C that needs no Python: it ends even a driver that hangs with the interpreter locked
            faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True)
        return json.dumps({"status": "done", "value": function(**arguments)})
    except SystemExit:  # who asks for the end of the process gets it
        raise
    except BaseException as error:  # whatever a runtime or the user's code raises belongs to its task
        return json.dumps({"status": "raised", "reason": one_line(error), "detail": traceback.format_exc()[-DETAIL:]})
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def pin(core: int) -> None:
    """Keep every thread of the process on one core, where the system can do that."""
    if not hasattr(psutil.Process, "cpu_affinity"):
        return
    if hasattr(os, "sched_setaffinity"):  # threads that are there already have an affinity of their own
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    else:
        psutil.Process().cpu_affinity([core])


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


def end_tree(pid: int) -> None:
    """End a process and all that it started, at once."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
