"""The service without HTTP: every way of answering answers alike, and what fails fails where it should."""

import asyncio
import threading

import pytest
from asking import STATES
from edge_states import S2_STATE, random_state
from starlette.exceptions import HTTPException

from gnnlab.errors import GnnlabError
from gnnlab.serving.load import Expected
from gnnlab.serving.service import Service
from gnnlab.serving.settings import configure


def in_service(body, **options):
    """What `body(service)` returns."""

    async def run():
        async with Service(configure(database="none", **options)) as service:
            return await body(service)

    return asyncio.run(asyncio.wait_for(run(), 60))


def shown(answer, kind):
    decision, confidence = answer
    return {**decision._asdict(), "confidence": confidence, "model_type": kind}


@pytest.mark.parametrize("engine", ["guide", "fast"])
@pytest.mark.parametrize("batching", ["none", "threads", "window", "free"])
def test_every_engine_and_every_way_of_batching_answers_alike(engine, batching):
    async def body(service):
        alone = await service.answer("dqn", STATES[:1])
        return alone + await service.answer("dqn", STATES[1:40])

    expected = Expected(STATES)
    found = in_service(body, engine=engine, batching=batching, window_s=0.01)
    assert all(expected.holds(shown(answer, "dqn"), "dqn", place) for place, answer in enumerate(found))


@pytest.mark.parametrize("batching", ["none", "free"])
def test_a_model_that_fails_is_no_fault_of_the_state_and_the_next_batch_is_answered(batching, caplog):
    async def body(service):
        predictor = service._predictors["ppo"]
        engine, predictor.engine = predictor.engine, None
        for states in (STATES[:1], STATES[:3]):
            with pytest.raises(HTTPException, match="the model failed") as caught:
                await service.answer("ppo", states)
            assert caught.value.status_code == 500
        predictor.engine = engine
        return await service.answer("ppo", [STATES[0], 3])

    answer, error = in_service(body, batching=batching)
    assert answer.decision.node_id.startswith("node_") and isinstance(error, GnnlabError)
    assert "a batch of 3 states failed" in caplog.text


def test_the_same_state_asked_at_once_is_computed_once():
    async def body(service):
        predictor = service._predictors["hybrid"]
        engine, networks = predictor.engine, []
        gate, entered = threading.Event(), threading.Event()

        class Counted:
            def __call__(self, asked):
                networks.append(len(asked))
                entered.set()
                assert gate.wait(20)
                return engine(asked)

        predictor.engine = Counted()
        first = asyncio.create_task(service.answer("hybrid", STATES[:1]))
        await asyncio.to_thread(entered.wait, 20)
        others = [asyncio.create_task(service.answer("hybrid", [state])) for state in [S2_STATE] * 20 + STATES[:1]]
        await asyncio.sleep(0.05)
        gate.set()
        found = await asyncio.gather(first, *others)
        return networks, [(one.decision[:3], one.confidence) for (one,) in found]

    networks, (first, *others, again) = in_service(body)
    assert networks == [1, 1] and len(set(others)) == 1 and first == again


@pytest.mark.parametrize(
    ("requests", "states", "here"),
    [(1, STATES[:1], True), (2, STATES[:1], False), (1, STATES[:2], False), (1, [random_state(201, 0)], False)],
)
def test_a_lone_small_request_is_computed_in_the_event_loop_and_no_other(requests, states, here):
    async def body(service):
        threads = []
        original = service._pass
        service._pass = lambda *asked: threads.append(threading.current_thread()) or original(*asked)
        service.requests = requests
        assert len(await service.answer("hybrid", states)) == len(states)
        return [thread is threading.current_thread() for thread in threads]

    assert in_service(body) == [here]


def test_requests_that_come_together_make_a_batch():
    async def one(service, state):
        service.requests += 1
        try:
            return await service.answer("ppo", [state])
        finally:
            service.requests -= 1

    async def body(service):
        sizes = []
        original = service._pass
        service._pass = lambda kind, states: sizes.append(len(states)) or original(kind, states)
        await asyncio.gather(*(one(service, state) for state in STATES[:20]))
        return sizes

    sizes = in_service(body)
    assert sum(sizes) == 20 and len(sizes) <= 3


def test_more_than_may_wait_is_refused_and_leaves_room_again():
    async def body(service):
        with pytest.raises(HTTPException) as caught:
            await service.answer("dqn", STATES[:11])
        assert caught.value.status_code == 503 and caught.value.headers == {"Retry-After": "1"}
        return await service.answer("dqn", STATES[:10])

    assert len(in_service(body, max_waiting=10)) == 10


def test_a_service_that_stops_refuses_and_one_that_has_stopped_has_let_go_of_its_models():
    async def body(service):
        service.ready = False
        with pytest.raises(HTTPException, match="the service is stopping"):
            await service.answer("dqn", STATES[:1])
        return service

    assert in_service(body)._predictors == {}
