"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from asking import CLIENTS, STATES, ask_all, get, held, served, together, value
from servers import until

from gnnlab.errors import Unavailable
from gnnlab.serving.faults import WRONG, Redis, count_wrong, strike
from gnnlab.serving.server import free_port, started

CLIENT = CLIENTS["hybrid"]


def test_a_full_service_refuses_and_a_shutdown_answers_what_was_accepted(monkeypatch):
    answers = []
    with served(database="none", max_waiting=8) as (url, app, server):
        gate = held(monkeypatch, app.service, "hybrid")
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
        kill = partial(strike, process, redis)
        counts = count_wrong(CLIENT, together, f"{url}/predict", 600, kill, each=600)
        assert (counts["requests"], counts["strikes"], counts[WRONG]) == (600, 1, 0)
        assert counts["connections broken, sent again"] <= 60  # none, where the dead one had no request just then
        assert value(get(f"{url}/metrics"), "predictions_total") >= 600  # those of the dead one are counted on
        workers = process.children()
        assert len(workers) == 3  # the dead one is replaced; one of the three is multiprocessing's own
        process.kill()
        assert not psutil.wait_procs(workers, timeout=120)[1]  # the new one may still be starting


def test_until_the_sockets_close_it_answers_is_not_ready_and_sends_clients_elsewhere():
    with served(database="none", drain_s=1) as (url, _, server), httpx.Client(base_url=url, trust_env=False) as http:
        assert http.get("/health/ready").status_code == 200
        server.should_exit = True
        until(lambda: http.get("/health/ready").status_code == 503)
        answer = http.post("/predict", json=STATES[0])
        assert answer.status_code == 200 and answer.headers["connection"] == "close"


def test_as_many_requests_as_fit_make_it_not_ready_and_end_with_their_deadline(monkeypatch):
    monkeypatch.setattr("gnnlab.serving.app.MOST_REQUESTS", 2)
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    with served(database="none", deadline_s=2) as (url, _, _), contextlib.ExitStack() as open_ones:
        for _ in range(2):
            one = open_ones.enter_context(socket.create_connection(("127.0.0.1", urlsplit(url).port)))
            one.sendall(head)
        until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 503)
        assert httpx.post(f"{url}/predict", json=STATES[0], trust_env=False).status_code == 503
        until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200)


def serve(*words, **variables):
    command = [sys.executable, "-m", "gnnlab", "serve", "--port", "0", *words]
    environment = {**os.environ, "GNNLAB_SERVE_DATABASE": "none", "GNNLAB_SERVE_DRAIN_S": "0", **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


NO_WEIGHTS = """
from gnnlab.workloads import edge_allocator
def weights(kind): raise ValueError("no weights today")
edge_allocator.weights = weights
"""
NO_CODE = """
import sys
sys.modules["gnnlab.serving.service"] = None  # importing it raises
"""


@pytest.mark.parametrize(
    ("workers", "broken", "part"), [("1", NO_WEIGHTS, "no weights today"), ("2", NO_CODE, "gnnlab.serving.service")]
)
def test_a_start_that_fails_ends_the_process_and_says_so(tmp_path, workers, broken, part):
    (tmp_path / "sitecustomize.py").write_text(broken)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with serve("--workers", workers, PYTHONPATH=path) as process:
        _, logged = process.communicate(timeout=100)
    assert process.returncode not in (0, None) and part in logged


@pytest.mark.skipif(os.name != "posix", reason="these ends are signals")
@pytest.mark.parametrize(("number", "workers", "host"), [("SIGHUP", "1", "127.0.0.1"), ("SIGTERM", "2", "::1")])
def test_a_signal_ends_it_in_order_and_its_last_lines_say_what_became_of_each_decision(tmp_path, number, workers, host):
    words = ("--workers", workers, "--host", host, "--database", f"sqlite:///{tmp_path}/decisions.sqlite")
    with serve(*words) as process:
        url = process.stdout.readline().split()[3]
        assert urlsplit(url).hostname == host
        until(lambda: not refuses((host, urlsplit(url).port)))
        assert httpx.post(f"{url}/predict", json=STATES[0], trust_env=False).status_code == 200
        process.send_signal(getattr(signal, number))
        _, logged = process.communicate(timeout=60)
    assert process.returncode == 0
    line = r"\d{4}-\d\d-\d\d [\d:,]+ INFO \d+ decisions for the database: (\d), (\d) stored, 0 lost, 0 pending"
    ends = re.findall(line, logged)
    assert ("1", "1") in ends and len(ends) <= int(workers)  # a worker that was still starting has nothing to say


@pytest.mark.skipif(os.name != "posix", reason="elsewhere the second cannot even bind")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_of_two_that_start_on_one_port_at_once_one_answers_and_the_other_says_in_a_line_that_it_cannot(workers):
    port = str(free_port())
    with contextlib.ExitStack() as running:
        both = [running.enter_context(serve("--port", port, "--workers", workers)) for _ in range(2)]
        for one in both:
            running.callback(one.kill)
        until(lambda: any(one.poll() is not None for one in both), 100)
        loser, winner = sorted(both, key=lambda one: one.poll() is None)
        assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
        winner.terminate()
        _, logged = loser.communicate(timeout=60)
        assert winner.wait(60) == 0
    assert loser.returncode not in (0, None) and "Traceback" not in logged
    assert f"cannot listen at http://127.0.0.1:{port}: " in logged and "choose another" in logged


@pytest.mark.skipif(os.name != "posix", reason="it ends by a signal")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_once_the_workers_have_stopped_to_listen_a_connection_is_refused_though_answers_are_under_way(workers):
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    with serve("--workers", workers, GNNLAB_SERVE_DEADLINE_S="10") as process, contextlib.ExitStack() as running:
        running.callback(process.kill)
        address = "127.0.0.1", urlsplit(process.stdout.readline().split()[3]).port
        until(lambda: not refuses(address))
        with socket.create_connection(address) as waiting:
            waiting.sendall(head)
            waiting.settimeout(0.5)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            process.terminate()
            until(lambda: refuses(address), 5)
            waiting.sendall(b'{"x": 10}')
            waiting.settimeout(20)
            assert waiting.recv(100).startswith(b"HTTP/1.1 422")
        process.communicate(timeout=60)
    assert process.returncode == 0


OWNER = """
import sys, time
from pathlib import Path
from gnnlab.serving.faults import started_app
from gnnlab.serving.server import started
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
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as client:
        return client.connect_ex(address) != 0
