"""What the web process counts of itself; ``signalbox.metrics`` shows it."""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)

HTTP_REQUESTS = Counter(
    "signalbox_http_requests_total", "Answered requests.", ["method", "status"], registry=registry
)
HTTP_SECONDS = Histogram(
    "signalbox_http_request_seconds", "Time from a request's arrival to its answer's end.", registry=registry
)
CONNECTIONS_OPEN = Gauge(
    "signalbox_connections_open", "Requests and chat sockets that are being served.", registry=registry
)
CONNECTIONS_CLOSED = Counter(
    "signalbox_connections_closed_total",
    "Connections that the web server closed itself: readers that were too slow, and at its own end.",
    ["reason"],
    registry=registry,
)
LOG_INS = Counter(
    "signalbox_log_ins_total", "Log-ins, by what became of them.", ["outcome"], registry=registry
)
REFUSED_KEYS = Counter(
    "signalbox_refused_api_keys_total", "API keys that gave no access, by why.", ["reason"], registry=registry
)

_METHODS: Final = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def count_request(method: str, status: int, seconds: float) -> None:
    """Count one answered request. A client's invented method must not become a series of its own."""
    HTTP_REQUESTS.labels(method=method if method in _METHODS else "other", status=str(status)).inc()
    HTTP_SECONDS.observe(seconds)
