"""Servers that are started once for all tests of the service."""

import os

import pytest

from gnnlab.serving.faults import Redis


@pytest.fixture(scope="session")
def redis_server():
    if why := Redis.missing():
        pytest.skip(why)
    with Redis() as redis:
        yield redis


@pytest.fixture(scope="session")
def postgres_url():
    """Of a database for tests, which they empty."""
    if "GNNLAB_TEST_POSTGRES" not in os.environ:
        pytest.skip("set GNNLAB_TEST_POSTGRES=postgresql://USER@HOST/NAME to a database for tests, which they empty")
    return os.environ["GNNLAB_TEST_POSTGRES"]
