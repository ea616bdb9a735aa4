"""The service without HTTP: where a batch is computed, and what fails fails where it should."""

import asyncio
import threading

import pytest
from asking import STATES
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Predictor
from gnnlab.inference.states import check
from gnnlab.serving.service import Refused, Service
from gnnlab.serving.settings import configure
from gnnlab.serving.shared_cache import SharedCache

CHECKED = [check(state) for state in STATES]


def in_service(body, **options):
    """What `body(service)` returns."""

    async def run():
        async with Service(configure(database="none", **options)) as service:
            return await body(service)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_states_of_all_models_together_are_answered_in_order():
    async def body(service):
        return await asyncio.gather(*(service.decide(kind, CHECKED[:40]) for kind in ("dqn", "ppo")))

    for kind, answers in zip(("dqn", "ppo"), in_service(body), strict=True):
        expected = Predictor(kind, "cpu").predict_batch(STATES[:40])
        assert [one.node_id for one in answers] == [one.node_id for one in expected]
        assert [one.score for one in answers] == pytest.approx([one.score for one in expected], rel=1e-4)


def test_a_model_that_fails_is_no_fault_of_the_state_and_the_next_batch_is_answered(caplog):
    async def body(service):
        predictor = service._predictors["ppo"]
        engine, predictor.engine = predictor.engine, None
        for states in (CHECKED[:1], CHECKED[:3]):
            with pytest.raises(Refused, match="the model failed") as caught:
                await service.decide("ppo", states)
            assert caught.value.status == 500
        predictor.engine = engine
        return await service.decide("ppo", CHECKED[:1])

    assert in_service(body)[0].node_id.startswith("node_")
    assert "a batch of 3 states failed" in caplog.text


def test_the_same_state_asked_at_once_is_computed_once():
    async def body(service):
        predictor, networks = service._predictors["hybrid"], []
        engine = predictor.engine
        predictor.engine = lambda asked: networks.append(len(asked.starts) - 1) or engine(asked)
        return networks, await service.decide("hybrid", [check(S2_STATE)] * 20 + CHECKED[:1])

    networks, (*same, other) = in_service(body)
    assert networks == [2] and len({one[:4] for one in same}) == 1 and same[0].score != other.score


@pytest.mark.parametrize(
    ("states", "redis", "in_loop"),
    [(CHECKED[:20], "none", True), ([check(random_state(2049, 0))], "none", False),
     (CHECKED[:1], "redis://127.0.0.1:9/0", False)],
)  # fmt: skip
def test_a_short_batch_is_computed_in_the_event_loop_and_one_that_is_long_or_asks_redis_in_a_thread(
    states, redis, in_loop, monkeypatch
):
    async def body(service):
        threads, original = [], service._predictors["hybrid"].decide
        recorded = lambda *asked, **how: threads.append(threading.current_thread()) or original(*asked, **how)  # noqa: E731
        monkeypatch.setattr(service._predictors["hybrid"], "decide", recorded)
        assert len(await service.decide("hybrid", states)) == len(states)
        return [thread is threading.current_thread() for thread in threads]

    monkeypatch.setattr(SharedCache, "get_many", lambda cache, keys: cache._local.get_many(keys))
    monkeypatch.setattr(SharedCache, "put_many", lambda cache, scores: cache._local.put_many(scores))
    assert in_service(body, redis=redis) == [in_loop]


def test_requests_that_come_together_make_a_batch():
    async def body(service):
        sizes, original = [], service._predictors["ppo"].decide
        service._predictors["ppo"].decide = lambda states, **how: sizes.append(len(states)) or original(states, **how)
        await asyncio.gather(*(service.decide("ppo", [state]) for state in CHECKED[:40]))
        return sizes

    assert in_service(body, max_batch=32) == [32, 8]


def test_more_than_may_wait_is_refused_and_leaves_room_again():
    async def body(service):
        with pytest.raises(Refused) as caught:
            await service.decide("dqn", CHECKED[:11])
        assert caught.value.status == 503 and caught.value.headers == [(b"retry-after", b"1")]
        answered = await service.decide("dqn", CHECKED[:10])
        service.ready = False
        with pytest.raises(Refused, match="the service is stopping"):
            await service.decide("dqn", CHECKED[:1])
        return answered

    assert len(in_service(body, max_waiting=10)) == 10


def test_a_span_is_sent_with_model_type_and_confidence(monkeypatch):
    from opentelemetry.sdk.trace.export import SpanExportResult

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    sent = []
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter.export"
    monkeypatch.setattr(exporter, lambda _, spans: sent.extend(spans) or SpanExportResult.SUCCESS)

    async def body(service):
        (decision,) = await service.decide("dqn", CHECKED[:1])
        while not sent:
            await asyncio.sleep(0.02)
        return decision

    decision = in_service(body)
    assert [(one.name, dict(one.attributes)) for one in sent] == [
        ("predict", {"model_type": "dqn", "confidence": decision.confidence})
    ]
