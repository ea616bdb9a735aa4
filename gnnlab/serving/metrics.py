"""What the service counts, for Prometheus, one page for all workers of a host; S2's span, for OpenTelemetry.

Several workers write into files of one folder, which the launcher names in PROMETHEUS_MULTIPROC_DIR before the library
is loaded; each worker then answers for all of them.
"""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gnnlab.workloads.edge_allocator import MODEL_TYPES

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


def tracer() -> Any:
    """A tracer that sends spans where OpenTelemetry's own variables say; None, and nothing loaded, without them."""
    if not any(f"OTEL_EXPORTER_OTLP_{name}" in os.environ for name in ("ENDPOINT", "TRACES_ENDPOINT")):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "gnnlab"}))  # sends the last spans at exit
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=2)))
    return provider.get_tracer("gnnlab.serving")
