"""Servers that are started once for all tests of the service."""

import pytest
from servers import or_skipped

from gnnlab.serving.local_servers import postgres_server, redis_server


@pytest.fixture(scope="session")
def redis_there():
    with or_skipped(redis_server()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_there():
    with or_skipped(postgres_server()) as server:
        yield server
