"""A Redis of one's own on the loopback, which can be killed and started again.

with RedisServer() as redis:
    settings = configure(redis=redis.url)
    redis.stop()
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time

from gnnlab.errors import GnnlabError, Unavailable

START_S = 30.0


class RedisServer:
    """`url` while the block lasts; `stop` and `start` keep the port. Nothing is written to the disk.

    Raises `Unavailable`: redis-server is not installed.
    """

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Unavailable("redis-server is not installed (apt-get install redis-server)")
        self._port = free_port()
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._command = [program, *options]
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._listens():
            if time.monotonic() > end:
                raise GnnlabError(f"redis-server did not listen on port {self._port} within {START_S:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self._port)) == 0


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
