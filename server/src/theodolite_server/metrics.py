"""What Prometheus sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from theodolite_server.models import Models
    from theodolite_server.worker import Forward

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """One registry per application, so that two servers in a process do not share numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter("theodolite_requests", "Answered requests.", ["route", "method", "status"], registry=r)
        self.latency = Histogram(
            "theodolite_request_seconds", "Request to answer.", ["route"], buckets=SECONDS, registry=r
        )
        self.stage = Histogram(
            "theodolite_stage_seconds",
            "Stages of a request: encode (prompt and tokens), queue, inference, finish (normalize and JSON).",
            ["model", "stage"],
            buckets=SECONDS,
            registry=r,
        )
        self.rows = Histogram("theodolite_batch_rows", "Rows per forward pass.", ["model"], buckets=ROWS, registry=r)
        self.forwards = Histogram("theodolite_forward_seconds", "Forward pass.", ["model"], buckets=SECONDS, registry=r)
        self.tokens = Counter("theodolite_tokens", "Real tokens that went through a model.", ["model"], registry=r)
        self.padded = Counter(
            "theodolite_padded_tokens", "Tokens that went through a model, padding included.", ["model"], registry=r
        )
        self.cut = Counter("theodolite_truncated_tokens", "Tokens cut to fit max_length.", ["model"], registry=r)
        self.cut_inputs = Counter("theodolite_truncated_inputs", "Inputs cut to fit max_length.", ["model"], registry=r)
        self.waiting = Gauge("theodolite_queue_requests", "Requests that wait.", ["model"], registry=r)
        self.loaded = Gauge("theodolite_model_loaded", "1 if the model is in memory.", ["model"], registry=r)
        self.active = Gauge("theodolite_mlx_active_bytes", "Bytes that MLX uses.", registry=r)
        self.cached = Gauge("theodolite_mlx_cache_bytes", "Bytes of freed buffers that MLX keeps.", registry=r)

    def forward(self, model: str, done: Forward) -> None:
        """Count one forward pass. Any thread."""
        self.rows.labels(model).observe(done.rows)
        self.forwards.labels(model).observe(done.seconds)
        self.tokens.labels(model).inc(done.tokens)
        self.padded.labels(model).inc(done.padded)

    def text(self, models: Models) -> bytes:
        """The exposition format, with the gauges as they are now."""
        import mlx.core as mx

        for served in models.served:
            self.loaded.labels(served.id).set(served.worker is not None)
            self.waiting.labels(served.id).set(served.worker.waiting if served.worker else 0)
        self.active.set(mx.get_active_memory())
        self.cached.set(mx.get_cache_memory())
        return generate_latest(self.registry)
