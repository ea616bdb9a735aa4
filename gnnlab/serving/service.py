"""What answers, apart from HTTP: models loaded once, their batches, the cache before them, the database behind them;
and what is counted of it, for Prometheus.

async with Service(settings) as service:
    (decision,) = await service.decide("hybrid", [check(state)])
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gnnlab.errors import GnnlabError
from gnnlab.inference.async_batching import AsyncBatcher, Late
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
        self.recorded = Counter("recorded_total", "Decisions that the database has.", registry=own)
        self.unrecorded = Counter("unrecorded_total", "Decisions that the database lost.", registry=own)
        about = "Decisions that wait for the database, or are on their way to it."
        self.pending = Gauge("records_pending", about, registry=own, multiprocess_mode="livesum")
        about, labels = "1 for each model, by the digest of its weights.", ["model_type", "model_version"]
        self.model = Gauge("model_info", about, labels, registry=own, multiprocess_mode="max")

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
        self.versions: dict[str, str] = {}  # of each model type, 12 hexadecimal digits
        self._waiting = {True: 0, False: 0}  # states of small requests, and of large ones
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
        self._batcher = AsyncBatcher(
            self._pass, max_batch=own.max_batch, short=self._short, deadline_s=own.deadline_s, stop_s=own.deadline_s
        )
        await self._batcher.__aenter__()
        if own.database_url is not None:
            self._recorder = Recorder(own.database_url, self.metrics, self.versions, own.keep_days)
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

    async def decide(
        self, model_type: str, states: Sequence[CheckedState], traceparent: str | None = None
    ) -> list[Decision]:
        """A decision for each state, in their order; `traceparent` is the span that it belongs to.

        What fits into one pass and what does not have `max_waiting` each, so neither keeps the other out.
        Raises `Refused`: 503 too many states wait already, no answer came in time, or the service is stopping; 500 the
        model failed.
        """
        if not self.ready:
            raise busy("the service is stopping")
        small = len(states) <= self.settings.max_batch
        if self._waiting[small] + len(states) > self.settings.max_waiting:
            raise busy(f"{self._waiting[small]} states wait already")
        began_ns = time.time_ns()
        self._waiting[small] += len(states)
        try:
            decisions = await self._decided(model_type, states)
        except Late as error:
            raise busy(str(error)) from None
        except GnnlabError as error:
            raise Refused(500, "the model failed on this batch; the log of the service says how") from error
        finally:
            self._waiting[small] -= len(states)
        self.metrics.predictions[model_type].inc(len(decisions))
        if self._tracers is not None and decisions:
            about = {"model_type": model_type, "confidence": min(one.confidence for one in decisions)}
            self._trace(began_ns, about, traceparent)
        if self._recorder is not None:
            for state, decision in zip(states, decisions, strict=True):
                self._recorder.record(model_type, state, decision)
        return decisions

    async def _decided(self, model_type: str, states: Sequence[CheckedState]) -> list[Decision]:
        """As many at a time as fit into a pass: others get in between."""
        if len(states) == 1:
            return [await self._batcher.predict((model_type, states[0]))]
        decisions: list[Decision] = []
        for at in range(0, len(states), self.settings.max_batch):
            some = states[at : at + self.settings.max_batch]
            decisions += await asyncio.gather(*(self._batcher.predict((model_type, state)) for state in some))
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
