"""The service as processes: started here until a signal, or as a child for as long as a block lasts.

    with started(made(redis="redis://127.0.0.1:6379/0")) as (url, process):
        httpx.post(f"{url}/predict", json=state).json()["node_id"]

SIGTERM or Ctrl-C: no new connection is taken, what was accepted is answered, the database gets what it is due. So it is
for the workers where their parent is killed, and for a child where the process that started it is.

    with side_by_side({"guide": made(port=0, engine="guide"), "fast": made(port=0)}) as services:
        services.urls["guide"], services.pids["guide"]      # in one process, so that they can be compared in turns

A service of its own takes seconds and half a gigabyte to start; there Python, torch and PyG are loaded once. Each is a
real uvicorn with an event loop and a thread of its own, and only the one that is asked works.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from gnnlab.errors import GnnlabError
from gnnlab.profiling.timing import stopwatch
from gnnlab.serving.settings import ServiceSettings, environment, made, plain
from gnnlab.worker import Worker
from gnnlab.worker_process import end_with_parent

if TYPE_CHECKING:
    from fastapi import FastAPI

PARENT = "GNNLAB_PARENT"  # the process that a child ends with
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
START_S, STOP_S = 120.0, 60.0
_running = ExitStack()  # of a process that serves several
GREETING = "gnnlab: serving at "


def serve(settings: ServiceSettings) -> int:
    """Serve until a signal ends it; the exit code.

    Raises `GnnlabError`: the port is taken, the address is none of this machine, or the database's folder cannot be.
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
def started(settings: ServiceSettings) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of a service of these settings, and its process, which ends, gracefully, with the block or with this one.

    `port=0` takes any port that is free. What it logs goes to this process's standard error. `workers_of` tells the
    workers of a process. Raises `GnnlabError`: it did not become ready in time.
    """
    command = [sys.executable, "-m", "gnnlab", "serve"]
    own = {**os.environ, **environment(settings), "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
    child = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True)
    process = psutil.Process(child.pid)
    try:
        greeting = child.stdout.readline()
        if not greeting.startswith(GREETING):
            raise GnnlabError(f"the service did not start: exit code {child.wait()}; its log says why")
        url = greeting.removeprefix(GREETING).split()[0]
        _until_ready(url, child)
        yield url, process
    finally:
        _end(child, process, settings.shutdown_s)


def workers_of(process: psutil.Process) -> list[int]:
    """Process ids of the workers, alive, of a service of several."""
    found = []
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # dead, and perhaps not yet replaced
            found += [child.pid] if any("spawn_main" in word for word in child.cmdline()) else []
    return found


def _until_ready(url: str, child: subprocess.Popen) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if child.poll() is not None:
            raise GnnlabError(f"the service ended with exit code {child.returncode}; its log says why")
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise GnnlabError(f"the service was not ready within {START_S:g} s")


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
    Raises `GnnlabError`: one of them did not start.
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
    """The URL of a service in a thread of this process. Raises `GnnlabError`: it did not start; its log says why."""
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
