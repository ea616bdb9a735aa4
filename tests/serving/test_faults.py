"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import ExitStack
from unittest.mock import MagicMock

import psutil
import pytest
from asking import BODIES, STATES, ask, ask_all, get, served, value
from servers import until

from gnnlab.serving import kills
from gnnlab.serving.load import Client, Connection, Expected, HttpAnswer
from gnnlab.serving.local_redis import RedisServer, free_port
from gnnlab.serving.server import started, workers_of
from gnnlab.serving.settings import configure

pytestmark = pytest.mark.skipif(os.name != "posix", reason="these faults are signals")


@pytest.fixture(scope="module")
def expected():
    return Expected(STATES)


def test_a_full_service_refuses_and_a_shutdown_answers_what_was_accepted(expected):
    """Requests wait for the end of a window, so that they can be met there."""
    window = {"batching": "window", "window_s": 1.5, "max_waiting": 8}
    with started(configure(port=0, database="none", **window)) as (url, process):
        statuses = []
        while 503 not in statuses:  # on a busy machine twelve may come in two windows
            statuses = [status for status, _ in ask_all(url, [("ppo", n) for n in range(12)], clients=12)]
            assert set(statuses) <= {200, 503} and statuses.count(200) >= 8

        async def stopped():
            connections = [Connection(url) for _ in range(6)]
            asked = [asyncio.create_task(ask(one, "hybrid", place)) for place, one in enumerate(connections)]
            while any(one._writer is None for one in connections):  # what is not sent yet
                await asyncio.sleep(0.02)
            await asyncio.to_thread(get, f"{url}/health")  # sent after the others, answered after they were read
            process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*asked)
            for connection in connections:
                connection.close()
            return answers

        answers = asyncio.run(asyncio.wait_for(stopped(), 60))
        assert all(
            status == 200 and expected.holds(answer, "hybrid", place) for place, (status, answer) in enumerate(answers)
        )
        assert process.wait(30) == 0


def test_without_its_redis_and_its_database_everything_is_answered(expected):
    nowhere = f"127.0.0.1:{free_port()}"
    wanted = [("hybrid", place) for place in range(60)]
    with served(redis=f"redis://{nowhere}/0", database=f"postgresql://nobody@{nowhere}/nothing") as url:
        answers = ask_all(url, wanted)
        until(lambda: get(f"{url}/health/ready") == '{"status":"ready","redis":"away","database":"away"}')
    assert all(
        status == 200 and expected.holds(answer, *asked)
        for asked, (status, answer) in zip(wanted, answers, strict=True)
    )


def test_kills_of_a_worker_and_of_redis_under_load_change_no_answer_and_cost_none(tmp_path):
    client = Client(STATES, "hybrid")
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer()) if shutil.which("redis-server") else None
        shared = {"redis": redis.url if redis else "none", "database": f"sqlite:///{tmp_path}/decisions.sqlite"}
        url, process = stack.enter_context(started(configure(port=0, workers=2, **shared)))
        counts = kills.count_answers(client, url, process, redis, requests=600, callers=16)
        assert counts["requests"] == 600 and counts[kills.UNRIGHT] == 0 and counts["workers killed"] == 1
        assert 0 < counts["connections broken, sent again"] <= 16  # each caller had one to the worker that died
        until(lambda: len(workers_of(process)) == 2, 60)  # the dead one is replaced
        assert value(get(f"{url}/metrics"), "predictions_total") >= 600  # those of the dead one are counted on
        workers = workers_of(process)
        process.kill()
        assert not psutil.wait_procs(workers, timeout=120)[1]  # the new one may still be starting


@pytest.mark.parametrize(("change", "unright"), [(lambda place: place, 0), (lambda place: (place + 1) % 120, 40)])
def test_answers_to_other_states_are_counted(change, unright, monkeypatch):
    client = Client(STATES, "hybrid")
    right = {}
    with served(database="none") as url:
        for place, (_, answer) in enumerate(ask_all(url, [("hybrid", place) for place in range(len(STATES))])):
            right[BODIES[place]] = {name: part for name, part in answer.items() if name != "scores"}

    async def swapped(connection, path, body):
        return HttpAnswer(200, "", json.dumps(right[BODIES[change(client.bodies.index(body))]]).encode())

    monkeypatch.setattr(Connection, "ask", swapped)
    monkeypatch.setattr(kills, "workers_of", lambda process: [MagicMock(), MagicMock()])
    assert kills.count_answers(client, url, None, None, requests=40)[kills.UNRIGHT] == unright
