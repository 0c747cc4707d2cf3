"""Numbers of the web process, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

registry = CollectorRegistry()

CONNECTIONS_CLOSED = Counter(
    "signalbox_connections_closed_total",
    "Connections that the web server closed itself.",
    ["reason"],
    registry=registry,
)
