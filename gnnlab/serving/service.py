"""What answers, apart from HTTP: models loaded once, their batches, the cache before them, the database behind them;
and what is counted of it, for Prometheus.

async with Service(settings) as service:
    (decision,) = await service.decide("hybrid", [check(state)])
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gnnlab.errors import GnnlabError
from gnnlab.inference.async_batching import AsyncBatcher
from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import NODES_A_PASS, Decision, Predictor
from gnnlab.inference.states import CheckedState
from gnnlab.profiling.context import Conditions
from gnnlab.serving.database import Recorder, engine_of
from gnnlab.serving.settings import ServiceSettings
from gnnlab.serving.shared_cache import SharedCache
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states

log = logging.getLogger("gnnlab.serving")
RETRY_AFTER_S = 1
Asked = tuple[str, CheckedState]  # by which model
LATENCIES_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

disable_created_metrics()  # a counter that starts anew is seen by its value


class Refused(GnnlabError):
    """A request that gets another status than 200, with a line that says why."""

    def __init__(self, status: int, line: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(line)
        self.status, self.headers = status, list(headers)


def busy(why: str) -> Refused:
    """What a client gets that should come again later."""
    again = [(b"retry-after", b"%d" % RETRY_AFTER_S)]
    return Refused(503, f"{why}; send it again after {RETRY_AFTER_S} s", again)


class Metrics:
    """What one worker counts, for Prometheus; what is counted by model has a counter for each.

    Several workers write into files of one folder, which the launcher names in PROMETHEUS_MULTIPROC_DIR before the
    library is loaded; each worker then answers for all of them.
    """

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        kind = ["model_type"]
        predictions = Counter("predictions_total", "Decisions given.", kind, registry=own)
        about = "From the body of a request to its answer."
        latency = Histogram("prediction_latency_seconds", about, kind, buckets=LATENCIES_S, registry=own)
        self.predictions = {model: predictions.labels(model) for model in MODEL_TYPES}
        self.latency = {model: latency.labels(model) for model in MODEL_TYPES}
        about = "Weights of the loaded models, of one worker."
        self.memory = Gauge("model_memory_bytes", about, kind, multiprocess_mode="max", registry=own)
        self.batch = Histogram("batch_size", "States of a pass.", buckets=BATCHES, registry=own)
        cache = Counter("cache_requests_total", "Looked up in the cache.", ["result"], registry=own)
        self.hits, self.misses = cache.labels("hit"), cache.labels("miss")
        self.refused = Counter("requests_refused_total", "Answered by an error.", ["status"], registry=own)
        self.unrecorded = Counter("unrecorded_total", "Decisions that the database lost.", registry=own)

    def page(self) -> bytes:
        """The text that a server of Prometheus reads."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


def tracer_provider() -> Any:
    """What sends spans where OpenTelemetry's own variables say; None, and nothing loaded, without them."""
    if not any(f"OTEL_EXPORTER_OTLP_{name}" in os.environ for name in ("ENDPOINT", "TRACES_ENDPOINT")):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "gnnlab"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=2)))
    return provider


class Service:
    """Async context manager: loads the models on enter, answers what it accepted on exit."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, self.metrics, self.ready = settings, Metrics(), False
        self._cache: PredictionCache | SharedCache | None = None
        self._recorder: Recorder | None = None

    async def __aenter__(self) -> Service:
        own = self.settings
        Conditions(1, "highest").set()  # one thread of torch in each worker
        if own.cache_entries:
            self._cache = PredictionCache(own.cache_entries, own.cache_ttl_s)
            if own.redis_url is not None:
                self._cache = SharedCache(own.redis_url, self._cache)
        self._predictors = {kind: self._load(kind) for kind in MODEL_TYPES}
        self._batcher = AsyncBatcher(self._pass, max_batch=own.max_batch, short=self._short)
        await self._batcher.__aenter__()
        if own.database_url is not None:
            self._recorder = Recorder(engine_of(own.database_url), self.metrics.unrecorded)
            self._recorder.start()
        self._tracers, self.ready = tracer_provider(), True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        await self._batcher.__aexit__()
        if self._recorder is not None:
            await self._recorder.stop()
        if isinstance(self._cache, SharedCache):
            self._cache.close()
        if self._tracers is not None:
            await asyncio.to_thread(self._tracers.shutdown)  # sends the last spans, for two seconds at most

    @property
    def parts(self) -> dict[str, str]:
        """Redis and the database: off, here or away; without them answers come all the same."""
        parts = {"redis": self._cache if isinstance(self._cache, SharedCache) else None, "database": self._recorder}
        return {name: "off" if part is None else "away" if part.away else "here" for name, part in parts.items()}

    async def decide(self, model_type: str, states: Sequence[CheckedState]) -> list[Decision]:
        """A decision for each state, in their order.

        Raises `Refused`: 503 too many states wait already, or the service is stopping; 500 the model failed.
        """
        if not self.ready:
            raise busy("the service is stopping")
        if self._batcher.unanswered + len(states) > self.settings.max_waiting:
            raise busy(f"{self._batcher.unanswered} states wait already")
        began_ns = time.time_ns()
        waiting = [self._batcher.predict((model_type, state)) for state in states]
        decisions = [await waiting[0]] if len(waiting) == 1 else await asyncio.gather(*waiting)
        self.metrics.predictions[model_type].inc(len(decisions))
        if self._tracers is not None and decisions:
            about = {"model_type": model_type, "confidence": min(one.confidence for one in decisions)}
            self._tracers.get_tracer("gnnlab").start_span("predict", start_time=began_ns, attributes=about).end()
        if self._recorder is not None:
            for state, decision in zip(states, decisions, strict=True):
                self._recorder.record(model_type, state, decision)
        return decisions

    def _short(self, asked: Sequence[Asked]) -> bool:
        """Whether a batch is computed in the event loop: in a millisecond or two, and without Redis."""
        return not isinstance(self._cache, SharedCache) and sum(len(s.nodes) for _, s in asked) <= NODES_A_PASS

    def _pass(self, asked: Sequence[Asked]) -> list[Decision | Refused]:
        """One batch, each model's states together. A model that fails is a 500."""
        self.metrics.batch.observe(len(asked))
        answers: dict[str, Iterator[Decision | Refused]] = {}
        for kind in dict.fromkeys(kind for kind, _ in asked):
            predictor, states = self._predictors[kind], [state for k, state in asked if k == kind]
            hits, misses = predictor.hits, predictor.misses
            try:
                answers[kind] = iter(predictor.decide(states, return_scores=True))
            except Exception:
                log.exception("a batch of %d states failed", len(states))
                line = "the model failed on this batch; the log of the service says how"
                answers[kind] = iter([Refused(500, line) for _ in states])
            if self._cache is not None:
                self.metrics.hits.inc(predictor.hits - hits)
                self.metrics.misses.inc(predictor.misses - misses)
        return [next(answers[kind]) for kind, _ in asked]

    def _load(self, model_type: str) -> Predictor:
        """A model that has answered once: the first call takes longer."""
        model = edge_allocator.load(model_type)
        weights = [*model.parameters(), *model.buffers()]
        self.metrics.memory.labels(model_type).set(sum(tensor.nbytes for tensor in weights))
        predictor = Predictor(model_type, "cpu", model=model)
        predictor.predict_batch(random_states(2, (10, 10), seed=0))
        predictor.cache = self._cache
        return predictor
