"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from functools import partial
from urllib.parse import urlsplit

import psutil
import pytest
from asking import CLIENTS, STATES, ask_all, get, served, together, value
from servers import until

from gnnlab.errors import Unavailable
from gnnlab.serving.load import UNRIGHT
from gnnlab.serving.server import Redis, free_port, started, strike
from gnnlab.serving.service import Service

CLIENT = CLIENTS["hybrid"]


def test_a_full_service_refuses_and_a_shutdown_answers_what_was_accepted(monkeypatch):
    monkeypatch.setattr(Service, "_short", lambda service, asked: False)  # batches are computed in a thread
    gate, answers = threading.Event(), []
    with served(database="none", max_waiting=8) as (url, app, server):
        predictor = app.service._predictors["hybrid"]
        decide = predictor.decide
        monkeypatch.setattr(predictor, "decide", lambda *asked, **how: gate.wait(30) and decide(*asked, **how))
        asking = threading.Thread(target=lambda: answers.extend(ask_all(url, "hybrid", range(12))))
        asking.start()
        until(lambda: app.service.metrics.refused.labels("503")._value.get() == 4)
        server.should_exit = True
        gate.set()
        asking.join()
    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) == 4 and all(b"retry-after: 1" in answer.head for answer in refused)
    assert sum(CLIENT.is_right(answer, place) for place, answer in enumerate(answers)) == 8


def test_without_its_redis_and_its_database_everything_is_answered():
    nowhere = f"127.0.0.1:{free_port()}"
    with served(redis=f"redis://{nowhere}/0", database=f"postgresql://nobody@{nowhere}/nothing") as (url, _, _):
        answers = ask_all(url, "hybrid", range(60))
        parts = ["ready", "away", "away"]
        ready = url.replace("/predict", "") + "/health/ready"
        until(lambda: [json.loads(get(ready))[name] for name in ("status", "redis", "database")] == parts)
    assert all(CLIENT.is_right(answer, place) for place, answer in enumerate(answers))


def test_where_redis_server_is_not_installed_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="apt install redis-server"):
        Redis()


@pytest.mark.skipif(os.name != "posix", reason="these kills are signals")
def test_kills_of_a_worker_and_of_redis_under_load_change_no_answer_and_cost_none(request, tmp_path):
    redis = request.getfixturevalue("redis_server") if shutil.which("redis-server") else None
    shared = {"redis": redis.url if redis else "none", "database": f"sqlite:///{tmp_path}/decisions.sqlite"}
    with started(workers=2, **shared) as (url, process):
        places = [place % len(STATES) for place in range(600)]
        kill = partial(strike, process, redis)
        counts = CLIENT.count_unright(together, f"{url}/predict", places, kill, each=600)
        assert (counts["requests"], counts["strikes"], counts[UNRIGHT]) == (600, 1, 0)
        assert counts["connections broken, sent again"] <= 60  # none, where the dead one had no request just then
        assert value(get(f"{url}/metrics"), "predictions_total") >= 600  # those of the dead one are counted on
        workers = process.children()
        assert len(workers) == 3  # the dead one is replaced; one of the three is multiprocessing's own
        process.kill()
        assert not psutil.wait_procs(workers, timeout=120)[1]  # the new one may still be starting


OWNER = """
import sys, time
from pathlib import Path
from gnnlab.serving.server import started, started_app
with started_app(Path(sys.argv[1])) as app, started(database="none") as (own, _):
    print(app, own, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(os.name != "posix", reason="these kills are signals")
def test_services_end_with_the_process_that_started_them_however_that_ends(tmp_path):
    (tmp_path / "nothing.py").write_text("async def app(scope, receive, send): ...")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path / "nothing.py"], stdout=subprocess.PIPE, text=True)
    with owner.stdout:
        addresses = [("127.0.0.1", urlsplit(url).port) for url in owner.stdout.readline().split()]
        assert len(addresses) == 2
        owner.kill()
        owner.wait()
    until(lambda: all(map(refuses, addresses)))


def refuses(address):
    with socket.socket() as client:
        return client.connect_ex(address) != 0
