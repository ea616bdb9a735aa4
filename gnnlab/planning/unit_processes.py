"""A process for each unit, all at work at once.

    with UnitProcesses(["fast:CPU", "openvino:CPU"]) as processes:
        processes.ask({"fast:CPU": (os.getpid,), "openvino:CPU": (os.getpid,)})      # both at once

No unit shares an interpreter, an allocator or a pool of threads with another. A function that was asked for in a unit's
process lets another unit go on (`tell`), and waits until another lets it (`wait_for`): a semaphore for each pair.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import permutations
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from gnnlab.child import describe_exit, end_with_parent, worker_environment
from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line

TIMEOUT_S = 600.0  # models compile on a busy machine, and streams of large graphs take their time


class UnitProcesses(AbstractContextManager):
    """A spawned process for each unit. Where one fails, dies or hangs (`timeout_s` for a request), all end; the next
    request starts new ones."""

    def __init__(self, units: Iterable[str], timeout_s: float = TIMEOUT_S) -> None:
        self.units, self.timeout_s = tuple(dict.fromkeys(units)), timeout_s
        self._processes: dict[str, Any] = {}
        self._requests: dict[str, Connection] = {}

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def _start(self) -> None:
        context, before = get_context("spawn"), dict(os.environ)
        # they are gone from the system with the last name that this process has for them
        self._turns = {pair: context.Semaphore(0) for pair in permutations(self.units, 2)}
        os.environ.update(worker_environment(OMP_NUM_THREADS="1"))  # processes that start have it
        try:
            for unit in self.units:
                self._requests[unit], requests = context.Pipe()
                self._processes[unit] = context.Process(target=_serve, args=(unit, requests, self._turns), daemon=True)
                self._processes[unit].start()
                requests.close()  # here; the process has its own
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ask(self, requests: Mapping[str, tuple]) -> dict[str, Any]:
        """What the functions of these requests give, (function, *arguments) by unit, each in the unit's process.

        Raises:
            GnnlabError: a function raised, a process died, or one gave no answer in time; all processes have ended.
        """
        answers, until = {}, time.monotonic() + self.timeout_s
        try:
            if not self.running:
                self._start()
            for unit, request in requests.items():
                with suppress(ConnectionError):  # of a process that is gone: its answer says so
                    self._requests[unit].send(request)
            while waiting := {self._requests[unit]: unit for unit in requests if unit not in answers}:
                ready = wait(waiting, max(0.0, until - time.monotonic()))
                if not ready:
                    raise GnnlabError(f"{' and '.join(waiting.values())} gave no answer within {self.timeout_s:g} s")
                for connection in ready:
                    answers[waiting[connection]] = self._answer(waiting[connection])
        except BaseException:  # after Ctrl-C nobody waits for the answers: they must not go to the next request
            self.close()
            raise
        return answers

    def close(self) -> None:
        """End all processes at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        for requests in self._requests.values():
            requests.close()
        self._processes, self._requests = {}, {}

    def _answer(self, unit: str) -> Any:
        try:
            done, value = self._requests[unit].recv()
        except (EOFError, ConnectionError):
            self._processes[unit].join(1)
            raise GnnlabError(f"{unit}: {describe_exit(self._processes[unit].exitcode or 0)}") from None
        if not done:
            raise GnnlabError(f"{unit}: {value}")
        return value


# ---- in the process of a unit ----------------------------------------------------------------------------------------

_here: dict[str, Any] = {}  # the unit of this process, and the semaphores of all pairs


def wait_for(unit: str) -> None:
    """Wait until another unit lets this one go on."""
    _here["turns"][unit, _here["unit"]].acquire()


def tell(unit: str) -> None:
    """Let another unit go on."""
    _here["turns"][_here["unit"], unit].release()


def _serve(unit: str, requests: Connection, turns: Mapping[tuple[str, str], Any]) -> None:
    """Do what is asked for until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    os.dup2(2, 1)  # what drivers print gets into nobody's output
    _here.update(unit=unit, turns=turns)
    while True:
        try:
            function, *arguments = requests.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = True, function(*arguments)
        except BaseException as error:  # whatever a runtime or the user's code raises belongs to its request
            answer = False, one_line(error)
        requests.send(answer)
