"""A child process that does work for this one and may die: a driver that hangs or crashes costs its own task.

    with Worker() as worker:
        answer = worker.call("my_module:measure", {"nodes": 1000}, timeout_s=60)    # always an answer
        answer.status, answer.value, answer.reason                 # "done", what measure(nodes=1000) gave, None

A target is a function by its module; its arguments and its value are what JSON can hold; the state of its module stays
for the next one. The process is a new Python (no fork) that starts at the first `call`, and again at the first one
after it was lost. It ends with its parent, however that ends.

The process keeps the memory that it freed, in huge pages where the system grants them. Otherwise the C library gives
the memory of large results back, and page faults make the same stage take 2 to 54 ms. The settings are those of the GNU
C library; what the caller's own environment sets stays as it is. `Worker(keep_memory=False)` allocates as a process of
the user's own does.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import psutil

from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line

START_S = 120  # for a Python to start and import a target, on a busy machine
DETAIL = 4096  # characters of a traceback that go along
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_LOADED = "null"  # the line before a task begins
_LOOK_S = 0.5  # between two looks whether the parent is there


def worker_environment(*, keep_memory: bool = True, **settings: str) -> dict[str, str]:
    """This process's environment with its module path, `settings`, and with `keep_memory` what keeps freed memory.

    The current folder is on the path, last: modules of the user's own are there. torch.compile builds in the process
    itself, and ends with it.
    """
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(Path.cwd())])
    fixed = {"PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**(KEEP_MEMORY if keep_memory else {}), **os.environ, **fixed, **settings}


@dataclass(frozen=True)
class Answer:
    """What became of a task.

    `status`: done, raised (the target did: the process goes on), timeout or failed (the process was lost). `detail`:
    the end of the traceback of what the target raised.
    """

    status: str
    value: Any = None
    reason: str | None = None
    detail: str = ""

    @property
    def lost(self) -> bool:
        """Did the task cost its process?"""
        return self.status in ("timeout", "failed")

    def get(self, of: str = "") -> Any:
        """The value. Raises `GnnlabError` with the reason where there is none, after the name `of` whose task it was;
        the `detail` is its note, which a traceback shows."""
        if self.status != "done":
            error = GnnlabError(f"{of}: {self.reason}" if of else self.reason)
            if self.detail:
                error.add_note(self.detail)
            raise error
        return self.value


class Worker(AbstractContextManager):
    """One process at a time, with one task at a time. `environment`: of `worker_environment`."""

    def __init__(self, **environment: Any) -> None:
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._said: deque[str] = deque(maxlen=1)  # the last line that it printed
        self._reader: threading.Thread | None = None

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, target: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float) -> Answer:
        """What became of `target(**arguments)` within `timeout_s` seconds, loading the target's module not counted.

        The status is `timeout` if the process hangs, `failed` if it crashes or exits; the reason says how it ended and
        the last line that it printed. Raises `GnnlabError` for a `timeout_s` of 0 or less.
        """
        if not timeout_s > 0:
            raise GnnlabError(f"timeout_s={timeout_s!r}: seconds above 0 are needed")
        request = json.dumps({"target": target, "arguments": dict(arguments or {})})
        try:
            process = self._started()
            self._said.clear()
            with suppress(OSError):  # of a process that is gone: it has no answer
                print(request, file=process.stdin, flush=True)
            return self._answer(process, START_S) or self._answer(process, timeout_s)
        except BaseException:  # after Ctrl-C nobody waits for the answer: it must not go to the next call
            self.close()
            raise

    def close(self) -> None:
        """End the process and whatever it started in its group, at once."""
        if self._process is not None:
            _end(self._process.pid)
            self._process.wait()
            self._reader.join(timeout=1)
            self._process.stdout.close()
            with suppress(OSError):  # what was not yet sent
                self._process.stdin.close()
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:  # died since the last task
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from gnnlab.child import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(**self._environment),
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # a group to end; Ctrl-C in the terminal is this process's to handle
            )
            self._reader = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
            self._reader.start()
        return self._process

    def _listen(self, printed: TextIO) -> None:
        with printed:
            self._said.extend(line.strip() for line in printed if line.strip())

    def _answer(self, process: subprocess.Popen[str], limit_s: float) -> Answer | None:
        """What the next line says, None where it says that the task begins. After `limit_s` the process is ended."""
        late = threading.Event()

        def end() -> None:
            late.set()
            _end(process.pid)

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        try:
            return None if (message := json.loads(line)) is None else Answer(**message)
        except (ValueError, TypeError):  # the end, or what a driver wrote into what it did not open
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0 if line else 1)
        self.close()
        if late.is_set():
            answer = Answer("timeout", reason=f"no answer within {limit_s:g} s")
        else:
            broken = "the process broke the channel of its answers"
            answer = Answer("failed", reason=broken if line else describe_exit(process.returncode))
        said = "".join(f"; it last said: {text[-300:]}" for text in self._said)
        return replace(answer, reason=answer.reason + said)


def describe_exit(code: int) -> str:
    """How a process ended, from its exit code."""
    if code >= 0:
        return f"the process exited with code {code}"
    name = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
    return f"the process died of {name}{', most often for want of memory' * (name == 'SIGKILL')}"


def _end(pid: int) -> None:
    """End a process and its group, at once."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)  # which ends it at once on Windows


def end_with_parent(pid: int | None = None, end: Callable[[], Any] = lambda: os._exit(1)) -> None:
    """Call `end` soon after the process that started this one is gone, however that ended.

    `pid`: its number, where it is known; without it a parent that is gone by now is not missed.
    """

    def watch() -> None:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(os.getppid() if pid is None else pid)
            # the parent's number stays what it was on Windows, and where a venv's Python starts another it is not ours
            while parent.is_running() and (os.name == "nt" or os.getppid() == parent.pid):
                time.sleep(_LOOK_S)
        end()

    threading.Thread(target=watch, daemon=True).start()


# ---- in the child ----------------------------------------------------------------------------------------------------


def serve() -> None:
    """Do tasks, a line of JSON for each and one for each answer, until the parent is gone. Standard output joins the
    error stream, so that prints get into no answer."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        """The end of the stream is the end of the parent, of this process and of what it started."""
        for line in requests:
            waiting.put(line)
        _end(os.getpid())

    threading.Thread(target=listen, daemon=True).start()
    while True:
        print(_done(answers, **json.loads(waiting.get())), file=answers, flush=True)


def _done(answers: TextIO, target: str, arguments: dict[str, Any]) -> str:
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        print(_LOADED, file=answers, flush=True)
        return json.dumps({"status": "done", "value": function(**arguments)})
    except SystemExit:  # who asks for the end of the process gets it
        raise
    except BaseException as error:  # whatever a runtime or the user's code raises belongs to its task
        return json.dumps({"status": "raised", "reason": one_line(error), "detail": traceback.format_exc()[-DETAIL:]})
