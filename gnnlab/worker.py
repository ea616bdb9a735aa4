"""A process that does work for this one and may die: a driver that hangs, crashes or eats memory costs its own task.

    with Worker() as worker:
        answer = worker.call("my_module:measure", {"nodes": 1000}, timeout_s=60)    # always an answer
        answer.status, answer.value, answer.reason                 # "done", what measure(nodes=1000) gave, None

A target is a function by its module, its arguments and its value are what JSON can hold; the state of its module stays
for the next one. The process is a new Python (no fork), on Windows too. It starts when it is first needed, and again at
the first `call` after it was lost. It ends with its parent, however that ends. Give each unit a worker of its own.

The process keeps the memory that it freed, in huge pages where the system grants them. Otherwise the C library gives
the memory of each large result back, or does not, by what the process did before; the next call then takes new pages
from the kernel, on a virtual machine from the host as well, and the same stage on the same arrays took 2 ms or 54.
Runtimes with an allocator of their own keep theirs anyway. The settings are those of the GNU C library; other systems
ignore them. What the caller's own environment sets stays as it is. `Worker(keep_memory=False)` allocates as a process
of the user's own does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gnnlab.errors import GnnlabError
from gnnlab.worker_process import end_tree

START_S = 120  # for a Python to start and import a target, on a busy machine
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_LOOK_S = 0.05  # between two looks at the clock and the memory
_SHARE = 0.8  # of the memory that is free when a call begins


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


class Worker:
    """One process at a time, with one task at a time. `environment`: of `worker_environment`."""

    def __init__(self, **environment: Any) -> None:
        self._environment = environment
        self._process: _Process | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process, None where there is none."""
        return self._process.popen.pid if self._process else None

    def call(self, target: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float) -> Answer:
        """What became of `target(**arguments)` within `timeout_s` seconds, loading the target's module not counted.

        A process that hangs gives the status `timeout`; one that crashes, exits or grows beyond 80 % of the memory that
        is free `failed`, with how it ended and the last lines that it printed.
        """
        if not timeout_s > 0:
            raise GnnlabError(f"timeout_s={timeout_s!r}: seconds above 0 are needed")
        most = int(psutil.virtual_memory().available * _SHARE)
        try:
            for _ in range(2):  # it may have died since the last task, which is not this one's fault
                process = self._started()
                process.send(target, arguments or {}, timeout_s)
                answer = process.answer(timeout_s, most)
                if answer.lost:
                    self.close()
                if answer.status != "failed" or process.has_begun:
                    break
            return answer
        except BaseException:  # after Ctrl-C nobody waits for the answer: it must not go to the next call
            self.close()
            raise

    def submit(self, target: str, arguments: Mapping[str, Any]) -> None:
        """Hand a task over whose answer nobody reads; the next `call` follows it."""
        self._started().send(target, arguments, None)

    def _started(self) -> _Process:
        self._process = self._process or _Process(self._environment)
        return self._process

    def close(self) -> None:
        """End the process and whatever it started, if there is one, at once."""
        if self._process is not None:
            self._process.end()
        self._process = None


class _Process:
    """A process that does its tasks in their order: a line of JSON for each, and one for each answer."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gnnlab.worker_process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=worker_environment(**environment),
            encoding="utf-8",
            errors="replace",
        )
        self.has_begun = False  # the last task
        self._unread = 0  # answers before that of the last task
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._printed: deque[str] = deque(maxlen=3)
        self._readers = [threading.Thread(target=r, daemon=True) for r in (self._read_answers, self._read_printed)]
        for reader in self._readers:
            reader.start()

    def send(self, target: str, arguments: Mapping[str, Any], limit_s: float | None) -> None:
        self.has_begun = False
        self._unread += limit_s is None
        self._printed.clear()
        with suppress(OSError):  # of a process that is gone: its answers end
            request = {"target": target, "arguments": dict(arguments), "limit_s": limit_s}
            print(json.dumps(request), file=self.popen.stdin, flush=True)

    def answer(self, timeout_s: float, memory_bytes: int) -> Answer:
        """Of the last task."""
        limit_s, ends = START_S, time.monotonic() + START_S
        while True:
            try:
                line = self._answers.get(timeout=_LOOK_S)
                if line is None:
                    return Answer("failed", reason=self._reason())
                message = json.loads(line)
                if message is None:
                    self.has_begun, limit_s, ends = True, timeout_s, time.monotonic() + timeout_s
                elif self._unread:
                    self._unread -= 1
                else:
                    return Answer(**message)
            except queue.Empty:
                pass
            except (ValueError, TypeError):  # a driver may write into what it did not open
                return Answer("failed", reason=f"the process broke the channel of its answers{self._tail()}")
            if time.monotonic() > ends:
                return Answer("timeout", reason=f"no answer within {limit_s:g} s{self._tail()}")
            with suppress(psutil.Error):
                used = psutil.Process(self.popen.pid).memory_info().rss
                if used > memory_bytes:
                    reason = f"used {used / 1e9:.2f} GB of memory, allowed are {memory_bytes / 1e9:.2f} GB"
                    return Answer("failed", reason=reason)

    def end(self) -> None:
        """End it and whatever it started."""
        if self.popen.poll() is None:
            end_tree(self.popen.pid)
        self.popen.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        with suppress(OSError):
            self.popen.stdin.close()

    def _read_answers(self) -> None:
        with self.popen.stdout:
            for line in self.popen.stdout:
                self._answers.put(line)
        self._answers.put(None)

    def _read_printed(self) -> None:
        with self.popen.stderr:
            self._printed.extend(line.strip() for line in self.popen.stderr if line.strip())

    def _reason(self) -> str:
        """Why there are no more answers."""
        try:
            return describe_exit(self.popen.wait(timeout=1)) + self._tail()
        except subprocess.TimeoutExpired:
            return f"the process broke the channel of its answers{self._tail()}"

    def _tail(self) -> str:
        if self.popen.poll() is not None:
            self._readers[1].join(timeout=1)
        lines = list(self._printed)
        return f"; it last said: {' | '.join(lines)[-300:]}" if lines else ""


def describe_exit(code: int) -> str:
    """How a process ended, from its exit code; on Windows a crash is a code such as 0xC0000005."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
        return f"the process died of {name}{hint}"
    if code > 0xFFFF:
        return f"the process crashed with code 0x{code:08X}"
    return f"the process exited with code {code}"
