"""A process for each device, all at work at once.

    with DeviceProcesses(["fast:CPU", "openvino:CPU"]) as processes:
        processes.ask({"fast:CPU": (os.getpid,), "openvino:CPU": (os.getpid,)})      # both at once

No device shares an interpreter, an allocator or a pool of threads with another. A function in a device's process lets
others go on (`signal_to`), and waits until they let it (`wait_for`): a semaphore for each pair.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import permutations
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest.mock import patch

from gnnlab.child import describe_exit, end_with_parent, worker_environment
from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line

TIMEOUT_S = 600.0  # models compile on a busy machine, and streams of large graphs take their time
_here: dict[str, Any] = {}  # in a device's process: its device, and the semaphores of all pairs


class DeviceProcesses(AbstractContextManager):
    """A spawned process for each device. Where one fails, dies or hangs (`timeout_s` for a request), all end."""

    def __init__(self, devices: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s, context = timeout_s, get_context("spawn")
        # they are gone from the system with the last name that this process has for them
        self._turns = {pair: context.Semaphore(0) for pair in permutations(devices, 2)}
        self._processes: dict[str, tuple[Any, Connection]] = {}
        with patch.dict(os.environ, worker_environment(OMP_NUM_THREADS="1")):  # which processes that start inherit
            for device in devices:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(device, theirs, self._turns), daemon=True)
                process.start()
                self._processes[device] = process, ours
                theirs.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def ask(self, requests: Mapping[str, tuple]) -> dict[str, Any]:
        """What the functions of these requests give, (function, *arguments) by device, each in the device's process.
        Raises `GnnlabError`: a function raised, a process died, or one gave no answer in time; all have ended then.
        """
        if not self.running:
            raise GnnlabError(f"the processes of {', '.join(requests)} have ended; start others by DeviceProcesses")
        answers, until = {}, time.monotonic() + self.timeout_s
        try:
            for device, request in requests.items():
                with suppress(ConnectionError):  # of a process that is gone: its answer says so
                    self._processes[device][1].send(request)
            while waiting := {self._processes[device][1]: device for device in requests if device not in answers}:
                ready = wait(waiting, max(0.0, until - time.monotonic()))
                if not ready:
                    raise GnnlabError(f"{' and '.join(waiting.values())} gave no answer within {self.timeout_s:g} s")
                answers |= {waiting[connection]: self._answer(waiting[connection]) for connection in ready}
        except BaseException:  # after Ctrl-C nobody waits for the answers: they must not go to the next request
            self.close()
            raise
        return answers

    def close(self) -> None:
        """End all processes at once."""
        for process, requests in self._processes.values():
            process.kill()
            process.join()
            requests.close()
        self._processes = {}

    def _answer(self, device: str) -> Any:
        process, requests = self._processes[device]
        try:
            done, value = requests.recv()
        except (EOFError, ConnectionError):
            process.join(1)
            raise GnnlabError(f"{device}: {describe_exit(process.exitcode or 0)}") from None
        if not done:
            raise GnnlabError(f"{device}: {value}")
        return value


def wait_for(devices: Iterable[str]) -> None:
    """Wait until each of these lets this device go on."""
    for device in devices:
        _here["turns"][device, _here["device"]].acquire()


def signal_to(devices: Iterable[str]) -> None:
    """Let each of these go on."""
    for device in devices:
        _here["turns"][_here["device"], device].release()


def _serve(device: str, requests: Connection, turns: Mapping[tuple[str, str], Any]) -> None:
    """Do what is asked for until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    os.dup2(2, 1)  # what drivers print gets into nobody's output
    _here.update(device=device, turns=turns)
    with suppress(EOFError, ConnectionError):
        while True:
            function, *arguments = requests.recv()
            try:
                answer = True, function(*arguments)
            except BaseException as error:  # whatever a runtime or the user's code raises belongs to its request
                answer = False, one_line(error)
            requests.send(answer)
