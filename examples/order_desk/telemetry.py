"""OpenTelemetry in memory, if its SDK is installed; a service passes its own providers instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Telemetry:
    """The providers for ``Metrics`` and ``Tracing`` (None without the SDK), and the collected data."""

    meter_provider: Any = None
    tracer_provider: Any = None
    _reader: Any = field(default=None, repr=False)
    _exporter: Any = field(default=None, repr=False)

    @classmethod
    def in_memory(cls) -> Telemetry:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        except ImportError:
            return cls()
        reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(exporter))
        return cls(MeterProvider([reader]), tracing, reader, exporter)

    def spans(self) -> list[str]:
        """Return every span as JSON."""
        return [] if self._exporter is None else [span.to_json() for span in self._exporter.get_finished_spans()]

    def counts(self, counter: str) -> dict[str, int]:
        """Return the values of a counter by tool."""
        data = None if self._reader is None else self._reader.get_metrics_data()
        found: dict[str, int] = {}
        for resource in data.resource_metrics if data else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points if metric.name == counter else ():
                    tool = str(point.attributes["gen_ai.tool.name"])
                    found[tool] = found.get(tool, 0) + point.value
        return found
