"""Redis holds scores exactly, and its absence costs nothing but speed."""

import msgpack
import numpy as np
import pytest
import redis
from edge_states import random_state
from servers import or_skipped, until

from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import Predictor
from gnnlab.serving import shared_cache
from gnnlab.serving.local_servers import RedisServer, up
from gnnlab.serving.shared_cache import SharedCache

STATES = [random_state(nodes, nodes) for nodes in (3, 5, 8)]


@pytest.fixture
def open_cache():
    """A factory of caches, all of which are closed at the end."""
    opened = []

    def open_one(url, **options):
        options = {"timeout_s": 5, "retry_s": 0.05, **options}
        opened.append(SharedCache(url, PredictionCache(100, 300), **options))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


@pytest.fixture
def inside(redis_there):
    client = redis.Redis.from_url(redis_there.url)
    client.flushall()
    yield client
    client.close()


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.scores, other.scores)


def test_what_one_process_computed_another_finds_bit_by_bit(redis_there, inside, open_cache):
    expected = Predictor("hybrid", "cpu").predict_batch(STATES, return_scores=True)
    same(
        Predictor("hybrid", "cpu", cache=open_cache(redis_there.url)).predict_batch(STATES, return_scores=True),
        expected,
    )
    until(lambda: inside.dbsize() == 3)
    other = Predictor("hybrid", "cpu", cache=open_cache(redis_there.url))
    other.engine = None  # whatever is asked of it fails
    same(other.predict_batch(STATES, return_scores=True), expected)


def test_values_are_msgpack_and_end_after_their_time(redis_there, inside, open_cache):
    Predictor("dqn", "cpu", cache=open_cache(redis_there.url, ttl_s=3600)).predict(STATES[0])
    until(lambda: inside.dbsize() == 1)
    key = inside.keys()[0]
    assert key.startswith(b"gnnlab:scores:") and len(key) == len(b"gnnlab:scores:") + 32
    assert 3500 < inside.ttl(key) <= 3600
    kind, data = msgpack.unpackb(inside.get(key))
    assert kind == "<f4" and len(data) == 4 * 3


NO_VALUES = [
    *(b"", b"nonsense", b"\x80\x04."),
    *map(msgpack.packb, (3, ["<f4", b"abc"], ["<f4", b"abcd"], ["<f8", bytes(24)], [None, None])),
]


@pytest.mark.parametrize("value", NO_VALUES)
def test_a_value_that_is_none_is_a_miss(redis_there, inside, open_cache, value):
    predictor = Predictor("ppo", "cpu", cache=open_cache(redis_there.url))
    expected = predictor.predict(STATES[0])
    until(lambda: inside.dbsize() == 1)
    inside.set(inside.keys()[0], value)
    assert predictor.predict(STATES[0]) == expected


def test_models_do_not_share_answers(redis_there, inside, open_cache):
    cache = open_cache(redis_there.url)
    for model_type in ("dqn", "ppo", "hybrid"):
        assert Predictor(model_type, "cpu", cache=cache).predict(STATES[1]) == Predictor(model_type, "cpu").predict(
            STATES[1]
        )
    until(lambda: inside.dbsize() == 3)


def test_redis_that_dies_and_comes_back_costs_no_answer(open_cache):
    expected = Predictor("hybrid", "cpu").predict_batch(STATES)
    with or_skipped(up(RedisServer)) as server:
        cache = open_cache(server.url)
        predictor = Predictor("hybrid", "cpu", cache=cache)
        for _ in range(2):
            assert predictor.predict_batch(STATES) == expected and not cache.away
            server.stop()
            assert predictor.predict_batch(STATES) == expected and cache.away
            hits = cache._local.hits
            assert predictor.predict_batch(STATES) == expected and cache._local.hits == hits + 3  # of this process
            server.start()
            until(lambda: predictor.predict_batch(STATES) == expected and not cache.away)


def test_redis_that_hangs_is_given_up_in_time(redis_there, inside, open_cache):
    inside.client_pause(500)
    cache = open_cache(redis_there.url, timeout_s=0.05, retry_s=60)
    assert Predictor("dqn", "cpu", cache=cache).predict(STATES[0]) == Predictor("dqn", "cpu").predict(STATES[0])
    assert cache.away
    inside.client_unpause()


def test_a_writer_that_does_not_keep_up_leaves_the_rest_here(redis_there, open_cache, monkeypatch):
    monkeypatch.setattr(shared_cache.SharedCache, "_write", lambda self: None)
    monkeypatch.setattr(shared_cache, "MOST_UNWRITTEN", 2)
    cache = open_cache(redis_there.url)
    for number in range(4):
        cache.put_many({bytes([number]) * 32: np.zeros(3, np.float32)})
    assert len(cache._local._entries) == 2
    cache._unwritten.get()  # room for the end
