"""The service as processes: started here until a signal, or as a child for as long as a block lasts.

    with running(made(redis="redis://127.0.0.1:6379/0")) as url:
        httpx.post(f"{url}/predict", json=state).json()["node_id"]

SIGTERM or Ctrl-C: no new connection is taken, what was accepted is answered, the database gets what it is due. So it is
for the workers where their parent is killed, and for a child where the process that started it is.
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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psutil

from gnnlab.errors import GnnlabError
from gnnlab.serving.settings import ServiceSettings, environment
from gnnlab.worker_process import end_with_parent

if TYPE_CHECKING:
    from fastapi import FastAPI

PARENT = "GNNLAB_PARENT"  # the process that a child ends with
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
START_S = 120.0
GREETING = "gnnlab: serving at "


def serve(settings: ServiceSettings) -> int:
    """Serve until a signal ends it; the exit code.

    Raises:
        GnnlabError: the port is taken, the address is none of this machine, or the database's folder cannot be.
    """
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from gnnlab.serving.database import make_folder

    if parent := os.environ.pop(PARENT, None):
        _stop_with(int(parent))
    if settings.database_url is not None:
        make_folder(settings.database_url)  # before the workers do, each with a trace
    with tempfile.TemporaryDirectory(prefix="gnnlab-metrics-") as folder:
        if settings.workers > 1:
            os.environ[METRICS_FOLDER] = folder  # read when prometheus_client is loaded, here and in the workers
        os.environ.update(environment(settings))
        config = uvicorn.Config(
            "gnnlab.serving.server:app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_level="warning",
            access_log=False,  # who asked what is nobody's business here
            server_header=False,
            proxy_headers=False,  # nothing here asks where a client is
            timeout_graceful_shutdown=int(settings.shutdown_s) or 1,
            timeout_worker_healthcheck=30,
            timeout_keep_alive=30,
        )
        listener = _listen(config)
        host, port = listener.getsockname()[:2]
        print(f"{GREETING}http://{f'[{host}]' if ':' in host else host}:{port} (/openapi.json says what)", flush=True)
        if settings.workers == 1:
            signal.signal(
                signal.SIGTERM, lambda *_: None
            )  # uvicorn has its own, and raises the signal again afterwards
            server = uvicorn.Server(config)
            server.run(sockets=[listener])
            return 0 if server.started else 1
        Multiprocess(config, sockets=[listener]).run()
        return 0


def app() -> FastAPI:
    """What uvicorn loads: in a worker, an application that stops when the worker's parent is gone."""
    from gnnlab.serving.app import create

    if parent := multiprocessing.parent_process():
        _stop_with(parent.pid)
    return create()


def _stop_with(parent: int) -> None:
    end_with_parent(parent, partial(os.kill, os.getpid(), signal.SIGTERM))


def _listen(config):
    try:
        return config.bind_socket()
    except SystemExit:  # uvicorn has logged the reason
        raise GnnlabError(
            f"cannot listen on {config.host}:{config.port}; give another --port (0: any that is free) or --host"
        ) from None


@contextmanager
def running(settings: ServiceSettings, *, start_s: float = START_S) -> Iterator[str]:
    """The URL of a service of these settings in a process of its own, which ends, gracefully, with the block or with
    this process.

    `port=0` takes any port that is free. What it logs goes to this process's standard error.

    Raises:
        GnnlabError: it did not become ready within `start_s` seconds.
    """
    with started(settings, start_s=start_s) as (url, _):
        yield url


@contextmanager
def started(settings: ServiceSettings, *, start_s: float = START_S) -> Iterator[tuple[str, psutil.Process]]:
    """The same, with the process: what a test of faults stops, or looks for the workers in (`workers_of`)."""
    command = [sys.executable, "-m", "gnnlab", "serve"]
    own = {**os.environ, **environment(settings), "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
    child = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True)
    process = psutil.Process(child.pid)
    try:
        greeting = child.stdout.readline()
        if not greeting.startswith(GREETING):
            raise GnnlabError(f"the service did not start: exit code {child.wait()}; its log says why")
        url = greeting.removeprefix(GREETING).split()[0]
        _until_ready(url, child, start_s)
        yield url, process
    finally:
        _end(child, process, settings.shutdown_s)


def workers_of(process: psutil.Process) -> list[int]:
    """Process ids of the workers, alive, of a service of several."""
    return [child.pid for child in process.children() if _works(child)]


def _works(child: psutil.Process) -> bool:
    try:
        return any("spawn_main" in word for word in child.cmdline())
    except psutil.NoSuchProcess:  # dead, and perhaps not yet replaced
        return False


def _until_ready(url: str, child: subprocess.Popen, within_s: float) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if child.poll() is not None:
            raise GnnlabError(f"the service ended with exit code {child.returncode}; its log says why")
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise GnnlabError(f"the service was not ready within {within_s:g} s")


def _end(child: subprocess.Popen, process: psutil.Process, within_s: float) -> None:
    family = process.children(recursive=True) if child.poll() is None else []
    if child.poll() is None:
        child.send_signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_C_EVENT)
    try:
        child.wait(2 * within_s + 10)  # requests, then the database
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()
    for left in psutil.wait_procs(family, timeout=2)[1]:
        left.kill()
