"""The service without HTTP: where a batch is computed, what fails fails where it should, and Redis costs no answer."""

import asyncio
import contextlib
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import redis
from asking import STATES, held, value
from edge_states import S2_STATE, random_state
from prometheus_client import values
from servers import until

from gnnlab.inference.predictor import PredictionCache, Predictor
from gnnlab.inference.states import check
from gnnlab.serving import shared_cache
from gnnlab.serving.service import Metrics, Refused, Service
from gnnlab.serving.settings import configure
from gnnlab.serving.shared_cache import SharedCache

CHECKED = [check(state) for state in STATES]


def in_service(body, **options):
    """What `body(service)` returns."""

    async def run():
        async with Service(configure(**options)) as service:
            return await body(service)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_model_that_fails_is_no_fault_of_the_state_and_the_next_batch_is_answered():
    async def body(service):
        predictor = service._predictors["ppo"]
        engine, predictor.engine = predictor.engine, None
        for states in (CHECKED[:1], CHECKED[:3]):
            with pytest.raises(Refused, match="the model failed") as caught:
                await service.decide("ppo", states)
            assert caught.value.status == 500
            assert f"the batch of {len(states)} requests failed" in str(caught.value.__cause__)
        predictor.engine = engine
        return await service.decide("ppo", CHECKED[:1])

    assert in_service(body)[0].node_id.startswith("node_")


def test_the_same_state_asked_at_once_is_computed_once():
    async def body(service):
        predictor, networks = service._predictors["hybrid"], []
        engine = predictor.engine
        predictor.engine = lambda asked: networks.append(len(asked.starts) - 1) or engine(asked)
        return networks, await service.decide("hybrid", [check(S2_STATE)] * 20 + CHECKED[:1])

    networks, (*same, other) = in_service(body, cache_entries=10)
    assert networks == [2] and len({one[:4] for one in same}) == 1 and same[0].score != other.score


@pytest.mark.parametrize(("states", "in_loop"), [(CHECKED[:20], True), ([check(random_state(2049, 0))], False)])
def test_a_short_batch_is_computed_in_the_event_loop_and_a_long_one_in_a_thread(states, in_loop):
    async def body(service):
        threads, predictor = [], service._predictors["hybrid"]
        engine = predictor.engine
        predictor.engine = lambda networks: threads.append(threading.current_thread()) or engine(networks)
        await service.decide("hybrid", states)
        return [thread is threading.current_thread() for thread in threads]

    assert in_service(body) == [in_loop]


def test_where_as_many_wait_as_may_a_request_is_refused_and_there_is_room_again_later(monkeypatch):
    async def body(service):
        gate = held(monkeypatch, service, "dqn")
        waiting = asyncio.create_task(service.decide("dqn", CHECKED[:10]))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as caught:
            await service.decide("dqn", CHECKED[:1])
        assert caught.value.status == 503 and caught.value.headers == [(b"retry-after", b"1")]
        assert value(service.page().decode(), "states_waiting") == 10
        gate.set()
        return await waiting, await service.decide("dqn", CHECKED[:10]), service.page().decode()

    *answers, page = in_service(body, max_waiting=10)
    assert list(map(len, answers)) == [10, 10] and value(page, "states_waiting") == 0


def test_two_clients_of_full_batches_do_not_keep_each_other_out():
    async def body(service):
        async def again_and_again():
            done = 0
            while done < 3:
                try:
                    done += len(await service.decide("dqn", CHECKED[:40])) == 40
                except Refused:
                    await asyncio.sleep(0.001)

        await asyncio.gather(again_and_again(), again_and_again())

    in_service(body, max_waiting=40, max_batch=8)


def test_a_worker_that_replaces_a_dead_one_counts_on_in_its_files_and_counts_what_it_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", None)
    for place in (0, 0, 0, 1):
        Metrics.of_worker(place)
        metrics = Metrics()
        metrics.predictions["ppo"].inc(10)
        metrics.recorded.inc(7)
        metrics.waiting.set(5 + place)
    page = metrics.page().decode()
    assert value(page, "recorded_total") == 28 and value(page, "states_waiting") == 11
    Metrics.of_worker(0)

    async def body(service):
        await service.decide("dqn", CHECKED[:2])
        return service.page().decode()

    page = in_service(body, database=f"sqlite:///{tmp_path}/decisions.sqlite")
    assert value(page, "unrecorded_total") == 9
    assert value(page, "recorded_total") + value(page, "records_pending") == 30
    files = [file for file in tmp_path.iterdir() if file.suffix == ".db"]
    assert len({file.stem.rpartition("_")[2] for file in files}) == 2


def test_a_full_batch_and_small_requests_do_not_keep_each_other_out(monkeypatch):
    async def body(service):
        gate, passes, predictor = held(monkeypatch, service, "dqn"), [], service._predictors["dqn"]
        decide = predictor.decide
        monkeypatch.setattr(predictor, "decide", lambda asked, **how: passes.append(len(asked)) or decide(asked, **how))
        loop = asyncio.get_running_loop()
        first = loop.create_task(service.decide("dqn", CHECKED[:1]))
        full = loop.create_task(service.decide("dqn", CHECKED[:40]))
        await asyncio.sleep(0.05)
        with pytest.raises(Refused):
            await service.decide("dqn", CHECKED[:9])  # another one that is large
        small = [loop.create_task(service.decide("dqn", [state])) for state in CHECKED[:39]]
        gate.set()
        done, _ = await asyncio.wait([full, *small], return_when=asyncio.FIRST_COMPLETED)
        answers = await asyncio.gather(first, full, *small)
        return passes, full in done, [len(one) for one in answers]

    passes, full_first, lengths = in_service(body, max_waiting=40, max_batch=8)
    assert lengths == [1, 40] + [1] * 39 and max(passes) <= 8 and not full_first


def test_a_pass_that_hangs_costs_the_service_its_readiness_until_it_ends(monkeypatch):
    async def body(service):
        gate = held(monkeypatch, service, "dqn")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await service.decide("dqn", CHECKED[:1])
        with pytest.raises(Refused) as caught:
            await service.parts()
        assert caught.value.status == 503 and caught.value.headers == [(b"retry-after", b"1")]
        gate.set()
        while True:
            with contextlib.suppress(Refused):
                return await service.parts(), await service.decide("dqn", CHECKED[:1])

    parts, decisions = in_service(body, deadline_s=0.2)
    assert parts["waiting"] == 0 and len(decisions) == 1


def test_a_span_is_sent_with_model_type_and_confidence_in_the_clients_trace(monkeypatch):
    from opentelemetry.sdk.trace.export import SpanExportResult

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    sent = []
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter.export"
    monkeypatch.setattr(exporter, lambda _, spans: sent.extend(spans) or SpanExportResult.SUCCESS)

    async def body(service):
        (decision,) = await service.decide("dqn", CHECKED[:1], f"00-{'a' * 32}-{'b' * 16}-01")
        while not sent:
            await asyncio.sleep(0.02)
        return decision

    decision = in_service(body)
    assert [(one.name, dict(one.attributes)) for one in sent] == [
        ("predict", {"model_type": "dqn", "confidence": decision.confidence})
    ]
    assert (f"{sent[0].context.trace_id:x}", f"{sent[0].parent.span_id:x}") == ("a" * 32, "b" * 16)


# ---- Redis ----------------------------------------------------------------------------------------------------------

FEW = [random_state(nodes, nodes) for nodes in (3, 5, 8)]


@pytest.fixture
def cached(redis_server, monkeypatch):
    """A factory of predictors with a cache of their own in an empty Redis."""
    monkeypatch.setattr(shared_cache, "TIMEOUT_S", 5)
    monkeypatch.setattr(shared_cache, "RETRY_S", 0.05)
    redis.Redis.from_url(redis_server.url).flushall()
    return lambda kind: Predictor(kind, "cpu", cache=SharedCache(redis_server.url, PredictionCache(100, 300)))


@pytest.fixture
def inside(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def test_what_one_process_computed_another_gets_bit_by_bit_for_an_hour(inside, cached):
    expected = Predictor("hybrid", "cpu").predict_batch(FEW, return_scores=True)
    other = cached("hybrid")
    for predictor in (cached("hybrid"), other):
        for one, known in zip(predictor.predict_batch(FEW, return_scores=True), expected, strict=True):
            assert one[:3] == known[:3] and np.array_equal(one.scores, known.scores)
        other.engine = None  # whatever is asked of it fails
    keys = inside.keys()
    assert len(keys) == 3 and all(key.startswith(b"gnnlab:scores:") for key in keys)
    assert 3500 < inside.ttl(keys[0]) <= 3600 and {len(inside.get(key)) for key in keys} == {4 * 3, 4 * 5, 4 * 8}


ODD = [np.array([1, odd, 2], "<f4").tobytes() for odd in (np.nan, np.inf, -np.inf)]


@pytest.mark.parametrize("value", [b"", b"nonsense", bytes(24), b"odd length", *ODD])
def test_an_invalid_value_is_a_miss_and_is_written_over(inside, cached, value):
    predictor = cached("ppo")
    expected = predictor.predict(FEW[0])
    (key,) = inside.keys()
    right = inside.get(key)
    inside.set(key, value)
    assert predictor.predict(FEW[0]) == expected and inside.get(key) == right


REPLIES = ["abc", [b"1"], [1, 2, 3], [b"abcd", {}, [1]], {}, 5]
RAISED = [TypeError("x"), OverflowError("x"), MemoryError(), redis.RedisError("a\0\x9f\nb")]


@pytest.mark.parametrize("reply", REPLIES + RAISED)
def test_whatever_redis_replies_or_raises_costs_no_answer_and_an_error_leaves_a_plain_line(
    cached, monkeypatch, caplog, reply
):
    expected, predictor, raised = Predictor("dqn", "cpu").predict_batch(FEW), cached("dqn"), reply in RAISED
    replies = Mock(**{"side_effect" if raised else "return_value": reply})
    monkeypatch.setattr(predictor.cache._redis, "mget", replies)
    assert predictor.predict_batch(FEW) == expected and (predictor.cache.away or not raised)
    assert predictor.predict_batch(FEW) == expected
    assert caplog.messages or not raised
    assert all(text.isascii() and text.isprintable() for text in caplog.messages)


def test_a_full_redis_is_read_from_and_no_key_is_logged(inside, cached, monkeypatch, caplog):
    monkeypatch.setattr(shared_cache, "RETRY_S", 60)
    predictor = cached("hybrid")
    predictor.predict_batch(FEW[:2])
    inside.config_set("maxmemory-policy", "noeviction")
    inside.config_set("maxmemory", 1)
    try:
        predictor.predict(FEW[2])
        assert predictor.cache.away and "reading" not in caplog.text
        assert "writing" in caplog.text and all(text.isascii() and "scores:" not in text for text in caplog.messages)
        hits = predictor.hits
        predictor.predict_batch(FEW[:2])
        assert predictor.hits == hits + 2
    finally:
        inside.config_set("maxmemory", 0)


def test_redis_that_dies_and_comes_back_costs_no_answer(redis_server, cached):
    expected = Predictor("hybrid", "cpu").predict_batch(FEW)
    predictor = cached("hybrid")
    assert predictor.predict_batch(FEW) == expected and not predictor.cache.away
    redis_server.kill()
    assert predictor.predict_batch(FEW) == expected and predictor.cache.away
    hits = predictor.hits
    assert predictor.predict_batch(FEW) == expected and predictor.hits == hits + 3  # of this process
    redis_server.start()
    until(lambda: predictor.predict_batch(FEW) == expected and not predictor.cache.away)


def test_redis_that_hangs_is_given_up_in_time(inside, cached, monkeypatch):
    monkeypatch.setattr(shared_cache, "TIMEOUT_S", 0.05)
    inside.client_pause(500)
    predictor = cached("dqn")
    assert predictor.predict(FEW[0]) == Predictor("dqn", "cpu").predict(FEW[0]) and predictor.cache.away
    inside.client_unpause()
