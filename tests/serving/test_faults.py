"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import os
import shutil
import threading
from contextlib import ExitStack
from unittest.mock import MagicMock

import psutil
import pytest
from asking import STATES, ask_all, get, served, serving, value
from servers import until

from gnnlab.serving import kills
from gnnlab.serving.load import Client, Connection, HttpAnswer
from gnnlab.serving.local_redis import RedisServer, free_port
from gnnlab.serving.server import started, workers_of
from gnnlab.serving.service import Service
from gnnlab.serving.settings import configure


@pytest.fixture(scope="module")
def client():
    return Client(STATES, "hybrid")


def test_a_full_service_refuses_and_a_shutdown_answers_what_was_accepted(client, monkeypatch):
    monkeypatch.setattr(Service, "_short", lambda service, asked: False)  # batches are computed in a thread
    gate, answers = threading.Event(), []
    with serving(database="none", max_waiting=8) as (url, app, server):
        predictor = app.service._predictors["hybrid"]
        decide = predictor.decide
        monkeypatch.setattr(predictor, "decide", lambda *asked, **how: gate.wait(30) and decide(*asked, **how))
        asking = threading.Thread(target=lambda: answers.extend(ask_all(url, [("hybrid", n) for n in range(12)])))
        asking.start()
        until(lambda: app.service.metrics.refused.labels("503")._value.get() == 4)
        server.should_exit = True
        gate.set()
        asking.join()
    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) == 4 and all(answer.header("retry-after") == "1" for answer in refused)
    assert sum(client.is_right(answer, place) for place, answer in enumerate(answers)) == 8


def test_without_its_redis_and_its_database_everything_is_answered(client):
    nowhere = f"127.0.0.1:{free_port()}"
    with served(redis=f"redis://{nowhere}/0", database=f"postgresql://nobody@{nowhere}/nothing") as url:
        answers = ask_all(url, [("hybrid", place) for place in range(60)])
        until(lambda: get(f"{url}/health/ready") == '{"status":"ready","redis":"away","database":"away"}')
    assert all(client.is_right(answer, place) for place, answer in enumerate(answers))


@pytest.mark.skipif(os.name != "posix", reason="these kills are signals")
def test_kills_of_a_worker_and_of_redis_under_load_change_no_answer_and_cost_none(client, tmp_path):
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
def test_answers_to_other_states_are_counted(change, unright, client, monkeypatch):
    with served(database="none") as url:
        right = [answer.body for answer in ask_all(url, [("hybrid", place) for place in range(len(STATES))])]

    async def swapped(connection, path, body):
        return HttpAnswer(200, "", right[change(client.bodies.index(body))])

    monkeypatch.setattr(Connection, "ask", swapped)
    monkeypatch.setattr(kills, "workers_of", lambda process: [MagicMock(), MagicMock()])
    assert kills.count_answers(client, url, None, None, requests=40)[kills.UNRIGHT] == unright
