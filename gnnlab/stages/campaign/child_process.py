"""What runs in the child process: reads requests, measures, answers; dies with its parent.

One line of JSON each way. Answers go out on a channel of their own, so that whatever a driver prints to the standard
output or the error stream cannot get in between; the parent keeps the tail of that for its reasons.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from typing import Any, BinaryIO

from gnnlab.stages.pipes import channels, listen

GRACE_S = 3  # what hangs so far beyond its limit has lost its parent, who would have ended it


def main() -> None:
    """Serve until the parent closes the channel or is gone."""
    requests, answers = channels()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(requests, waiting), daemon=True).start()
    _send(answers, {"ready": os.getpid()})
    while True:
        request = json.loads(waiting.get())
        _send(answers, {"id": request["id"], "begun": True})
        # a thread of C that needs no Python: it ends even a driver that hangs with the interpreter locked
        faulthandler.dump_traceback_later(request["limit_s"] + GRACE_S, exit=True)
        answer = _answer(request)
        faulthandler.cancel_dump_traceback_later()
        _send(answers, {"id": request["id"], "answer": answer})


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "probe":
        return _probe(request["unit"])
    from gnnlab.stages.campaign.cells import Cell, Settings, measure

    return measure(Cell(**request["cell"]), Settings.from_json(request["settings"])).to_json()


def _probe(name: str) -> dict[str, Any]:
    from gnnlab.stages.units.registry import find
    from gnnlab.stages.units.unit import Availability, first_line

    try:
        return find(name).probe().to_json()
    except Exception as error:
        return Availability(False, f"{type(error).__name__}: {first_line(error)}").to_json()


def _send(answers: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[answers.write(data) :]


if __name__ == "__main__":
    sys.exit(main())
