"""Redis holds scores exactly, and its absence costs nothing but speed."""

import numpy as np
import pytest
import redis
from edge_states import random_state
from servers import until

from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import Predictor
from gnnlab.serving import shared_cache
from gnnlab.serving.shared_cache import SharedCache

STATES = [random_state(nodes, nodes) for nodes in (3, 5, 8)]


@pytest.fixture
def open_cache(monkeypatch):
    """A factory of caches, all of which are closed at the end."""
    opened = []

    def open_one(url):
        opened.append(SharedCache(url, PredictionCache(100, 300)))
        return opened[-1]

    monkeypatch.setattr(shared_cache, "TIMEOUT_S", 5)
    monkeypatch.setattr(shared_cache, "RETRY_S", 0.05)
    yield open_one
    for cache in opened:
        cache.close()


@pytest.fixture
def inside(redis_server):
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


def same(decisions, expected):
    for one, other in zip(decisions, expected, strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.scores, other.scores)


def test_what_one_process_computed_another_finds_bit_by_bit(redis_server, inside, open_cache):
    expected = Predictor("hybrid", "cpu").predict_batch(STATES, return_scores=True)
    same(
        Predictor("hybrid", "cpu", cache=open_cache(redis_server.url)).predict_batch(STATES, return_scores=True),
        expected,
    )
    assert inside.dbsize() == 3
    other = Predictor("hybrid", "cpu", cache=open_cache(redis_server.url))
    other.engine = None  # whatever is asked of it fails
    same(other.predict_batch(STATES, return_scores=True), expected)


def test_values_are_float32_and_end_after_an_hour(redis_server, inside, open_cache):
    Predictor("dqn", "cpu", cache=open_cache(redis_server.url)).predict(STATES[0])
    key = inside.keys()[0]
    assert key.startswith(b"gnnlab:scores:") and len(key) == len(b"gnnlab:scores:") + 32
    assert 3500 < inside.ttl(key) <= 3600 and len(inside.get(key)) == 4 * 3


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\x80\x04.", bytes(24)])
def test_an_invalid_value_is_a_miss(redis_server, inside, open_cache, value):
    predictor = Predictor("ppo", "cpu", cache=open_cache(redis_server.url))
    expected = predictor.predict(STATES[0])
    inside.set(inside.keys()[0], value)
    assert predictor.predict(STATES[0]) == expected


def test_redis_that_dies_and_comes_back_costs_no_answer(redis_server, inside, open_cache):
    expected = Predictor("hybrid", "cpu").predict_batch(STATES)
    cache = open_cache(redis_server.url)
    predictor = Predictor("hybrid", "cpu", cache=cache)
    assert predictor.predict_batch(STATES) == expected and not cache.away
    redis_server.stop()
    assert predictor.predict_batch(STATES) == expected and cache.away
    hits = predictor.hits
    assert predictor.predict_batch(STATES) == expected and predictor.hits == hits + 3  # of this process
    redis_server.start()
    until(lambda: predictor.predict_batch(STATES) == expected and not cache.away)


def test_redis_that_hangs_is_given_up_in_time(redis_server, inside, open_cache, monkeypatch):
    monkeypatch.setattr(shared_cache, "TIMEOUT_S", 0.05)
    inside.client_pause(500)
    cache = open_cache(redis_server.url)
    assert Predictor("dqn", "cpu", cache=cache).predict(STATES[0]) == Predictor("dqn", "cpu").predict(STATES[0])
    assert cache.away
    inside.client_unpause()
