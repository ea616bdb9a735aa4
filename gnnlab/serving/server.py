"""The service as processes: started here until a signal, or as a child for as long as a block lasts.

    with started(redis="redis://127.0.0.1:6379/0") as (url, process):
        httpx.post(f"{url}/predict", json=state).json()["node_id"]

SIGTERM, SIGHUP or Ctrl-C: it says that it is not ready and answers on for `drain_s`; then no new connection is taken,
what was accepted is answered, the queued decisions are written. The same happens to workers when their parent is
killed, and to a `started` service when the process that started it ends.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import uvicorn
from uvicorn.server import STARTUP_FAILURE

from gnnlab.child import describe_exit, end_with_parent
from gnnlab.errors import GnnlabError
from gnnlab.serving.settings import ServiceSettings, configure, environment

if TYPE_CHECKING:
    from gnnlab.serving.app import App

log = logging.getLogger("gnnlab.serving")
START_S, STOP_S, KEEP_ALIVE_S = 120.0, 30, 30
PARENT = "GNNLAB_PARENT"  # the process that a child ends with
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


def serve(settings: ServiceSettings) -> int:
    """Serve until a signal ends it; the exit code, 1 where a worker fails at its start.

    Raises `GnnlabError`: it cannot listen.
    """
    _log_with_time()
    if parent := os.environ.pop(PARENT, None):
        _stop_with(int(parent))
    url = settings.database_url
    if url is not None and url.get_backend_name() == "sqlite":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(environment(settings))
    with ExitStack() as running:
        if settings.workers > 1:  # read when prometheus_client is loaded, here and in the workers
            folder = tempfile.TemporaryDirectory(prefix="gnnlab-metrics-")
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = running.enter_context(folder)
        listener = running.enter_context(_bound(settings.host, settings.port))
        port = listener.getsockname()[1]
        print(f"gnnlab: serving at {_address(settings.host, port)} (/openapi.json says what)", flush=True)
        return _supervise(listener, settings.workers) if settings.workers > 1 else _answer(listener)


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address; who answers makes it listen, when ready.

    Raises `GnnlabError`: that is not possible.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise GnnlabError(f"cannot listen at {_address(host, port)}: {error.strerror}; choose another") from None
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's, of an `App`: it drains first, and SIGHUP ends it, too. `ready` is set once it answers."""

    def __init__(self, app: App, ready: Any = None) -> None:
        from gnnlab.serving.protocol import Protocol

        config = uvicorn.Config(
            app,
            http=Protocol,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,  # who asked what is nobody's business here
            server_header=False,
            proxy_headers=False,  # nothing here asks where a client is
            timeout_graceful_shutdown=STOP_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        super().__init__(config)
        self._app, self._ready = app, ready

    def capture_signals(self) -> AbstractContextManager[None]:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self.handle_exit)
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        try:
            for sock in sockets or ():  # where another process listens there, uvloop closes them in silence
                sock.listen(self.config.backlog)
        except OSError:
            address = _address(self._app.settings.host, self._app.settings.port)
            log.error("cannot listen at %s: another process does now; choose another", address)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        if self._ready is not None:
            self._ready.value = 1

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.leaving, end_s = True, time.monotonic() + self._app.settings.drain_s
        while time.monotonic() < end_s and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def _answer(listener: socket.socket, ready: Any = None, place: int = 0) -> int:
    """What one process does, the worker of this place. It ends with code 3 where it cannot start, as uvicorn has it."""
    from gnnlab.serving.app import App
    from gnnlab.serving.service import Metrics

    if ready is not None:
        Metrics.of_worker(place)
    _log_with_time()
    if parent := multiprocessing.parent_process():
        _stop_with(parent.pid)
    Server(App(), ready).run([listener])
    return 0


def _supervise(listener: socket.socket, count: int) -> int:
    """Workers, until a signal ends them; one that dies later than at its start is replaced."""
    ending: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: ending.append(number))
    context, failed = multiprocessing.get_context("spawn"), False
    ready = [context.Value("b", 0, lock=False) for _ in range(count)]

    def worker_at(place: int) -> Any:
        return context.Process(target=_answer, args=(listener, ready[place], place))

    workers = [worker_at(place) for place in range(count)]
    for worker in workers:
        worker.start()
    while not ending and not failed:
        wait([worker.sentinel for worker in workers], 0.5)
        for place, worker in enumerate(workers):
            if worker.is_alive() or ending:
                continue
            log.error("worker %d: %s", worker.pid, describe_exit(worker.exitcode))
            failed = failed or not ready[place].value
            if not failed:
                workers[place] = worker_at(place)
                workers[place].start()
    listener.close()  # else the system would take connections on after the last worker has stopped to
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(2 * STOP_S)
        worker.kill()
    return int(failed)


def _stop_with(parent: int) -> None:
    end_with_parent(parent, partial(os.kill, os.getpid(), signal.SIGTERM))


def _log_with_time() -> None:
    """Lines of this process and of its libraries, to standard error."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(process)d %(message)s", level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


@contextmanager
def started(**given: Any) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of a service of these settings, and its process, which ends, gracefully, with the block or with this one.

    Without a port, or with port 0, it takes any that is free. What it logs goes to this process's standard error.
    Raises `GnnlabError`: a setting is invalid, or it did not become ready in time.
    """
    own = configure(**given | {"port": given.get("port") or free_port()})
    variables = {**environment(own), PARENT: str(os.getpid())}
    with running([sys.executable, "-m", "gnnlab", "serve"], own.port, own.host, **variables) as process:
        yield _address(own.host, own.port), process


@contextmanager
def running(command: Sequence[str], port: int, host: str = "127.0.0.1", **variables: str) -> Iterator[psutil.Process]:
    """The process of a command, with these variables of the environment, once it takes connections on a port; it ends,
    gracefully, with the block.

    Raises `GnnlabError`: it ended, or takes none within two minutes.
    """
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    end_s = time.monotonic() + START_S
    try:
        while True:
            with suppress(OSError), socket.create_connection((host, port), 5):
                break
            if child.poll() is not None:
                raise GnnlabError(f"{command[0]} ended with exit code {child.returncode}; its log says why")
            if time.monotonic() > end_s:
                raise GnnlabError(f"{command[0]} was not ready within {START_S:g} s")
            time.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        child.send_signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_C_EVENT)
        try:
            child.wait(2 * STOP_S)  # requests, then the database
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
