"""Every caller gets its own answer or its own error, whatever happens to the others."""

import asyncio
import threading

import pytest
from refusals import refused

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


def run(body, predict, **options):
    """What `body(batcher)` returns; it must end by itself, and leave nothing that asyncio would complain about."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with AsyncBatcher(predict, **options) as batcher:
            result = await asyncio.wait_for(body(batcher), 30)
        return result

    result = asyncio.run(watched())
    assert not complaints
    return result


async def held(doubler, batcher, *numbers):
    """(a first request, which keeps the worker busy until the gate is opened, those that wait meanwhile)"""
    doubler.gate.clear()
    first = batcher.predict(0)
    while not doubler.entered.is_set():
        await asyncio.sleep(0.001)
    others = [batcher.predict(number) for number in numbers]
    await asyncio.sleep(0.01)
    return first, others


async def settled(answers):
    return await asyncio.gather(*answers, return_exceptions=True)


def test_a_thousand_concurrent_callers_each_get_their_own_answer():
    doubler = Doubler()

    async def body(batcher):
        return await asyncio.gather(*(batcher.predict(n) for n in range(1000)))

    assert run(body, doubler, max_batch=64) == [2 * n for n in range(1000)]
    assert sorted(n for batch in doubler.batches for n in batch) == list(range(1000))
    assert max(map(len, doubler.batches)) <= 64 and len(doubler.batches) < 100 and len(doubler.threads) == 1


def test_a_lone_request_goes_at_once_those_that_come_meanwhile_make_the_next_batch_and_a_bad_one_fails_alone():
    doubler = Doubler()

    async def body(batcher):
        first, others = await held(doubler, batcher, 1, -2, 3, 4)
        doubler.gate.set()
        return await settled([first, *others])

    first, second, error, *others = run(body, doubler, max_batch=3)
    assert (first, second, *others) == (0, 2, 6, 8) and str(error) == "bad -2"
    assert doubler.batches == [[0], [1, -2, 3], [4]]


def raising(error):
    def predict(states):
        raise error

    return predict


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("inside", [False, True], ids=["in the thread", "in the loop"])
@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (raising(LookupError("out of memory")), "the batch of 3 requests failed: LookupError: out of memory"),
        (raising(SystemExit(3)), "failed: SystemExit: 3"),
        (raising(StopIteration()), "failed: StopIteration"),
        (raising(Unprintable()), "failed: Unprintable"),
        (lambda states: states[1:], "2 answers were given to 3 states"),
        (lambda states: None, "failed: TypeError"),
        (lambda states: [SystemExit(3)] * 3, "the request failed: SystemExit: 3"),
        (lambda states: [StopIteration(), asyncio.CancelledError(), KeyboardInterrupt()], "the request failed: "),
    ],
)
def test_a_failing_batch_reaches_every_caller_and_the_next_one_is_answered(predict, message, inside):
    async def body(batcher):
        return await settled(map(batcher.predict, (1, 2, 3))), await batcher.predict(7), batcher.unanswered

    def either(states):
        return predict(states) if 1 in states else Doubler()(states)

    errors, after, left = run(body, either, short=lambda _: inside)
    assert (after, left) == (14, 0) and len(errors) == 3
    assert all(isinstance(error, GnnlabError) and message in str(error) for error in errors)


def test_where_nobody_knows_whether_a_batch_is_short_it_fails_and_the_next_one_is_answered():
    async def body(batcher):
        return await settled([batcher.predict(0)]), await batcher.predict(7)

    (error,), after = run(body, Doubler(), short=lambda numbers: 1 // numbers[0] > 2)
    assert isinstance(error, GnnlabError) and "ZeroDivisionError" in str(error) and after == 14


def test_a_thread_that_cannot_start_is_an_error_at_once(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with refused("can't start new thread"):
        run(None, Doubler())


def test_callers_that_leave_while_a_batch_hangs_are_not_kept_and_not_computed():
    doubler = Doubler()

    async def body(batcher):
        first, others = await held(doubler, batcher, *range(1, 50))
        for other in others:
            other.cancel()
        last = batcher.predict(7)
        waiting = batcher.unanswered
        doubler.gate.set()
        return await settled([first, last]), waiting

    assert run(body, doubler) == ([0, 14], 2) and doubler.batches == [[0], [7]]


def test_alive_says_whether_an_empty_batch_passes_through_the_thread():
    doubler = Doubler()

    async def body(batcher):
        here = await batcher.alive(30)
        first, _ = await held(doubler, batcher)
        hung = [await batcher.alive(0.01) for _ in range(3)]
        doubler.gate.set()
        return here, hung, await batcher.alive(30), await first

    assert run(body, doubler) == (True, [False] * 3, True, 0) and doubler.batches == [[0]]
    assert not asyncio.run(AsyncBatcher(doubler).alive(30))


def test_a_cancelled_caller_is_left_out_and_unanswered_until_its_batch_ends():
    doubler = Doubler()

    async def body(batcher):
        first, others = await held(doubler, batcher, 1, 2)
        first.cancel(), others[0].cancel()  # one in the batch that runs, one that waits
        await asyncio.sleep(0.01)
        waiting = batcher.unanswered
        doubler.gate.set()
        return await settled([first, *others]), waiting, batcher.unanswered

    (gone, gone_too, answered), waiting, left = run(body, doubler)
    assert isinstance(gone, asyncio.CancelledError) and isinstance(gone_too, asyncio.CancelledError)
    assert answered == 4 and doubler.batches == [[0], [2]] and (waiting, left) == (3, 0)


def test_stop_answers_what_is_there_and_takes_nothing_more():
    doubler = Doubler()

    async def body(batcher):
        first, others = await held(doubler, batcher, *range(1, 6))
        stopping = asyncio.create_task(batcher.__aexit__())
        await asyncio.sleep(0.01)
        with pytest.raises(GnnlabError, match="takes no requests"):
            await batcher.predict(9)
        assert not stopping.done()
        doubler.gate.set()
        await stopping
        return await asyncio.gather(first, *others)

    assert run(body, doubler, max_batch=2) == [0, 2, 4, 6, 8, 10]


def test_stop_waits_so_long_for_a_batch_that_hangs_and_what_is_left_fails():
    doubler = Doubler()

    async def body(batcher):
        first, others = await held(doubler, batcher, 1, 2)
        await batcher.__aexit__()
        errors = await settled([first, *others])
        left = batcher.unanswered
        doubler.gate.set()
        return errors, left, await batcher.alive(30)

    errors, left, alive = run(body, doubler, stop_s=0.05)
    assert all("stopped before" in str(error) for error in errors) and (left, alive) == (1, False)


def test_a_short_batch_is_computed_in_the_event_loop_and_a_long_one_in_the_thread():
    doubler = Doubler()

    async def body(batcher):
        return [await batcher.predict(7)], await asyncio.gather(*(batcher.predict(n) for n in range(4)))

    assert run(body, doubler, short=lambda numbers: numbers != [7]) == ([14], [0, 2, 4, 6])
    assert doubler.batches == [[7], [0, 1, 2, 3]] and "MainThread" in doubler.threads and len(doubler.threads) == 2
