"""A process that does work for this one and may die: a driver that hangs, crashes or eats memory costs its own task.

    with Worker() as worker:
        answer = worker.call("my_module:measure", {"nodes": 1000}, timeout_s=60)    # always an answer
        answer.status, answer.value, answer.reason                 # "done", what measure(nodes=1000) gave, None
        worker.submit("my_module:run", {"graph": 0}, tell)         # many in flight: tell(answer) for each, in order

A target is a function by its module, its arguments and its value are what JSON can hold; what it keeps in its module
stays there for the next one. The process is a new Python (no fork), on Windows too. It starts when it is first needed,
and again at the first `call` after it was lost. It ends with its parent, however that ends. Answers have a channel of
their own, so that nothing that a driver prints gets in between. Give each unit a worker of its own: what one driver
leaves behind in a process is then no other's business.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gnnlab.errors import GnnlabError
from gnnlab.worker_process import encode, read_lines, send

START_S = 120  # for a Python to start and import a target, on a busy machine
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_LOOK_S = 0.05  # between two looks at the clock and the memory
_TAIL_BYTES = 4096
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
    """What became of a task, and when it ran, in seconds of `time.perf_counter`, which processes of a machine share.

    `status`: done, raised (the target did: the process goes on), timeout or failed (the process was lost). `detail`:
    the end of the traceback of what the target raised.
    """

    status: str
    value: Any = None
    reason: str | None = None
    detail: str = ""
    start_s: float = 0.0
    end_s: float = 0.0

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
    """One process at a time. `environment`: of `worker_environment`."""

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

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.popen.poll() is None

    def start(self) -> None:
        """Start the process, without waiting for it, unless there is one."""
        self._process = self._process or _Process(self._environment)

    def call(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        memory_bytes: int | None = None,
    ) -> Answer:
        """What became of `target(**arguments)` within `timeout_s` seconds, loading the target's module not counted.

        A process that hangs gives the status `timeout`; one that crashes, exits, grows beyond `memory_bytes` (resident;
        80 % of what is free unless told) or gives a malformed answer `failed`, with how it ended and the last that it
        printed.
        """
        if not timeout_s > 0:
            raise GnnlabError(f"timeout_s={timeout_s!r}: seconds above 0 are needed")
        most = memory_bytes or int(psutil.virtual_memory().available * _SHARE)
        request = {"target": target, "arguments": dict(arguments or {}), "limit_s": timeout_s}
        try:
            for _ in range(2):  # it may have died since the last task, which is not this one's fault
                self.start()
                answer, begun = self._process.call(request, timeout_s, most)
                if not answer.lost:
                    return answer
                self.close()
                if begun or answer.status == "timeout":
                    break
            return answer
        except BaseException:  # after Ctrl-C nobody waits for the answer: it must not go to the next call
            self.close()
            raise

    def submit(self, target: str, arguments: Mapping[str, Any], tell: Callable[[Answer], None]) -> None:
        """Hand a task over; `tell` gets its answer in a thread of ours, in the order of the tasks.

        Without limits: `close` ends what hangs, and what was in flight is then told as failed, as when the process
        dies. A process that died is not replaced here, for what its targets kept is gone.
        """
        self.start()
        self._process.submit({"target": target, "arguments": dict(arguments)}, tell)

    def kill(self) -> None:
        """End the process at once. What is in flight, or submitted before the next `call`, is told as failed."""
        if self._process is not None:
            self._process.end()

    def close(self) -> None:
        """End the process and whatever it started, if there is one, at once."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


class _Process:
    """The pipes to one process: requests in, answers out, and the tail of what it prints."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gnnlab.worker_process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=worker_environment(**environment),
            bufsize=0,
        )
        self._state, self._writing = threading.Lock(), threading.Lock()
        self._number = 0
        self._waiting: dict[int, Callable[[Answer | None], None]] = {}
        self._end: str | None = None  # why there will be no more answers
        self._printed = bytearray()
        self._printing = threading.Thread(target=self._read_printed, daemon=True)
        self._answering = threading.Thread(target=self._read_answers, daemon=True)
        self._printing.start()
        self._answering.start()

    def submit(self, request: Mapping[str, Any], tell: Callable[[Answer | None], None], *, aside: bool = False) -> int:
        """The number of a task that was handed over; `aside`, by a thread: a process that hangs lets a writer wait."""
        with self._state:
            self._number += 1
            number, end = self._number, self._end
            if end is None:
                self._waiting[number] = tell
        if end is not None:
            _pass_on(tell, _failed(end))
            return number
        message = encode({**request, "id": number})
        if aside:
            threading.Thread(target=self._write, args=(message,), daemon=True).start()
        else:
            self._write(message)
        return number

    def _write(self, message: bytes) -> None:
        with suppress(OSError, ValueError), self._writing:  # of a process that is gone the reader tells
            send(self.popen.stdin, message)

    def call(self, request: Mapping[str, Any], timeout_s: float, memory_bytes: int) -> tuple[Answer, bool]:
        """The answer, and whether the task had begun. The inbox gets None when it begins, then the answer."""
        inbox: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._printed.clear()
        number = self.submit(request, inbox.put, aside=True)
        begun, deadline = False, time.monotonic() + START_S
        while True:
            try:
                found = inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                reason = self._check_memory(memory_bytes)
                status = "failed" if reason else "timeout"
                if time.monotonic() > deadline:
                    reason = reason or f"no answer within {timeout_s if begun else START_S:g} s{self._stderr_tail()}"
                if reason is None:
                    continue
                with self._state:
                    self._waiting.pop(number, None)
                return Answer(status, reason=reason), begun
            if found is not None:
                return found, begun
            begun, deadline = True, time.monotonic() + timeout_s

    def end(self) -> None:
        """End it and whatever it started; what is in flight is told so."""
        with self._state:
            self._end = self._end or "its process was ended"
        self._kill()
        self.popen.wait()
        for reader in {self._printing, self._answering} - {threading.current_thread()}:
            reader.join(timeout=1)
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            pipe.close()

    def _kill(self) -> None:
        if self.popen.poll() is not None:  # it ended, and its number may be another process's by now
            return
        try:
            family = [*psutil.Process(self.popen.pid).children(recursive=True), psutil.Process(self.popen.pid)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            with suppress(psutil.Error):
                process.kill()

    def _read_answers(self) -> None:
        malformed = None
        for answer in read_lines(self.popen.stdout):
            if not self._take(answer):
                malformed = f"gave a malformed answer: {answer[:80]!r}{self._stderr_tail()}"
                self._kill()
                break
        why = malformed or self._exit_reason()
        with self._state:
            self._end = self._end or why
            left, self._waiting = list(self._waiting.values()), {}
        for tell in left:
            _pass_on(tell, _failed(self._end))

    def _take(self, answer: bytes) -> bool:
        """Pass an answer on; False where the line is none."""
        try:
            message = json.loads(answer)
            number = message.pop("id")
            begun = message == {"begun": True}
            found = None if begun else Answer(**message)
            with self._state:
                tell = self._waiting[number] if begun else self._waiting.pop(number)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        _pass_on(tell, found)
        return True

    def _read_printed(self) -> None:
        with suppress(OSError, ValueError):  # closed under the reader's hands
            while chunk := self.popen.stderr.read(65536):
                self._printed += chunk
                del self._printed[:-_TAIL_BYTES]

    def _check_memory(self, most: int) -> str | None:
        with suppress(psutil.Error):
            used = psutil.Process(self.popen.pid).memory_info().rss
            if used > most:
                return f"used {used / 1e9:.2f} GB of memory, allowed are {most / 1e9:.2f} GB"
        return None

    def _exit_reason(self) -> str:
        try:
            code = self.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"closed its channel and went on{self._stderr_tail()}"
        return f"{describe_exit(code)}{self._stderr_tail()}"

    def _stderr_tail(self) -> str:
        if self.popen.poll() is not None:
            self._printing.join(timeout=1)
        lines = [line.strip() for line in bytes(self._printed).decode(errors="replace").splitlines() if line.strip()]
        return f"; it last said: {' | '.join(lines[-3:])[-300:]}" if lines else ""


def _pass_on(tell: Callable[[Answer | None], None], answer: Answer | None) -> None:
    """A `tell` that raises is shown, and keeps no other answer from arriving."""
    try:
        tell(answer)
    except Exception:
        sys.excepthook(*sys.exc_info())


def _failed(reason: str | None) -> Answer:
    now = time.perf_counter()
    return Answer("failed", reason=reason, start_s=now, end_s=now)


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
