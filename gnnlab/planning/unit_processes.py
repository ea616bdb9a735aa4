"""A process for each unit, all at work at once, and pipes between them.

    with UnitProcesses(["fast:CPU", "openvino:CPU"]) as processes:
        processes.ask({"fast:CPU": (os.getpid,), "openvino:CPU": (os.getpid,)})      # both at once

No unit shares an interpreter, an allocator or a pool of threads with another. In a unit's process, a function that was
asked for lets another unit go on (`tell`), and waits until another lets it (`wait_for`), by a byte in a pipe.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from gnnlab.campaign import cells
from gnnlab.campaign.cell_inputs import Cell
from gnnlab.errors import GnnlabError, one_line
from gnnlab.worker import describe_exit, worker_environment
from gnnlab.worker_process import end_with_parent

TIMEOUT_S = 180.0  # models compile on a busy machine


class UnitProcesses(AbstractContextManager):
    """A spawned process for each unit. Where one fails, dies or hangs, all end; the next request starts new ones.

    `timeout_s`: without any progress.
    """

    def __init__(self, units: Iterable[str], timeout_s: float = TIMEOUT_S) -> None:
        self.units, self.timeout_s = tuple(dict.fromkeys(units)), timeout_s
        self._processes: dict[str, Any] = {}
        self._requests: dict[str, Connection] = {}

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def start(self) -> None:
        """Start them side by side, unless they run."""
        if self._processes:
            return
        context = get_context("spawn")
        self._progress = torch.zeros(len(self.units), dtype=torch.int64).share_memory_()
        tokens = {pair: context.Pipe(duplex=False) for pair in itertools.permutations(self.units, 2)}
        with ExitStack() as stack, _environment(worker_environment(OMP_NUM_THREADS="1")):
            for end in itertools.chain(*tokens.values()):
                stack.callback(end.close)  # here; the processes have their own
            for place, unit in enumerate(self.units):
                self._requests[unit], requests = context.Pipe()
                stack.callback(requests.close)
                sources = {source: ends[0] for (source, target), ends in tokens.items() if target == unit}
                targets = {target: ends[1] for (source, target), ends in tokens.items() if source == unit}
                given = (requests, sources, targets, self._progress[place : place + 1])
                self._processes[unit] = context.Process(target=_serve, args=given, name=unit, daemon=True)
                self._processes[unit].start()

    def ask(self, requests: Mapping[str, tuple]) -> dict[str, Any]:
        """What the functions of these requests give, (function, *arguments) by unit, each in the unit's process.

        Raises:
            GnnlabError: a function raised, a process died, or none made progress in time; all processes have ended.
        """
        self.start()
        answers, begun = {}, self._progress.clone()
        reached = begun.clone()
        try:
            for unit, request in requests.items():
                with suppress(ConnectionError):  # of a process that is gone: its answer says so
                    self._requests[unit].send(request)
            while waiting := {self._requests[unit]: unit for unit in requests if unit not in answers}:
                ready = wait(waiting, self.timeout_s)
                for connection in ready:
                    answers[waiting[connection]] = self._answer(waiting[connection])
                if not ready and torch.equal(reached, self._progress):
                    done = dict(zip(self.units, (reached - begun).tolist(), strict=True))
                    raise GnnlabError(
                        f"{min(waiting.values(), key=done.get)} gave no answer within {self.timeout_s:g} s"
                    )
                reached = self._progress.clone()
        except BaseException:  # after Ctrl-C nobody waits for the answers: they must not go to the next request
            self.close()
            raise
        return answers

    def measure(self, cell: Cell, settings: cells.Settings) -> cells.CellResult:
        """A call by itself, in the process that plans use."""
        return self.ask({cell.unit: (cells.measure, cell, settings)})[cell.unit]

    def close(self) -> None:
        """End all processes at once."""
        for process in self._processes.values():
            process.kill()
        for unit, process in self._processes.items():
            process.join()
            self._requests[unit].close()
        self._processes, self._requests = {}, {}

    def _answer(self, unit: str) -> Any:
        try:
            done, value = self._requests[unit].recv()
        except (EOFError, ConnectionError):
            time.sleep(0.1)  # the others end as well, with code 0
            codes = {name: process.exitcode for name, process in self._processes.items()}
            unit = next((name for name, code in codes.items() if code), unit)
            raise GnnlabError(f"{unit}: {describe_exit(codes[unit] or 0)}") from None
        if not done:
            raise GnnlabError(f"{unit}: {value}")
        return value


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started here have these settings."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ---- in the process of a unit ----------------------------------------------------------------------------------------

_from: dict[str, Connection] = {}  # by the unit at the other end
_to: dict[str, Connection] = {}
_progress: list[torch.Tensor] = []


def wait_for(unit: str) -> None:
    """Wait until another unit lets this one go on."""
    _from[unit].recv_bytes()


def tell(unit: str) -> None:
    """Let another unit go on."""
    _to[unit].send_bytes(b".")


def count_progress() -> None:
    """Work goes on, so nobody needs to end this process."""
    _progress[0] += 1


def _serve(requests: Connection, sources: dict, targets: dict, progress: torch.Tensor) -> None:
    """Do what is asked for until the other end of a pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    os.dup2(2, 1)  # what drivers print gets into nobody's output
    _from.update(sources)
    _to.update(targets)
    _progress.append(progress)
    while True:
        try:
            function, *arguments = requests.recv()
            answer = True, function(*arguments)
        except (EOFError, BrokenPipeError):
            return
        except BaseException as error:  # whatever a runtime or the user's code raises belongs to its request
            answer = False, one_line(error)
        requests.send(answer)
