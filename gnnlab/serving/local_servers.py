"""A Redis and a PostgreSQL of one's own on the loopback, which can be stopped as by a crash and started again.

with up(RedisServer) as redis, up(PostgresServer) as postgres:
    settings = made(redis=redis.url, database=postgres.url)
    redis.stop()
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gnnlab.errors import GnnlabError, Unavailable

T = TypeVar("T")
START_S = 30.0


class RedisServer:
    """`url` while it is up; `stop` and `start` keep the port. Nothing is written to the disk.

    Raises `Unavailable`: there is no redis-server here.
    """

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("redis-server")
        if self._program is None:
            raise Unavailable("redis-server is not installed (apt-get install redis-server)")
        self._folder, self._port = folder, free_port()
        self._process: subprocess.Popen | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([self._program, *options, "--dir", str(self._folder)], **quiet)
        end = time.monotonic() + START_S
        while not _listens(self._port):
            if time.monotonic() > end:
                raise GnnlabError(f"redis-server did not listen on port {self._port} within {START_S:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class PostgresServer:
    """`url` of an empty database while it is up; `stop` is as a crash, and `start` goes on from there.

    Raises `Unavailable`: there is no PostgreSQL here, or it cannot run as this user.
    """

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: int(p.parts[-3]))
        program = shutil.which("pg_ctl") or (str(found[-1]) if found else None)
        if program is None:
            raise Unavailable("PostgreSQL is not installed (apt-get install postgresql)")
        self._bin = Path(program).parent
        self._as_user: list[str] = []
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # which it refuses to run as
            if shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode:
                raise Unavailable("PostgreSQL does not run as root, and there is no runuser or no user postgres")
            self._as_user = ["runuser", "-u", "postgres", "--"]
        self._folder, self._data, self._port = folder, folder / "data", free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        if not self._data.exists():
            if self._as_user:
                shutil.chown(self._folder, "postgres", "postgres")
            self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "--pgdata", str(self._data))
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self._folder}"
        self._pg_ctl("start", "-w", "-o", options, "-l", str(self._folder / "log"))

    def stop(self) -> None:
        self._pg_ctl("stop", "-m", "immediate")

    def _pg_ctl(self, *words: str) -> None:
        self._run("pg_ctl", "--pgdata", str(self._data), *words)

    def _run(self, program: str, *words: str) -> None:
        command = [*self._as_user, str(self._bin / program), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, cwd="/")


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def up(kind: type[T]) -> Iterator[T]:
    """A `RedisServer` or `PostgresServer` for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="gnnlab-") as folder:
        server = kind(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@dataclass(frozen=True)
class Beside:
    """Servers of one's own; None is one that was not asked for or is not here, and `why` says which of both."""

    redis: RedisServer | None
    postgres: PostgresServer | None
    why: Mapping[str, str]


@contextmanager
def local_servers(*, redis: bool, postgres: bool) -> Iterator[Beside]:
    """Those that are wanted, as far as they are here, for as long as the block lasts."""
    wanted = {"redis": redis and RedisServer, "postgres": postgres and PostgresServer}
    found, why = dict.fromkeys(wanted), {}
    with ExitStack() as stack:
        for name, kind in wanted.items():
            try:
                if kind:
                    found[name] = stack.enter_context(up(kind))
                else:
                    why[name] = "not asked for by these parameters; params/full does"
            except Unavailable as reason:
                why[name] = str(reason)
        yield Beside(**found, why=why)
