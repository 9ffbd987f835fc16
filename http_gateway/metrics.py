"""The gateway's Prometheus metrics, in their own registry.

Tokens are counted when a request ends, so that counting costs nothing per token.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Buckets from a warm local token to ten minutes of queueing.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sax_gateway_requests",
            "Requests answered; code 499: the client disconnected before the reply began.",
            ["route", "code"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "sax_gateway_requests_in_flight", "Requests being served.", registry=self.registry
        )
        self.seconds = Histogram(
            "sax_gateway_request_seconds",
            "Time from arrival to the last byte.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.first_token_seconds = Histogram(
            "sax_gateway_time_to_first_token_seconds",
            "Time from arrival to the first token, streamed or not.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "sax_gateway_prompt_tokens", "Prompt tokens processed.", registry=self.registry
        )
        self.completion_tokens = Counter(
            "sax_gateway_completion_tokens", "Tokens generated.", registry=self.registry
        )
        self.disconnects = Counter(
            "sax_gateway_disconnects",
            "Clients that disconnected before their reply was complete.",
            ["route"],
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "sax_gateway_broken_streams",
            "Streams that ended with an error event after they began.",
            ["route"],
            registry=self.registry,
        )

    def expose(self) -> bytes:
        return generate_latest(self.registry)
