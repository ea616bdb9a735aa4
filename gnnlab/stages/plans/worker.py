"""What runs in the process of a unit that takes part in a plan: one line of JSON for each request and answer.

    {"do": "open", "key": ..., "order": ..., "layout": ...}    {"do": "pin", "core": 1}    {"do": "forget", "key": ...}
    {"do": "run", "key": ..., "task": [item, graph, slot]}

Tensors travel in shared memory alone. Answers go out on a channel of their own, so that nothing that a driver prints
gets in between. The process ends when its parent closes the channel or is gone.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from gnnlab.stages.pipes import channels, listen
from gnnlab.stages.plans.shared_arrays import SharedArrays
from gnnlab.stages.plans.station import Order, Station
from gnnlab.stages.units.unit import first_line

_opened: dict[str, tuple[Station, SharedArrays]] = {}


def main() -> None:
    requests, answers = channels()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(requests, waiting), daemon=True).start()
    while True:
        request = json.loads(waiting.get())
        if request["do"] == "pin":
            _pin(request["core"])
            continue
        answer = _run(request) if request["do"] == "run" else _prepare(request)
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[answers.write(data) :]


def _run(request: dict[str, Any]) -> dict[str, Any]:
    _, graph, slot = request["task"]
    answer = {"key": request["key"], "task": request["task"], "start": time.perf_counter()}
    try:
        _opened[request["key"]][0].run(graph, slot)
    except Exception as error:  # whatever a runtime raises belongs to this graph
        answer["error"] = f"{type(error).__name__}: {first_line(error)}"
    return answer | {"end": time.perf_counter()}


def _prepare(request: dict[str, Any]) -> dict[str, Any]:
    try:
        _PREPARE[request["do"]](request)
    except Exception as error:
        return {"error": first_line(error)}
    return {"done": request["do"]}


def _open(request: dict[str, Any]) -> None:
    arrays = SharedArrays.attach(request["layout"])
    _opened[request["key"]] = Station(Order.from_json(request["order"]), arrays), arrays


def _forget(request: dict[str, Any]) -> None:
    station, arrays = _opened.pop(request["key"])
    station.close()
    del station
    with suppress(BufferError):  # a runtime still holds on to its last inputs; the memory goes with the process
        arrays.close()


def _pin(core: int) -> None:
    """Keep every thread of this process on one core, where the system can do that."""
    if not hasattr(psutil.Process, "cpu_affinity"):
        return
    if hasattr(os, "sched_setaffinity"):  # threads that are there already have an affinity of their own
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    else:
        psutil.Process().cpu_affinity([core])


_PREPARE = {"open": _open, "forget": _forget}


if __name__ == "__main__":
    sys.exit(main())
