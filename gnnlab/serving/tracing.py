"""Spans by OpenTelemetry, where an endpoint is set: `predict`, with model_type and confidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gnnlab import machine


class Tracing:
    """`span(model_type)` around a prediction; without an endpoint nothing is loaded, and nothing is done."""

    def __init__(self, endpoint: str | None) -> None:
        self._provider = self._tracer = None
        if endpoint is None:
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        about = Resource.create({"service.name": "gnnlab", "service.version": machine.version("gnnlab") or ""})
        self._provider = TracerProvider(resource=about)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=2)))
        self._tracer = self._provider.get_tracer("gnnlab.serving")

    @contextmanager
    def span(self, model_type: str) -> Iterator[Span]:
        """A span that lasts as long as the prediction and has its error, if it has one."""
        if self._tracer is None:
            yield _NO_SPAN
            return
        with self._tracer.start_as_current_span("predict") as span:
            span.set_attribute("model_type", model_type)
            yield Span(span)

    def close(self) -> None:
        """Send what is there; the endpoint may take two seconds."""
        if self._provider is not None:
            self._provider.shutdown()


class Span:
    """What is known at the end of a prediction."""

    def __init__(self, span=None) -> None:
        self._span = span

    def answered(self, confidence: float) -> None:
        if self._span is not None:
            self._span.set_attribute("confidence", confidence)


_NO_SPAN = Span()
