"""Servers that are started once for all tests of the service."""

import pytest
from servers import or_skipped

from gnnlab.serving.local_servers import PostgresServer, RedisServer, up


@pytest.fixture(scope="session")
def redis_there():
    with or_skipped(up(RedisServer)) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_there():
    with or_skipped(up(PostgresServer)) as server:
        yield server
