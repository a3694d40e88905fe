"""What the web process tells Prometheus: its own requests, and the state of the installation.

Paths appear as routes, never as they were called, so no id and no name of a caller's is a label.
"""

import time
from collections.abc import Iterator

from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runner.runtime import Runtime
from runner.services.gauges import Gauges, read_gauges

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_NO_ROUTE = "none"


class WebMetrics:
    """The figures of one web process."""

    def __init__(self, app: Flask, runtime: Runtime) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_InstallationCollector(runtime))
        self._requests = Counter(
            "tokenmill_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tokenmill_http_request_duration_seconds",
            "From a request's arrival to the first byte of its answer.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        app.before_request(_note_start)
        app.after_request(self._observe)

    def text(self) -> bytes:
        """Everything in Prometheus' text format; reads the database."""
        return generate_latest(self._registry)

    def _observe(self, response: Response) -> Response:
        rule = request.url_rule
        route, method = (_NO_ROUTE, _NO_ROUTE) if rule is None else (rule.rule, request.method)
        self._requests.labels(method, route, str(response.status_code)).inc()
        started = g.get("started")
        if started is not None:
            self._seconds.labels(method, route).observe(time.perf_counter() - started)
        return response


class _InstallationCollector(Collector):
    """Reads the database when asked: no count is kept beside the truth."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """A reading."""
        with self._runtime.transaction() as session:
            gauges = read_gauges(session)
        yield _by_label("tokenmill_jobs", "Jobs by state.", "state", gauges.jobs)
        lines = {"pending": gauges.pending_lines, "running": gauges.running_lines}
        yield _by_label("tokenmill_lines", "Lines of live jobs, not ended.", "state", lines)
        yield _workers(gauges)
        yield GaugeMetricFamily(
            "tokenmill_oldest_job_age_seconds",
            "Age of the oldest job that has not ended.",
            gauges.oldest_job_seconds,
        )
        yield CounterMetricFamily(
            "tokenmill_stale_results",
            "Results refused because their lease had passed to another.",
            gauges.stale_results,
        )


def _note_start() -> None:
    g.started = time.perf_counter()


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _workers(gauges: Gauges) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "tokenmill_workers_alive", "Workers that live, by kind and state.", labels=("kind", "state")
    )
    for place, count in gauges.workers.items():
        family.add_metric(place, count)
    return family
