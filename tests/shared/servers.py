"""A Redis and a PostgreSQL of a test's own, on the loopback; skipped with the reason where there is none."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(condition, within_s=30.0):
    """Wait until `condition()` holds; fails when it does not within that time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"did not happen within {within_s:g} s"
        time.sleep(0.02)


class RedisServer:
    """`url` while it is up; `stop` and `start` keep the port. Nothing is written to the disk."""

    def __init__(self, folder):
        self.program = shutil.which("redis-server")
        if self.program is None:
            pytest.skip("redis-server is not installed (apt-get install redis-server)")
        self.folder, self.port, self.process = folder, free_port(), None
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            [self.program, *options, "--dir", str(self.folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: _listens(self.port))

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class PostgresServer:
    """`url` of an empty database while it is up; `stop` is as a crash, and `start` goes on from there."""

    def __init__(self, folder):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: int(p.parts[-3]))
        program = shutil.which("pg_ctl") or (str(found[-1]) if found else None)
        if program is None:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
        self.bin = Path(program).parent
        self.as_user = []
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # which it refuses to run as
            if shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode:
                pytest.skip("PostgreSQL does not run as root, and there is no runuser or no user postgres")
            self.as_user = ["runuser", "-u", "postgres", "--"]
        self.folder, self.port = folder, free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self):
        if self.as_user:
            shutil.chown(self.folder, "postgres", "postgres")
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "--pgdata", str(self.folder / "data"))

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.folder}"
        self._pg_ctl("start", "-w", "-o", options, "-l", str(self.folder / "log"))

    def stop(self):
        self._pg_ctl("stop", "-m", "immediate")

    def _pg_ctl(self, *words):
        self._run("pg_ctl", "--pgdata", str(self.folder / "data"), *words)

    def _run(self, program, *words):
        command = [*self.as_user, str(self.bin / program), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, cwd="/")


def _listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def redis_server(folder):
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def postgres_server():
    with tempfile.TemporaryDirectory(prefix="gnnlab-") as folder:  # pytest's own are for their owner alone
        server = PostgresServer(Path(folder))
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
