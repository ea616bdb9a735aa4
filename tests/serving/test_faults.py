"""No answer is wrong, lost or somebody else's, whatever dies meanwhile."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import orjson
import psutil
import pytest
from asking import BODIES, STATES, ask, ask_all, value
from servers import until

from gnnlab.errors import GnnlabError
from gnnlab.inference.predictor import Predictor
from gnnlab.serving import faults, requests
from gnnlab.serving.load import Connection, Expected
from gnnlab.serving.local_servers import free_port
from gnnlab.serving.server import here, started, workers_of
from gnnlab.serving.settings import made
from gnnlab.workloads.edge_allocator import MODEL_TYPES

pytestmark = pytest.mark.skipif(os.name != "posix", reason="these faults are signals")
WINDOW_S = 1.5


@pytest.fixture(scope="module")
def expected():
    return Expected(STATES)


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
        statuses = []
        while 503 not in statuses:  # on a busy machine twelve may come in two windows
            statuses = [status for status, _ in await ask_all(url, [("ppo", n) for n in range(12)], clients=12)]
            assert set(statuses) <= {200, 503} and statuses.count(200) >= 8

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
    with here(made(batching="window", **options)) as url:

        async def body():
            connection, other = Connection(url), Connection(url)
            found = [
                await one.post("/predict", *asked) for one, asked in ((connection, [BODIES[0]]), (other, [b"{", 9]))
            ]
            connection.close()
            other.close()
            return found

        for answer in asyncio.run(asyncio.wait_for(body(), 60)):
            assert (answer.status, answer.header("retry-after")) == (504, "1")
            assert answer.json["detail"] == "there was no answer within 0.5 s; it may be sent again"


def test_without_the_redis_and_the_database_that_it_was_told_of_everything_is_answered(expected):
    nowhere = f"127.0.0.1:{free_port()}"
    beside = {"redis": f"redis://{nowhere}/0", "database": f"postgresql://nobody@{nowhere}/nothing"}
    with here(made(**beside)) as url:
        wanted = [("hybrid", place) for place in range(60)]
        found = asyncio.run(asyncio.wait_for(ask_all(url, wanted), 60))
        until(lambda: health(url) == {"status": "ready", "redis": "away", "database": "away"})
    assert all(
        status == 200 and expected.holds(answer, *asked) for asked, (status, answer) in zip(wanted, found, strict=True)
    )


@pytest.fixture
def beside(request):
    """Of Redis and PostgreSQL those that are installed."""
    found = {}
    for name in ("redis", "postgres"):
        with contextlib.suppress(pytest.skip.Exception):
            found[name] = request.getfixturevalue(f"{name}_there")
    return found


def test_no_fault_changes_an_answer_or_costs_one(beside):
    counts = faults.count_answers(500, clients=16, **beside)
    kinds = {"workers killed", "database locked", "bad requests answered by a problem", "clients that hung up"}
    kinds |= {"Redis killed and started again"} if "redis" in beside else set()
    kinds |= {"database killed and started again"} if "postgres" in beside else set()
    assert counts[faults.UNRIGHT] == 0 and counts["right answers"] == counts["requests"] == 500
    assert all(counts[kind] > 0 for kind in kinds)


def test_a_worker_that_dies_is_replaced_what_it_counted_stays_and_none_outlives_their_parent():
    with started(made(port=0, workers=2, database="none")) as (url, process):
        until(lambda: len(workers_of(process)) == 2, 60)
        first = workers_of(process)[0]
        assert {status for status, _ in asyncio.run(ask_all(url, [("ppo", n) for n in range(100)]))} == {200}
        os.kill(first, signal.SIGKILL)
        until(lambda: len(workers_of(process)) == 2 and first not in workers_of(process), 60)
        assert value(page(url), "predictions_total") == 100
        workers = [psutil.Process(pid) for pid in workers_of(process)]
        process.kill()
        assert not psutil.wait_procs(workers, timeout=120)[1]  # the new one may still be starting


PARENT = """
import time
from gnnlab.serving.server import started
from gnnlab.serving.settings import made
with started(made(port=0, database="none")) as (url, process):
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_a_service_that_a_process_started_ends_with_it():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        service = psutil.Process(int(parent.stdout.readline()))
    finally:
        parent.kill()
        parent.communicate()
    assert not psutil.wait_procs([service], timeout=120)[1]


def right(path, body, predictors):
    """(status, answer) as the service gives it."""
    kind = path.partition("model_type=")[2].partition("&")[0]
    try:
        asked = orjson.loads(body) or None
        found = predictors[kind].predict_batch([asked] if isinstance(asked, dict) else asked, return_scores=True)
        members = [
            requests.as_json(422, "no state") if isinstance(one, GnnlabError) else shown(one, kind, "true" in path)
            for one in found
        ]
        return 200, members if isinstance(asked, list) else members[0]
    except (ValueError, KeyError, TypeError):
        return 422, requests.as_json(422, "no request")


def shown(decision, kind, scores):
    confidence = float(1 / np.exp(decision.scores - decision.scores.max()).sum())
    plain = {**decision._asdict(), "confidence": confidence, "model_type": kind, "scores": decision.scores.tolist()}
    return plain if scores else {name: plain[name] for name in plain if name != "scores"}


def judged(change):
    """What a run counts of a service whose answers `change` changes; where it gives None the connection breaks."""
    predictors = {kind: Predictor(kind, "cpu") for kind in MODEL_TYPES}

    async def answer(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                status, found = right(head.split()[1], await reader.readexactly(length), predictors)
                found = change(found) if status == 200 else found
                if found is None:
                    break
                body, kind = orjson.dumps(found), "application/" + ("json" if status == 200 else "problem+json")
                writer.write(
                    f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                )
                writer.write(body)
        writer.close()

    async def run():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await faults._Run(url, psutil.Process(), 40, 4, seed=0).counted([])

    return asyncio.run(asyncio.wait_for(run(), 60))


def of_each(change):
    return lambda found: [change(one) for one in found] if isinstance(found, list) else change(found)


def of_another_network(one):
    place, _, node = one.get("node_id", "0/none").partition("/")
    return {**one, "node_id": f"{(int(place) + 1) % len(faults.STATES)}/{node}"}


PLANTED = {
    "right answers": lambda found: found,
    "wrong answers": of_each(lambda one: {**one, "confidence": one.get("confidence", 0) + 0.01}),
    "swapped answers": of_each(of_another_network),
    "lost answers": lambda found: None,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_an_answer_that_is_not_right_is_counted_as_what_it_is(kind):
    counts = judged(PLANTED[kind])
    assert counts[kind] == 40
    assert counts[faults.UNRIGHT] == (0 if kind == "right answers" else 40)


def test_a_batch_in_another_order_is_swapped():
    counts = judged(lambda found: found[::-1] if isinstance(found, list) else found)
    assert counts["swapped answers"] == counts[faults.UNRIGHT] > 0 and counts["right answers"] > 0
