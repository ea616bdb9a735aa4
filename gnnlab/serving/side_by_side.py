"""Several services in one process beside this one, so that forms of a service can be compared in turns.

    with side_by_side({"guide": made(port=0, engine="guide"), "fast": made(port=0)}) as services:
        services.urls["guide"], services.pids["guide"]

A service of its own takes seconds and half a gigabyte to start; here Python, torch and PyG are loaded once. Each is a
real uvicorn with an event loop and a thread of its own, and only the one that is asked works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.profiling.timing import stopwatch
from gnnlab.serving.server import started
from gnnlab.serving.settings import ServiceSettings, made, plain
from gnnlab.worker import Worker

START_S, STOP_S = 120.0, 60.0
_running = ExitStack()  # of the process that serves


@dataclass(frozen=True)
class Services:
    """Where each service is, by its name, the process that it is in, and of those `apart` how long the start took."""

    urls: Mapping[str, str]
    pids: Mapping[str, int]
    start_s: Mapping[str, float]


@contextmanager
def side_by_side(
    forms: Mapping[str, ServiceSettings], *, apart: Mapping[str, ServiceSettings] | None = None
) -> Iterator[Services]:
    """Services of these settings for as long as the block lasts; their ports are any that are free.

    Those `apart` are started as a user starts them, each in a process of its own, with workers where it has several.

    Raises:
        GnnlabError: one of them did not start.
    """
    given = {name: json.dumps(plain(settings) | {"port": 0, "workers": 1}) for name, settings in forms.items()}
    with Worker() as worker, ExitStack() as stack:
        urls = worker.call(f"{__name__}:start", {"forms": given}, timeout_s=START_S).get("the services")
        pids, start_s = dict.fromkeys(urls, worker.pid), {}
        try:
            for name, settings in (apart or {}).items():
                with stopwatch() as took:
                    urls[name], process = stack.enter_context(started(settings))
                pids[name], start_s[name] = process.pid, took.s
            yield Services(urls, pids, start_s)
        finally:
            worker.call(f"{__name__}:stop", timeout_s=STOP_S)


def start(forms: Mapping[str, str]) -> dict[str, str]:
    """The URL of each service, all of them started in this process."""
    return {name: _running.enter_context(here(made(**json.loads(text)))) for name, text in forms.items()}


def stop() -> None:
    """End all of them, after they have answered what they accepted."""
    _running.close()


@contextmanager
def here(settings: ServiceSettings) -> Iterator[str]:
    """The URL of a service in a thread of this process.

    Raises:
        GnnlabError: it did not start; its log says why.
    """
    import uvicorn

    from gnnlab.serving.app import create

    options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    config = uvicorn.Config(create(settings), host=settings.host, port=0, timeout_keep_alive=3600, **options)
    server, listener = uvicorn.Server(config), config.bind_socket()
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="gnnlab-service")
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            thread.join(0.02)
        if not server.started:
            raise GnnlabError("the service did not start; its log says why")
        yield f"http://{settings.host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
