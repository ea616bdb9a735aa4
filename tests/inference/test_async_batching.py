"""Every caller gets its own answer or its own error, whatever happens to the others."""

import asyncio
import gc
import threading

import pytest

from gnnlab.errors import GnnlabError
from gnnlab.inference.async_batching import AsyncBatcher


class Doubler:
    """Answers twice the number, counts what it saw; holds back while `gate` is closed."""

    def __init__(self):
        self.batches, self.threads = [], set()
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, numbers):
        self.batches.append(list(numbers))
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(20)
        return [ValueError(f"bad {n}") if n < 0 else 2 * n for n in numbers]


def run(body):
    """Run `body()`; it must end by itself, and leave nothing behind that asyncio would complain about."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        result = await asyncio.wait_for(body(), 30)
        gc.collect()
        return result

    result = asyncio.run(watched())
    assert not complaints
    return result


async def held(doubler, batcher, number=0):
    """A first request that keeps the worker busy until the gate is opened."""
    doubler.gate.clear()
    doubler.entered.clear()
    first = batcher.predict(number)
    await until(doubler.entered.is_set)
    return first


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def settled(tasks):
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_thousand_concurrent_callers_each_get_their_own_answer():
    doubler = Doubler()

    async def body():
        async with AsyncBatcher(doubler, max_batch=64) as batcher:
            return await asyncio.gather(*(batcher.predict(n) for n in range(1000)))

    assert run(body) == [2 * n for n in range(1000)]
    assert sorted(n for batch in doubler.batches for n in batch) == list(range(1000))
    assert max(map(len, doubler.batches)) <= 64 and len(doubler.batches) < 100
    assert len(doubler.threads) == 1


def test_a_lone_request_goes_at_once_and_those_that_come_meanwhile_make_the_next_batch():
    doubler = Doubler()

    async def body():
        async with AsyncBatcher(doubler, max_batch=3) as batcher:
            first = await held(doubler, batcher)
            others = [batcher.predict(n) for n in (1, 2, 3, 4)]
            await asyncio.sleep(0.01)
            doubler.gate.set()
            return await asyncio.gather(first, *others)

    assert run(body) == [0, 2, 4, 6, 8]
    assert doubler.batches == [[0], [1, 2, 3], [4]]


def test_a_bad_state_fails_its_own_caller_alone():
    async def body():
        async with AsyncBatcher(Doubler()) as batcher:
            return await settled(batcher.predict(n) for n in (1, -2, 3))

    first, error, last = run(body)
    assert (first, last) == (2, 6) and isinstance(error, ValueError) and str(error) == "bad -2"


class Failing(Exception):
    pass


def raising(error):
    def predict(states):
        raise error

    return predict


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (raising(Failing("out of memory")), "the batch of 3 requests failed: Failing: out of memory"),
        (lambda states: states[1:], "2 answers were given to 3 states"),
        (lambda states: None, "failed: TypeError"),
    ],
)
def test_a_failing_batch_reaches_every_caller_and_the_next_one_is_answered(predict, message):
    doubler = Doubler()

    def fail_once(states):
        return doubler(states) if 7 in states or 0 in states else predict(states)

    async def body():
        async with AsyncBatcher(fail_once) as batcher:
            first = await held(doubler, batcher)
            others = [batcher.predict(n) for n in (1, 2, 3)]
            await asyncio.sleep(0.01)
            doubler.gate.set()
            failed = await settled([first, *others])
            return failed, await batcher.predict(7)

    (answered, *errors), after = run(body)
    assert answered == 0 and after == 14 and len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, GnnlabError) and message in str(error)
        assert error.__cause__ is not None and "\n" not in str(error)


def test_a_cancelled_caller_is_left_out_and_the_others_are_answered():
    doubler = Doubler()

    async def body():
        async with AsyncBatcher(doubler) as batcher:
            first = await held(doubler, batcher)
            others = [batcher.predict(n) for n in (1, 2)]
            await asyncio.sleep(0.01)
            first.cancel(), others[0].cancel()  # one in the batch that runs, one that waits
            await asyncio.sleep(0.01)
            doubler.gate.set()
            return await settled([first, *others])

    gone, gone_too, answered = run(body)
    assert isinstance(gone, asyncio.CancelledError) and isinstance(gone_too, asyncio.CancelledError)
    assert answered == 4 and doubler.batches == [[0], [2]]


def test_stop_answers_what_is_there_and_takes_nothing_more():
    doubler = Doubler()

    async def body():
        batcher = AsyncBatcher(doubler, max_batch=2)
        await batcher.__aenter__()
        first = await held(doubler, batcher)
        others = [batcher.predict(n) for n in range(1, 6)]
        stopping = asyncio.create_task(batcher.__aexit__())
        await asyncio.sleep(0.01)
        with pytest.raises(GnnlabError, match="takes no requests"):
            await batcher.predict(9)
        assert not stopping.done()
        doubler.gate.set()
        await stopping
        return await asyncio.gather(first, *others)

    assert run(body) == [0, 2, 4, 6, 8, 10]


def test_a_short_batch_is_computed_in_the_event_loop_and_a_lone_long_one_in_the_thread():
    doubler = Doubler()

    async def body():
        async with AsyncBatcher(doubler, short=lambda numbers: numbers != [7]) as batcher:
            return [await batcher.predict(7)], await asyncio.gather(*(batcher.predict(n) for n in range(4)))

    assert run(body) == ([14], [0, 2, 4, 6])
    assert doubler.batches == [[7], [0, 1, 2, 3]] and "MainThread" in doubler.threads and len(doubler.threads) == 2


def test_a_request_that_runs_is_unanswered_even_for_a_caller_that_has_gone():
    doubler = Doubler()

    async def body():
        async with AsyncBatcher(doubler) as batcher:
            seen = [batcher.unanswered]
            first = await held(doubler, batcher)
            first.cancel()
            await settled([first])
            seen.append(batcher.unanswered)
            doubler.gate.set()
            await until(lambda: not batcher.unanswered)
            return seen, await batcher.predict(2)

    assert run(body) == ([0, 1], 4)
