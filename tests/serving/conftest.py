"""Servers that are started once for all tests of the service."""

import pytest
from servers import postgres_server, redis_server


@pytest.fixture(scope="session")
def redis_there(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_there():
    with postgres_server() as server:
        yield server
