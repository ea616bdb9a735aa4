"""The client is on time, counts from the intended start, lets no wrong answer pass; max sustainable throughput."""

import asyncio
import json
import math
import time

import numpy as np
import pandas as pd
import pytest
from asking import CLIENTS, served

from gnnlab.errors import ParityError
from gnnlab.serving import load
from gnnlab.serving.faults import WRONG, count_wrong
from gnnlab.serving.load import HttpAnswer

STALL_S = 0.3
CLIENT = CLIENTS["hybrid"]
RIGHT = HttpAnswer(200, b"", b"{}")


def stalled_service(now):
    """Answers in no time, but for all who ask within a stall, who are answered at its end."""
    began = now()

    async def ask(_):
        into_s = now() - began
        if 0.1 <= into_s < 0.1 + STALL_S:
            await asyncio.sleep(0.1 + STALL_S - into_s)
        return RIGHT

    return ask


def test_a_stall_of_the_service_counts_for_all_that_were_due_in_it():
    async def body():
        ask = stalled_service(asyncio.get_running_loop().time)
        due_s = np.arange(0.01, 0.6, 0.01)  # of which 30 fall into the stall
        return due_s, await load.open_arrivals(ask, [b""] * len(due_s), due_s)

    due_s, seen = load.run(body)
    latency_ms = np.array([1e3 * latency_s for _, _, latency_s in seen])
    inside = (due_s > 0.1 + 0.02) & (due_s < 0.1 + STALL_S)
    left_ms = 1e3 * (0.1 + STALL_S - due_s)
    assert inside.sum() >= 27
    assert (latency_ms[inside] >= left_ms[inside] - 1).all()  # a client that waits for answers would see one such


def test_a_stall_of_the_client_itself_is_in_the_latencies_and_is_said():
    async def body():
        async def ask(place):
            if place == 0:
                time.sleep(STALL_S)  # nobody can send meanwhile
            return RIGHT

        due_s = np.linspace(0.01, 0.2, 20)
        return due_s, await load.open_arrivals(ask, range(20), due_s)

    due_s, seen = load.run(body)
    for due, (late_s, _, latency_s) in zip(due_s[1:], seen[1:], strict=True):
        assert latency_s >= late_s >= 0.01 + STALL_S - due - 0.001


def test_the_client_waits_for_less_than_a_millisecond_where_it_is_told_to():
    async def body():
        began = time.perf_counter()
        await asyncio.sleep(1e-4)
        return time.perf_counter() - began

    assert min(load.run(body) for _ in range(100)) < 9e-4  # epoll alone waits a whole one


# ---- against a real service -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url():
    with served(database="none") as (url, _, _):
        yield f"{url}/predict?model_type=hybrid"


def test_a_swapped_answer_is_noticed(url):
    places = list(range(40))
    assert len(CLIENT.decided(load.closed_loop, url, places)) == 40

    async def swapped(ask, bodies):
        return (await load.closed_loop(ask, bodies))[::-1]

    with pytest.raises(ParityError, match="answer to state 0 is not the predictor's"):
        CLIENT.decided(swapped, url, places)
    assert count_wrong(CLIENT, swapped, url, 40, lambda: None)[WRONG] == 40


@pytest.mark.parametrize("wrong", ["node", "score", "node_id", "model_type"])
def test_an_answer_that_is_wrong_in_one_field_is_noticed(wrong, url):
    async def spoilt(ask, bodies):
        answer = await ask(bodies[0])
        value = {"node": 3, "score": 1.0, "node_id": "elsewhere", "model_type": "dqn"}[wrong]
        changed = answer.json | {wrong: value if answer.json[wrong] != value else 0}
        return [answer._replace(body=json.dumps(changed).encode())]

    with pytest.raises(ParityError):
        CLIENT.decided(spoilt, url, [7])


def test_a_refused_request_counts_as_a_long_one(url):
    async def half(ask, bodies):
        answers = await load.closed_loop(ask, bodies)
        return [(0.5, one if place % 2 else HttpAnswer(503, b"", b""), 1.0) for place, one in enumerate(answers)]

    latency_ms, late_ms = CLIENT.observed(half, url, list(range(20)))
    assert (latency_ms[::2] == load.REFUSED_MS).all() and (latency_ms[1::2] == 1000).all() and (late_ms == 500).all()


def test_a_connection_that_breaks_says_so_and_is_opened_again(url):
    async def body():
        connection = load.Connection(url.replace("/predict", "/health"))
        await connection.ask(None)
        connection._transport.abort()
        with pytest.raises(OSError):
            await connection.ask(None)
        answer = await connection.ask(None)
        connection.close()
        return answer

    assert load.run(body).json == {"status": "live"}


# ---- max sustainable throughput --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p99_ms", "most"),
    [
        ([2.0, 5.0, 10.0], 400.0),  # all are within
        ([30.0, 5.0, 10.0], 0.0),  # a rate beyond the first that exceeds it does not count
        ([5.0, 80.0, 10.0], 100 * 2**0.5),  # 20 is halfway between 5 and 80, in logarithms
        ([5.0, 20.0, 40.0], 200.0),
    ],
)
def test_max_throughput_lies_before_the_first_rate_that_exceeds_the_slo(p99_ms, most):
    runs = pd.DataFrame({"variant": "one", "requests_per_s": [100.0, 200.0, 400.0], "p99": [[ms] for ms in p99_ms]})
    (row,) = load.max_throughput(runs, 20.0).to_dict("records")
    assert row["samples"] == [pytest.approx(most)]
    if most:
        assert row["notes"] == ["a lower bound in 1 of 1 rounds"] * (most == 400)
    else:
        assert row["status"] == "unavailable" and row["reason"].endswith("lowest rate tried, 100 requests/s")


CAPACITY = {"slow": 400.0, "fast": 4000.0}


def planted(name, rate, seed):
    """A service whose latencies are those of M/M/1: exponential, of mean 1 / (capacity - rate)."""
    mean_ms = 1e3 / (CAPACITY[name] - rate)
    return np.random.default_rng(seed).exponential(mean_ms, 4000), np.full(4000, 0.1)


def test_a_known_capacity_is_measured_by_every_round():
    rates = {name: [share * most for share in (0.9, 0.2, 0.4, 0.5, 0.6)] for name, most in CAPACITY.items()}
    runs = load.over_rates(planted, rates, rounds=3)
    most = load.max_throughput(runs, 20.0).set_index("variant")["samples"]  # where ln(100) / (capacity - rate) is 20 ms
    assert len(most["slow"]) == len(most["fast"]) == 3
    assert np.allclose(most["slow"], 400 - math.log(100) / 0.02, rtol=0.12)
    assert (np.array(most["fast"]) > 3500).all()
    assert list(runs["variant"]) == ["slow"] * 5 + ["fast"] * 5
    assert list(runs["requests_per_s"]) == sorted(rates["slow"]) + sorted(rates["fast"])
    flat = runs.explode(["p50", "p99", "late"])
    assert len(flat) == 2 * 5 * 3 and (flat["late"] == 0.1).all() and (flat["p50"] < flat["p99"]).all()
