"""Servers that are started once for all tests of the service."""

import pytest
from servers import postgres_server, redis_server


@pytest.fixture(scope="session")
def redis_there(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_there(tmp_path_factory):
    with postgres_server(tmp_path_factory.mktemp("postgres") / "cluster") as server:
        yield server
