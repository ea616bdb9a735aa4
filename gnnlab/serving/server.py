"""The service as processes: started here until a signal, or as a child for as long as a block lasts.

    with started(configure(port=0, redis="redis://127.0.0.1:6379/0")) as (url, process):
        httpx.post(f"{url}/predict", json=state).json()["node_id"]

SIGTERM or Ctrl-C: no new connection is taken, what was accepted is answered, the queued decisions are written. The same
happens to workers when their parent is killed, and to a `started` service when the process that started it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.serving.settings import ServiceSettings, environment
from gnnlab.worker_process import end_with_parent

if TYPE_CHECKING:
    from gnnlab.serving.app import App

PARENT = "GNNLAB_PARENT"  # the process that a child ends with
START_S, STOP_S, KEEP_ALIVE_S = 120.0, 30, 30


def serve(settings: ServiceSettings) -> int:
    """Serve until a signal ends it; the exit code.

    Raises `GnnlabError`: the port is taken, or the address is not one of this machine.
    """
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    if parent := os.environ.pop(PARENT, None):
        _stop_with(int(parent))
    url = settings.database_url
    if url is not None and url.get_backend_name() == "sqlite":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gnnlab-metrics-") as folder:
        if settings.workers > 1:  # read when prometheus_client is loaded, here and in the workers
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        os.environ.update(environment(settings))
        config = uvicorn.Config(
            "gnnlab.serving.server:app",
            factory=True,
            lifespan="on",
            ws="none",
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_level="warning",
            access_log=False,  # who asked what is nobody's business here
            server_header=False,
            proxy_headers=False,  # nothing here asks where a client is
            timeout_graceful_shutdown=STOP_S,
            timeout_worker_healthcheck=30,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        try:
            listener = config.bind_socket()
        except SystemExit:  # uvicorn has logged the reason
            where = f"{settings.host}:{settings.port}"
            raise GnnlabError(
                f"cannot listen on {where}; give another --port (0: any that is free) or --host"
            ) from None
        host, port = listener.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"gnnlab: serving at {where} (/openapi.json says what)", flush=True)
        if settings.workers > 1:
            Multiprocess(config, sockets=[listener]).run()
            return 0
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn handles it, and raises it again afterwards
        server = uvicorn.Server(config)
        server.run(sockets=[listener])
        return 0 if server.started else 1


def app() -> App:
    """What uvicorn loads: in a worker, an application that stops when the worker's parent is gone."""
    from gnnlab.serving.app import App

    if parent := multiprocessing.parent_process():
        _stop_with(parent.pid)
    return App()


def _stop_with(parent: int) -> None:
    end_with_parent(parent, partial(os.kill, os.getpid(), signal.SIGTERM))


@contextmanager
def started(settings: ServiceSettings) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of a service of these settings, and its process, which ends, gracefully, with the block or with this one.

    `port=0` takes any port that is free. What it logs goes to this process's standard error.
    Raises `GnnlabError`: it did not become ready in time.
    """
    port = settings.port or free_port()
    variables = {**environment(settings.model_copy(update={"port": port})), PARENT: str(os.getpid())}
    command = [sys.executable, "-m", "gnnlab", "serve"]
    with _running(command, (settings.host, port), variables) as process:
        yield f"http://{settings.host}:{port}", process


@contextmanager
def started_app(app: str, folder: Path, **variables: str) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of any ASGI application ("module:name" in a folder) under uvicorn, and its process."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--app-dir", str(folder), "--port", str(port)]
    command += ["--log-level", "error", "--no-access-log", "--timeout-keep-alive", str(KEEP_ALIVE_S)]
    with _running(command, ("127.0.0.1", port), variables) as process:
        yield f"http://127.0.0.1:{port}", process


@contextmanager
def started_redis(url: str = "") -> Iterator[tuple[str, psutil.Process]]:
    """The URL of a Redis on the loopback that writes nothing to the disk, and its process; `url`: that of one that was
    killed, in whose place it comes. Raises `Unavailable`: there is no redis-server."""
    if shutil.which("redis-server") is None:
        raise Unavailable("redis-server is not here (apt install redis-server)")
    port = int(url.rpartition(":")[2].partition("/")[0]) if url else free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _running(command, ("127.0.0.1", port), {}) as process:
        yield f"redis://127.0.0.1:{port}/0", process


@contextmanager
def _running(
    command: Sequence[str], address: tuple[str, int], variables: Mapping[str, str]
) -> Iterator[psutil.Process]:
    """The process of a command, once it takes connections; it ends, gracefully, with the block.

    Raises `GnnlabError`: it ended, or takes none within two minutes.
    """
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    end_s = time.monotonic() + START_S
    try:
        while True:
            with suppress(OSError), socket.create_connection(address, 5):
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


def kill_worker(process: psutil.Process) -> None:
    """Kill the busiest worker of a service of two or more, once two are there."""
    while len(workers := workers_of(process)) < 2:
        time.sleep(0.2)
    max(workers, key=lambda worker: len(worker.net_connections())).kill()


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The workers, alive, of a service of several."""
    workers = []
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # dead, and perhaps not yet replaced
            workers += [child] if any("spawn_main" in word for word in child.cmdline()) else []
    return workers
