"""The service as processes: started here until a signal, or as a child for as long as a block lasts.

    with started(configure(port=0, redis="redis://127.0.0.1:6379/0")) as (url, process):
        httpx.post(f"{url}/predict", json=state).json()["node_id"]

SIGTERM or Ctrl-C: no new connection is taken, what was accepted is answered, the queued decisions are written. The same
happens to workers when their parent is killed, and to a child when the process that started it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gnnlab.errors import GnnlabError
from gnnlab.serving.local_redis import free_port
from gnnlab.serving.settings import ServiceSettings, environment
from gnnlab.worker_process import end_with_parent

if TYPE_CHECKING:
    from gnnlab.serving.app import App

PARENT = "GNNLAB_PARENT"  # the process that a child ends with
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
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
        if settings.workers > 1:
            os.environ[METRICS_FOLDER] = folder  # read when prometheus_client is loaded, here and in the workers
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
    url = f"http://{settings.host}:{port}"
    with running([sys.executable, "-m", "gnnlab", "serve"], f"{url}/health/ready", variables) as process:
        yield url, process


@contextmanager
def started_app(app: str, folder: Path, **variables: str) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of any ASGI application ("module:name" in a folder, with GET /health) under uvicorn, and its process."""
    port = free_port()
    options = ["--app-dir", str(folder), "--port", str(port), "--log-level", "error", "--no-access-log"]
    options += ["--timeout-keep-alive", str(KEEP_ALIVE_S)]
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "uvicorn", app, *options], f"{url}/health", variables) as process:
        yield url, process


@contextmanager
def running(command: Sequence[str], ready: str, variables: Mapping[str, str] | None = None) -> Iterator[psutil.Process]:
    """The process of a command that serves HTTP, once the URL `ready` answers; it ends, gracefully, with the block.

    Raises `GnnlabError`: it ended, or did not answer within two minutes.
    """
    child = subprocess.Popen(command, env={**os.environ, **(variables or {})}, stdout=subprocess.DEVNULL)
    try:
        _until_ready(ready, child)
        yield psutil.Process(child.pid)
    finally:
        _end(child)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The workers, alive, of a service of several."""
    workers = []
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # dead, and perhaps not yet replaced
            workers += [child] if any("spawn_main" in word for word in child.cmdline()) else []
    return workers


def _until_ready(url: str, child: subprocess.Popen) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if child.poll() is not None:
            raise GnnlabError(f"the service ended with exit code {child.returncode}; its log says why")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise GnnlabError(f"the service was not ready within {START_S:g} s")


def _end(child: subprocess.Popen) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_C_EVENT)
    try:
        child.wait(2 * STOP_S)  # requests, then the database
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
