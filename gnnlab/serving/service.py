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
from collections.abc import Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.multiprocess import MultiProcessCollector

from gnnlab.errors import GnnlabError
from gnnlab.inference.async_batching import AsyncBatcher
from gnnlab.inference.predictor import NODES_A_PASS, Decision, PredictionCache, Predictor
from gnnlab.inference.states import CheckedState
from gnnlab.measure.conditions import Conditions
from gnnlab.serving.recorder import Recorder
from gnnlab.serving.settings import ServiceSettings
from gnnlab.serving.shared_cache import SharedCache
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states
from gnnlab.workloads.staged import fingerprint

log = logging.getLogger("gnnlab.serving")
RETRY_AFTER_S = 1
Asked = tuple[str, CheckedState]  # by which model
LATENCIES_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

disable_created_metrics()  # a counter that restarts is seen by its value


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
        self.recorded = Counter("recorded_total", "Decisions that the database has.", registry=own)
        self.unrecorded = Counter("unrecorded_total", "Decisions that the database lost.", registry=own)
        about = "Decisions that wait for the database, or are on their way to it."
        self.pending = Gauge("records_pending", about, registry=own, multiprocess_mode="livesum")
        about = "Requests in the service, bodies that are still coming included; as of the last second."
        self.requests = Gauge("requests_in_flight", about, registry=own, multiprocess_mode="livesum")
        about = "States that wait for a pass, or are in one; as of the last second."
        self.waiting = Gauge("states_waiting", about, registry=own, multiprocess_mode="livesum")
        about, labels = "1 for each model, by the digest of its weights.", ["model_type", "model_version"]
        self.model = Gauge("model_info", about, labels, registry=own, multiprocess_mode="max")

    @staticmethod
    def of_worker(place: int) -> None:
        """Before it is made in one of several workers: the one that follows a dead one counts on in its files, so
        there are never more files than workers."""
        values.ValueClass = values.MultiProcessValue(lambda: place)

    def page(self) -> bytes:
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
        self.versions: dict[str, str] = {}  # of each model type, 12 hexadecimal digits
        self.requests = 0  # that are in the service
        self._waiting = {True: 0, False: 0}  # states of small requests, and of large ones
        self._cache: PredictionCache | SharedCache | None = None
        self._recorder: Recorder | None = None

    async def __aenter__(self) -> Service:
        own = self.settings
        Conditions(1, "highest").set()  # one thread of torch in each worker
        if own.cache_entries or own.redis_url is not None:
            self._cache = PredictionCache(max(own.cache_entries, 1), own.cache_ttl_s)
        if own.redis_url is not None:
            self._cache = SharedCache(own.redis_url, self._cache)
        self._predictors = {kind: self._load(kind) for kind in MODEL_TYPES}
        self._batcher = AsyncBatcher(self._pass, max_batch=own.max_batch, short=self._short, stop_s=own.deadline_s)
        await self._batcher.__aenter__()
        if own.database_url is not None:
            self._recorder = Recorder(own.database_url, self.metrics, self.versions, own.keep_days)
            self._count_lost()
            self._recorder.start()
        self._tracers, self.ready = tracer_provider(), True
        self._count_on()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        await self._batcher.__aexit__()
        if self._recorder is not None:
            await self._recorder.stop()
        self._count()
        if isinstance(self._cache, SharedCache):
            self._cache.close()
        if self._tracers is not None:
            await asyncio.to_thread(self._tracers.shutdown)  # sends the last spans, for two seconds at most

    async def parts(self) -> dict[str, Any]:
        """What is there: Redis and the database are off, here or away; without them answers come all the same.

        Raises `Refused`: 503 the models do not answer within the deadline.
        """
        if not (self.ready and await self._batcher.alive(self.settings.deadline_s)):
            raise busy("the service is stopping, or its models do not answer")
        parts = {"redis": self._cache if isinstance(self._cache, SharedCache) else None, "database": self._recorder}
        states = {name: "off" if part is None else "away" if part.away else "here" for name, part in parts.items()}
        if self._recorder is not None:
            states |= {"database_since_s": round(self._recorder.since_s, 1), "pending": self._recorder.pending}
        return {**states, "waiting": self._batcher.unanswered, "model_versions": self.versions}

    def page(self) -> bytes:
        """The text that a server of Prometheus reads."""
        self._count()
        return self.metrics.page()

    def _count_on(self) -> None:
        """Each second: other workers read it in this one's files."""
        if self.ready:
            self._count()
            asyncio.get_running_loop().call_later(1, self._count_on)

    def _count_lost(self) -> None:
        """What waited for the database in a worker that died, in whose files this one counts on, is lost to it."""
        counted = self.metrics.registry.get_sample_value
        decided = sum(counted("predictions_total", {"model_type": kind}) for kind in MODEL_TYPES)
        lost = decided - counted("recorded_total") - counted("unrecorded_total")
        if lost:
            log.warning("%d decisions of a worker that died are lost to the database", lost)
            self.metrics.unrecorded.inc(lost)

    def _count(self) -> None:
        self.metrics.requests.set(self.requests)
        self.metrics.waiting.set(self._batcher.unanswered)
        if self._recorder is not None:
            self.metrics.pending.set(self._recorder.pending)

    async def decide(
        self, model_type: str, states: Sequence[CheckedState], traceparent: str | None = None
    ) -> list[Decision]:
        """A decision for each state, in their order; `traceparent` is the span that it belongs to.

        What fits into one pass and what does not are counted apart, so neither keeps the other out.
        Raises `Refused`: 503 `max_waiting` states wait already, or the service is stopping; 500 the model failed.
        """
        if not self.ready:
            raise busy("the service is stopping")
        small = len(states) <= self.settings.max_batch
        if self._waiting[small] >= self.settings.max_waiting:
            raise busy(f"{self._waiting[small]} states wait already")
        began_ns = time.time_ns()
        left = len(states)
        self._waiting[small] += left
        decisions: list[Decision] = []
        try:
            while left:  # as many at a time as fit into a pass: others get in between
                some = states[len(decisions) : len(decisions) + self.settings.max_batch]
                answers = [self._batcher.predict((model_type, state)) for state in some]
                decisions += [await answers[0]] if len(some) == 1 else await asyncio.gather(*answers)
                left -= len(some)
                self._waiting[small] -= len(some)
        except GnnlabError as error:
            raise Refused(500, "the model failed on this batch; the log of the service says how") from error
        finally:
            self._waiting[small] -= left
        self.metrics.predictions[model_type].inc(len(decisions))
        if self._tracers is not None and decisions:
            about = {"model_type": model_type, "confidence": min(one.confidence for one in decisions)}
            self._trace(began_ns, about, traceparent)
        if self._recorder is not None:
            for state, decision in zip(states, decisions, strict=True):
                self._recorder.record(model_type, state, decision)
        return decisions

    def _trace(self, began_ns: int, about: dict[str, Any], traceparent: str | None) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent} if traceparent else {})
        tracer = self._tracers.get_tracer("gnnlab")
        tracer.start_span("predict", context=parent, start_time=began_ns, attributes=about).end()

    def _short(self, asked: Sequence[Asked]) -> bool:
        """Whether a batch is computed in the event loop: in a millisecond or two, and without Redis."""
        return not isinstance(self._cache, SharedCache) and sum(len(s.nodes) for _, s in asked) <= NODES_A_PASS

    def _pass(self, asked: Sequence[Asked]) -> list[Decision]:
        """One batch, each model's states together."""
        self.metrics.batch.observe(len(asked))
        answers = {}
        for kind in {kind for kind, _ in asked}:
            predictor = self._predictors[kind]
            hits, misses = predictor.hits, predictor.misses
            answers[kind] = iter(predictor.decide([state for k, state in asked if k == kind], return_scores=True))
            if self._cache is not None:
                self.metrics.hits.inc(predictor.hits - hits)
                self.metrics.misses.inc(predictor.misses - misses)
        return [next(answers[kind]) for kind, _ in asked]

    def _load(self, model_type: str) -> Predictor:
        """A model that has answered once: the first call takes longer."""
        weights = edge_allocator.weights(model_type)
        self.versions[model_type] = fingerprint(weights)[:12]
        self.metrics.model.labels(model_type, self.versions[model_type]).set(1)
        self.metrics.memory.labels(model_type).set(sum(tensor.nbytes for tensor in weights.values()))
        predictor = Predictor(model_type, "cpu", weights=weights)
        predictor.predict_batch(random_states(2, (10, 10), seed=0))
        predictor.cache = self._cache
        return predictor
