"""What answers, apart from HTTP: models loaded once, their batches, the cache before them, the database behind them.

async with Service(settings) as service:
    answers = await service.answer("hybrid", [state, other])      # in their order, errors in their places
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from gnnlab.errors import GnnlabError
from gnnlab.inference.async_batching import AsyncBatcher
from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import Decision, GuidePredictor, Predictor
from gnnlab.profiling.context import Conditions
from gnnlab.serving.database import Answered, Database, Recorder
from gnnlab.serving.metrics import CountedCache, Metrics, Tracing
from gnnlab.serving.settings import ServiceSettings
from gnnlab.serving.shared_cache import SharedCache
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import State, random_states

log = logging.getLogger("gnnlab.serving")
ALONE_NODES = 200  # of a network that may be computed in the event loop
RETRY_AFTER_S = 1


class ServiceAnswer(NamedTuple):
    """A decision, and how sure the model is: the chosen node's share of the softmax of all scores.

    Of ppo that is the probability that its policy gives the node, of dqn the inverse of its expected cost over the sum
    of all inverses, of hybrid the product of both over the sum of all products.
    """

    decision: Decision
    confidence: float


Answers = list[ServiceAnswer | GnnlabError]


class Service:
    """Async context manager: loads the models on enter, answers what it accepted on exit."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.ready = False
        self.requests = 0  # in the service now
        self._shared: SharedCache | None = None
        self._recorder: Recorder | None = None

    async def __aenter__(self) -> Service:
        own = self.settings
        Conditions(1, "highest").set()  # one thread of torch in each worker
        self._tracing = Tracing()
        cache: CountedCache | None = None
        if own.cache_entries:
            local = PredictionCache(own.cache_entries, own.cache_ttl_s)
            if own.redis_url is not None:
                self._shared = SharedCache(own.redis_url, local)
            cache = CountedCache(self._shared or local, self.metrics)
        self._predictors = {kind: self._load(kind, cache) for kind in MODEL_TYPES}
        self._batchers: dict[str, AsyncBatcher] = {}
        if own.batching in ("window", "free"):
            window_s = own.window_s if own.batching == "window" else None
            sizes = {"max_batch": own.max_batch, "window_s": window_s}
            for kind in MODEL_TYPES:
                self._batchers[kind] = AsyncBatcher(lambda states, kind=kind: self._pass(kind, states), **sizes)
                await self._batchers[kind].start()
        if own.database_url is not None:
            self._recorder = Recorder(Database(own.database_url), self.metrics)
            self._recorder.start()
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        await asyncio.gather(*(batcher.stop() for batcher in self._batchers.values()))
        if self._recorder is not None:
            await self._recorder.stop()
        if self._shared is not None:
            self._shared.close()
        await asyncio.to_thread(self._tracing.close)
        self._predictors.clear()

    @property
    def parts(self) -> dict[str, str]:
        """Redis and the database: off, here or away; without them answers come all the same."""
        parts = {"redis": self._shared, "database": self._recorder}
        return {name: "off" if part is None else "away" if part.away else "here" for name, part in parts.items()}

    async def answer(self, model_type: str, states: Sequence[State]) -> Answers:
        """An answer or an error for each state, in their order.

        Raises `HTTPException`: 503 too many states wait already, or the service is stopping; 500 the model failed.
        """
        began = time.perf_counter()
        with self._tracing.span(model_type) as span:
            answers = await self._answers(model_type, states)
            good = [(state, one) for state, one in zip(states, answers, strict=True) if isinstance(one, ServiceAnswer)]
            if good and span is not None:
                span.set_attribute("confidence", min(one.confidence for _, one in good))
        self.metrics.latency.labels(model_type).observe(time.perf_counter() - began)
        self.metrics.predictions.labels(model_type).inc(len(good))
        if self._recorder is not None:
            now = datetime.now(UTC)
            for state, one in good:
                self._recorder.record(Answered(now, model_type, state, *one.decision[:3], one.confidence))
        return answers

    async def _answers(self, model_type: str, states: Sequence[State]) -> Answers:
        if not self.ready:
            raise busy("the service is stopping")
        batcher = self._batchers.get(model_type)
        if self.settings.batching == "threads":
            return await run_in_threadpool(self._pass, model_type, states)
        if batcher is None or await self._alone(batcher, states):
            return self._pass(model_type, states)
        if batcher.unanswered + len(states) > self.settings.max_waiting:
            raise busy(f"{batcher.unanswered} states wait for {model_type} already")
        if len(states) == 1:
            return [await _settled(batcher.predict(states[0]))]
        return await asyncio.gather(*(_settled(batcher.predict(state)) for state in states))

    async def _alone(self, batcher: AsyncBatcher, states: Sequence[State]) -> bool:
        """Whether this is the only request, and so small that handing it to a thread takes as long as computing it.

        Requests that came together with it have begun after one turn of the event loop.
        """
        if self.requests != 1 or self.settings.batching != "free" or self._shared is not None:
            return False
        nodes = states[0].get("nodes") if len(states) == 1 and isinstance(states[0], dict) else None
        if not isinstance(nodes, list) or len(nodes) > ALONE_NODES:
            return False
        await asyncio.sleep(0)
        return self.requests == 1 and batcher.unanswered == 0

    def _pass(self, model_type: str, states: Sequence[State]) -> Answers:
        """One batch; runs in the thread of the batcher. What fails besides the states themselves is a 500."""
        self.metrics.batch.labels(model_type).observe(len(states))
        try:
            decisions = self._predictors[model_type].predict_batch(states, return_scores=True)
        except Exception:
            log.exception("a batch of %d states failed", len(states))
            raise HTTPException(500, "the model failed on this batch; the log of the service says how") from None
        return [
            one if isinstance(one, GnnlabError) else ServiceAnswer(one, _confidence(one.scores)) for one in decisions
        ]

    def _load(self, model_type: str, cache: CountedCache | None) -> Predictor | GuidePredictor:
        """A model that has answered once: the first call of an engine takes longer."""
        model = edge_allocator.load(model_type)
        weights = [*model.parameters(), *model.buffers()]
        self.metrics.memory.labels(model_type).set(sum(tensor.nbytes for tensor in weights))
        if self.settings.engine == "guide":
            predictor = GuidePredictor(model_type)
        else:
            predictor = Predictor(model_type, "cpu", engine=self.settings.engine, model=model)
        predictor.predict_batch(random_states(2, (10, 10), seed=0))
        predictor.cache = cache
        return predictor


def busy(why: str) -> HTTPException:
    """What a client gets that should come again later."""
    again = {"Retry-After": str(RETRY_AFTER_S)}
    return HTTPException(503, f"{why}; send it again after {RETRY_AFTER_S} s", again)


async def _settled(answer: Coroutine[Any, Any, ServiceAnswer]) -> ServiceAnswer | GnnlabError:
    try:
        return await answer
    except GnnlabError as error:
        if isinstance(error.__cause__, HTTPException):  # of the batch, not of this state
            raise error.__cause__ from None
        return error


def _confidence(scores: np.ndarray) -> float:
    """The largest share of the softmax of `scores` (N,)."""
    return float(1 / np.exp((scores - scores.max()).astype(np.float64)).sum())
