"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import asyncio
import contextlib
import json
import os
import signal
import urllib.request

import asyncpg
import pytest
from asking import BODIES, MODEL_TYPES, STATES, Connection, Expected, ask, ask_all, served_here, value
from servers import free_port, redis_server, until

from gnnlab.serving.server import started, workers_of
from gnnlab.serving.settings import made

pytestmark = pytest.mark.skipif(os.name != "posix", reason="these faults are signals")
WINDOW_S = 1.5


@pytest.fixture(scope="module")
def expected():
    return Expected()


def page(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        return answer.read().decode()


def health(url):
    with urllib.request.urlopen(f"{url}/health/ready", timeout=20) as answer:
        return json.load(answer)


@pytest.fixture
def slow():
    """A service that answers at the end of a window, so that requests can be met while they wait."""
    options = {"window_s": WINDOW_S, "deadline_s": 20, "max_waiting": 8, "max_states": 8, "max_requests": 12}
    with started(made(port=0, batching="window", database="none", **options)) as (url, process):
        yield url, process


async def waits(url, states):
    """Wait until so many states are in the queue, of which at least one came just now."""
    while value(await asyncio.to_thread(page, url), "queue_depth") != states:
        await asyncio.sleep(0.02)


def test_full_late_and_abandoned_requests_and_a_shutdown_that_answers_what_it_accepted(slow, expected):
    url, process = slow

    async def overload():
        statuses = [status for status, _ in await ask_all(url, [("ppo", n) for n in range(12)], clients=12)]
        assert sorted(set(statuses)) == [200, 503] and statuses.count(200) >= 8

    async def abandoned():
        connections = [Connection(url) for _ in range(4)]
        for connection in connections:
            await connection.send("/predict?model_type=dqn", BODIES[0])
        for connection in connections:
            connection.close()
        while value(await asyncio.to_thread(page, url), "requests_abandoned_total") < 4:
            await asyncio.sleep(0.02)
        await waits(url, 0)  # their places are free

    async def stopped():
        connections = [Connection(url) for _ in range(6)]
        asked = [asyncio.create_task(ask(one, "hybrid", place)) for place, one in enumerate(connections)]
        await waits(url, 6)
        process.send_signal(signal.SIGTERM)
        found = await asyncio.gather(*asked)
        for connection in connections:
            connection.close()
        return found

    asyncio.run(asyncio.wait_for(overload(), 60))
    asyncio.run(asyncio.wait_for(abandoned(), 60))
    found = asyncio.run(asyncio.wait_for(stopped(), 60))
    assert all(
        status == 200 and expected.holds(answer, "hybrid", place) for place, (status, answer) in enumerate(found)
    )
    assert process.wait(30) == 0


def test_a_deadline_holds_for_what_waits_and_for_a_body_that_never_ends():
    options = {"window_s": 2, "deadline_s": 0.5, "database": "none"}
    with served_here(made(batching="window", **options)) as url:

        async def body():
            connection, other = Connection(url), Connection(url)
            found = await ask(connection, "dqn", 0), await other.post("/predict", b"{", length=9)
            connection.close()
            other.close()
            return found

        for status, problem in asyncio.run(asyncio.wait_for(body(), 60)):
            assert status == 504 and problem["detail"] == "there was no answer within 0.5 s"


def test_without_the_redis_and_the_database_that_it_was_told_of_everything_is_answered(expected):
    nowhere = f"127.0.0.1:{free_port()}"
    beside = {"redis": f"redis://{nowhere}/0", "database": f"postgresql://nobody@{nowhere}/nothing"}
    with served_here(made(**beside)) as url:
        wanted = [("hybrid", place) for place in range(60)]
        found = asyncio.run(asyncio.wait_for(ask_all(url, wanted), 60))
        until(lambda: health(url) == {"status": "ready", "redis": "away", "database": "away"})
    assert all(
        status == 200 and expected.holds(answer, *asked) for asked, (status, answer) in zip(wanted, found, strict=True)
    )


@pytest.fixture
def kept(request, tmp_path):
    """(its URL, the PostgreSQL that it is of or None)"""
    try:
        server = request.getfixturevalue("postgres_there")
    except pytest.skip.Exception:
        return f"sqlite:///{tmp_path / 'kept.sqlite'}", None
    return server.url, server


async def slow_database(url, until_then):
    """Hold the table of predictions, so that every insert waits."""
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE predictions IN ACCESS EXCLUSIVE MODE")
        await until_then()
    await connection.close()


def test_redis_killed_a_database_slow_and_gone_a_worker_killed_and_a_flood_of_bad_requests_change_no_answer(
    tmp_path, expected, kept
):
    wanted = [(MODEL_TYPES[n % 3], n * 7 % len(STATES)) for n in range(2400)]
    found = {}
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path))
        options = {"redis": redis.url, "redis_retry_s": 0.1, "database": kept[0], "deadline_s": 60}
        url, process = stack.enter_context(started(made(port=0, workers=2, **options)))
        until(lambda: len(workers_of(process)) == 2, 60)

        async def clients():
            for part in range(0, len(wanted), 400):
                some = await ask_all(url, wanted[part : part + 400], clients=20, tries=200)
                found.update(enumerate(some, start=part))

        async def answered(count):
            while len(found) < count:
                await asyncio.sleep(0.02)

        async def flood():
            connection = Connection(url)
            for number in range(400):
                bad = (b"nope", b"[" * 5000, b'{"nodes": [{}]}', BODIES[0][:-1])[number % 4]
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    status, problem = await connection.post("/predict", bad)
                    assert status in (400, 422) and "\n" not in problem["detail"]
                    continue
                connection.close()

        async def faults():
            await answered(400)
            redis.stop()
            if kept[1] is not None:
                await slow_database(kept[0], lambda: answered(800))
                await asyncio.to_thread(kept[1].stop)
            await answered(1200)
            os.kill(workers_of(process)[0], signal.SIGKILL)
            await answered(2000)
            await asyncio.to_thread(redis.start)
            if kept[1] is not None:
                await asyncio.to_thread(kept[1].start)

        async def body():
            await asyncio.gather(clients(), flood(), faults())

        asyncio.run(asyncio.wait_for(body(), 200))
        until(lambda: len(workers_of(process)) == 2, 60)  # the one that died was replaced
        counted = page(url)
    assert len(found) == len(wanted) and all(status == 200 for status, _ in found.values())
    assert all(expected.holds(found[number][1], *asked) for number, asked in enumerate(wanted))
    assert value(counted, "predictions_total") >= len(wanted) - 20  # of all workers, the dead one's included
    assert value(counted, "unrecorded_total") == 0
