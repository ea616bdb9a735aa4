"""What the service counts, for Prometheus; one page for all workers of a host. Beside it, spans for OpenTelemetry.

Several workers write into files of one folder, which the launcher names in PROMETHEUS_MULTIPROC_DIR before the library
is loaded; each worker then answers for all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gnnlab.inference.predictor import Decision
from gnnlab.workloads.edge_allocator import MODEL_TYPES

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")  # OpenTelemetry's own variables
LATENCIES_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

disable_created_metrics()  # a counter that starts anew is seen by its value


class Metrics:
    """The counters of one worker; those by model have one for each."""

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
        self.cache = Counter("cache_requests_total", "Looked up in the cache.", ["result"], registry=own)
        self.refused = Counter("requests_refused_total", "Answered by an error.", ["status"], registry=own)
        self.unrecorded = Counter("unrecorded_total", "Decisions that the database lost.", registry=own)
        self._hits = self._misses = 0

    def count_lookups(self, hits: int, misses: int) -> None:
        """Count what a cache has counted since the last call."""
        self.cache.labels("hit").inc(hits - self._hits)
        self.cache.labels("miss").inc(misses - self._misses)
        self._hits, self._misses = hits, misses

    def page(self) -> bytes:
        """The text that a server of Prometheus reads."""
        if FOLDER not in os.environ:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


class Tracing:
    """Spans of predictions, sent to OTEL_EXPORTER_OTLP_ENDPOINT; without that, nothing is loaded or noted."""

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

    def span(self, model_type: str, began_ns: int, decisions: Sequence[Decision]) -> None:
        """One span from `began_ns` (of `time.time_ns`) until now, with the least confidence of the decisions."""
        if self._provider is not None and decisions:
            about = {"model_type": model_type, "confidence": min(one.confidence for one in decisions)}
            self._tracer.start_span("predict", start_time=began_ns, attributes=about).end(time.time_ns())

    def close(self) -> None:
        """Send the last spans; the endpoint may take two seconds."""
        if self._provider is not None:
            self._provider.shutdown()
