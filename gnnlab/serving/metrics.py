"""What the service counts, for Prometheus; one page for all workers of a host. Beside it, spans for OpenTelemetry.

Several workers write into files of one folder, which the launcher names in PROMETHEUS_MULTIPROC_DIR before the library
is loaded; each worker then answers for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")  # OpenTelemetry's own variables
LATENCIES_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


disable_created_metrics()  # a counter that starts anew is seen by its value


class Metrics:
    """The counters of one worker."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        kind = ["model_type"]
        self.predictions = Counter("predictions_total", "Decisions given.", kind, registry=own)
        self.latency = Histogram(
            "prediction_latency_seconds",
            "From the body of a request to its answer.",
            kind,
            buckets=LATENCIES_S,
            registry=own,
        )
        about = "Weights of the loaded models, of one worker."
        self.memory = Gauge("model_memory_bytes", about, kind, multiprocess_mode="max", registry=own)
        self.batch = Histogram("batch_size", "States of a pass.", kind, buckets=BATCHES, registry=own)
        self.cache = Counter("cache_requests_total", "Looked up in the cache.", ["result"], registry=own)
        self.refused = Counter("requests_refused_total", "Answered by an error.", ["status"], registry=own)
        self.unrecorded = Counter("unrecorded_total", "Decisions that the database lost.", registry=own)

    def page(self) -> bytes:
        """The text that a server of Prometheus reads."""
        if FOLDER not in os.environ:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


class CountedCache:
    """A cache of a `Predictor` whose hits and misses are counted."""

    def __init__(self, cache, metrics: Metrics) -> None:
        self._cache, self.key, self.put_many = cache, cache.key, cache.put_many
        self._hits, self._misses = (metrics.cache.labels(result) for result in ("hit", "miss"))

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        found = self._cache.get_many(keys)
        hits = sum(scores is not None for scores in found)
        self._hits.inc(hits)
        self._misses.inc(len(found) - hits)
        return found


class Tracing:
    """`span(model_type)` around a prediction, sent to OTEL_EXPORTER_OTLP_ENDPOINT; without that, nothing is loaded."""

    def __init__(self) -> None:
        self._provider = None
        if not any(name in os.environ for name in ENDPOINTS):
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": "gnnlab"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=2)))
        self._tracer = self._provider.get_tracer("gnnlab.serving")

    def span(self, model_type: str) -> AbstractContextManager[Any]:
        """A span that lasts as long as the prediction and has its error, if it has one; None without an endpoint."""
        if self._provider is None:
            return nullcontext()
        return self._tracer.start_as_current_span("predict", attributes={"model_type": model_type})

    def close(self) -> None:
        """Send the last spans; the endpoint may take two seconds."""
        if self._provider is not None:
            self._provider.shutdown()
