"""Servers that are started once for all tests of the service."""

import os
import shutil
from contextlib import ExitStack

import pytest

from gnnlab.serving.server import started_redis


class Redis:
    """A Redis that can be killed and started again on its port."""

    def __init__(self, stack):
        self._stack, self.url = stack, ""
        self.start()

    def start(self):
        self.url, self._process = self._stack.enter_context(started_redis(self.url))

    def stop(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def redis_server():
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    with ExitStack() as stack:
        yield Redis(stack)


@pytest.fixture(scope="session")
def postgres_url():
    """Of a database for tests, which they empty."""
    if "GNNLAB_TEST_POSTGRES" not in os.environ:
        pytest.skip("set GNNLAB_TEST_POSTGRES=postgresql://USER@HOST/NAME to a database for tests, which they empty")
    return os.environ["GNNLAB_TEST_POSTGRES"]
