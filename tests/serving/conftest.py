"""Servers that are started once for all tests of the service."""

import os

import pytest

from gnnlab.errors import Unavailable
from gnnlab.serving.local_redis import RedisServer


@pytest.fixture(scope="session")
def redis_server():
    try:
        server = RedisServer()
    except Unavailable as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_url():
    """Of a database for tests, which they empty."""
    if "GNNLAB_TEST_POSTGRES" not in os.environ:
        pytest.skip("set GNNLAB_TEST_POSTGRES=postgresql://USER@HOST/NAME to a database for tests, which they empty")
    return os.environ["GNNLAB_TEST_POSTGRES"]
