"""A process that measures cells, so that a driver that hangs, crashes, exits or eats memory costs its own cell alone.

    with Child() as child:
        outcome = child.ask(cell, settings, timeout_s=60)      # always an outcome; the next ask finds a live process

The process is a new Python (no fork), on Windows too; it is started when it is first needed, and again after it was
lost. It ends with its parent, however that ends. Give each unit a child of its own: what one driver leaves behind in a
process is then no other's business.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO

import psutil

from gnnlab.stages.campaign.cells import Cell, Outcome, Settings
from gnnlab.stages.child_environment import child_environment
from gnnlab.stages.errors import StageError
from gnnlab.stages.units.unit import Availability

START_S = 120  # for a Python to start and read its packages, on a busy machine
_LOOK_S = 0.05  # between two looks at the clock and the memory
_TAIL_BYTES = 4096
_SHARE = 0.8  # of the memory that is free when a request begins


class _Lost(Exception):
    """The process is gone or was ended; `status` and `reason` are those of the cell."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Child:
    """One process at a time. `memory_bytes`: resident memory at which it is ended; 80 % of what is free unless told."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self.memory_bytes = memory_bytes
        self._process: _Process | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process, None where there is none."""
        return self._process.popen.pid if self._process else None

    def ask(self, cell: Cell, settings: Settings, timeout_s: float) -> Outcome:
        """Measure a cell within `timeout_s` seconds.

        A process that hangs gives the status `timeout`; one that crashes, exits, grows beyond its memory or answers
        what is no outcome `failed`, with the reason and the last that it printed.
        """
        if not timeout_s > 0:
            raise StageError(f"timeout_s={timeout_s!r}: seconds above 0 are needed")
        started, start = datetime.now(UTC), time.perf_counter()
        request = {"do": "measure", "cell": asdict(cell), "settings": settings.to_json()}
        try:
            return Outcome.from_json(self._request(request, timeout_s))
        except (_Lost, StageError, TypeError, KeyError) as error:
            self.close()
            status, reason = getattr(error, "status", "failed"), getattr(error, "reason", f"answered rubbish: {error}")
        return Outcome(
            status,
            reason,
            precision=cell.precision,
            threads=cell.threads,
            started=started.isoformat(timespec="milliseconds"),
            seconds=round(time.perf_counter() - start, 4),
        )

    def probe(self, unit: str, timeout_s: float) -> Availability:
        """Try a unit; one that hangs or crashes there is not usable, and says so."""
        try:
            return Availability(**self._request({"do": "probe", "unit": unit}, timeout_s))
        except (_Lost, TypeError) as error:
            self.close()
            return Availability(False, f"{error}", "repair or remove its driver")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._ended_on_interrupt():
            try:
                process = self._living()
                process.begin(request, timeout_s)
            except _Lost:  # it died since the last request, which is not this one's fault
                self.close()
                process = self._living()
                process.begin(request, timeout_s)
            limit = self.memory_bytes or int(psutil.virtual_memory().available * _SHARE)
            return process.answer(timeout_s, limit)

    def _living(self) -> _Process:
        if self._process is None:
            self._process = _Process()
            self._process.wait_until_ready()
        return self._process

    @contextmanager
    def _ended_on_interrupt(self) -> Iterator[None]:
        """After Ctrl-C nobody waits for the answer: the process must not give it to the next request."""
        try:
            yield
        except _Lost:
            raise
        except BaseException:
            self.close()
            raise


class _Process:
    """The pipes to one process: requests in, answers out, and the tail of what it prints."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "gnnlab.stages.campaign.child_process"]
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            bufsize=0,
        )
        self.number = 0
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._printed = bytearray()
        self._readers = [
            threading.Thread(target=self._read_answers, args=(self.popen.stdout,), daemon=True),
            threading.Thread(target=self._read_printed, args=(self.popen.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_until_ready(self) -> None:
        if "ready" not in self._wait(START_S, None):
            raise _Lost("failed", "the process answered rubbish when it was started")

    def begin(self, request: dict[str, Any], limit_s: float) -> None:
        """Send a request and wait until it is taken up."""
        self.number += 1
        self._printed.clear()
        try:
            self.popen.stdin.write(json.dumps({**request, "id": self.number, "limit_s": limit_s}).encode() + b"\n")
        except OSError:
            raise _Lost("failed", self._death()) from None
        if self._wait(START_S, None) != {"id": self.number, "begun": True}:
            raise _Lost("failed", "the process answered rubbish when it was given the cell")

    def answer(self, timeout_s: float, memory_bytes: int) -> dict[str, Any]:
        """The answer to the request that was begun."""
        answer = self._wait(timeout_s, memory_bytes)
        if answer.get("id") != self.number or not isinstance(answer.get("answer"), dict):
            raise _Lost("failed", f"answered rubbish: {str(answer)[:80]}{self._last_words()}")
        return answer["answer"]

    def end(self) -> None:
        """End it and whatever it started."""
        try:
            family = [*psutil.Process(self.popen.pid).children(recursive=True), psutil.Process(self.popen.pid)]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        self.popen.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            pipe.close()

    def _wait(self, timeout_s: float, memory_bytes: int | None) -> dict[str, Any]:
        """The next message. Raises `_Lost` where there will be none."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._answers.get(timeout=_LOOK_S)
            except queue.Empty:
                self._check_memory(memory_bytes)
                if time.monotonic() > deadline:
                    raise _Lost("timeout", f"no answer within {timeout_s:g} s{self._last_words()}") from None
                continue
            if line is None:
                raise _Lost("failed", self._death())
            try:
                answer = json.loads(line)
            except ValueError:
                answer = None
            if not isinstance(answer, dict):
                raise _Lost("failed", f"answered rubbish: {line[:80]!r}{self._last_words()}")
            return answer

    def _check_memory(self, most: int | None) -> None:
        with suppress(psutil.Error):
            used = psutil.Process(self.popen.pid).memory_info().rss
            if most is not None and used > most:
                raise _Lost("failed", f"used {used / 1e9:.2f} GB of memory, allowed are {most / 1e9:.2f} GB")

    def _death(self) -> str:
        try:
            code = self.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"closed its channel and went on{self._last_words()}"
        return f"{_manner(code)}{self._last_words()}"

    def _last_words(self) -> str:
        if self.popen.poll() is not None:
            self._readers[1].join(timeout=1)
        lines = [line.strip() for line in bytes(self._printed).decode(errors="replace").splitlines() if line.strip()]
        return f"; it last said: {' | '.join(lines[-3:])[-300:]}" if lines else ""

    def _read_answers(self, pipe: BinaryIO) -> None:
        rest = b""
        while chunk := _read(pipe):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._answers.put(line)
        self._answers.put(None)

    def _read_printed(self, pipe: BinaryIO) -> None:
        while chunk := _read(pipe):
            self._printed += chunk
            del self._printed[:-_TAIL_BYTES]


def _read(pipe: BinaryIO) -> bytes:
    try:
        return pipe.read(65536)
    except (OSError, ValueError):  # closed under the reader's hands
        return b""


def _manner(code: int) -> str:
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
