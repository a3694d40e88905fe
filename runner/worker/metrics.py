"""What an engine worker tells Prometheus, under vLLM's names where vLLM has one.

No label holds anything of a caller's: no job, no custom id, no prompt.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runner.domain.leases import FinishedItem
from runner.services.worker_time import WorkerTimes
from runner.worker.time_sheet import now_us

_HOST = "127.0.0.1"
_END_SECONDS = 0.05  # a change of model waits for so long
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_MICRO = 1e-6
_LABELS = ("model_name",)

# Name, help, the backend's name for it, and its unit in ours.
_GAUGES = (
    ("vllm:num_requests_running", "Lines that the engine computes now.", "running", 1.0),
    ("vllm:num_requests_waiting", "Lines that wait inside the engine.", "waiting", 1.0),
    ("vllm:kv_cache_usage_perc", "Used share of the KV cache (1 is all).", "kv_utilization", 1.0),
    ("tokenmill:memory_fragmentation", "Unfilled share of used KV slots.", "fragmentation", 1.0),
    ("tokenmill:batch_latency_seconds", "Wall time of the last step.", "last_step_us", _MICRO),
)
_COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens of ended lines.", "prompt_tokens", 1.0),
    ("vllm:generation_tokens", "Tokens generated.", "output_tokens", 1.0),
    ("vllm:num_preemptions", "Times that a line had to give its blocks away.", "preemptions", 1.0),
    ("vllm:prefix_cache_queries", "Tokens looked for in the cache.", "prefix_query_tokens", 1.0),
    ("vllm:prefix_cache_hits", "Tokens found in the cache.", "prefix_hit_tokens", 1.0),
    ("tokenmill:recomputed_tokens", "Tokens computed again.", "recomputed_tokens", 1.0),
    ("tokenmill:copied_sequences", "Sequences answered by an equal one.", "copies", 1.0),
    ("vllm:spec_decode_num_draft_tokens", "Tokens guessed.", "guessed_tokens", 1.0),
    ("vllm:spec_decode_num_accepted_tokens", "Guesses that held.", "held_tokens", 1.0),
    ("tokenmill:engine_steps", "Steps of the engine.", "steps", 1.0),
    ("tokenmill:engine_host_seconds", "Time of steps outside the model.", "host_us", _MICRO),
)


class WorkerMetrics:
    """The figures of one worker process, and the small server that shows them on loopback."""

    def __init__(self, model_name: str) -> None:
        self._model = model_name
        self._registry = CollectorRegistry()
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From a line's arrival to its first token."
        )
        self._total = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a line's arrival in the engine to its end."
        )
        self._lines = Counter(
            "tokenmill:lines",
            "Lines committed, by outcome.",
            (*_LABELS, "outcome"),
            registry=self._registry,
        )
        self._committed = (0, 0)

    @property
    def committed(self) -> tuple[int, int]:
        """Lines committed so far, and the output tokens of those that succeeded (any thread)."""
        return self._committed

    def observe(self, items: Iterable[FinishedItem]) -> None:
        """Count what has been committed (the writer's thread)."""
        lines, tokens = self._committed
        for item in items:
            lines += 1
            tokens += 0 if item.failed else item.metrics.output_tokens
            self._lines.labels(self._model, "failed" if item.failed else "succeeded").inc()
            if not item.failed:
                if item.metrics.output_tokens:  # an embedding has no first token
                    self._first_token.observe(item.metrics.first_token_us * _MICRO)
                self._total.observe(item.metrics.total_us * _MICRO)
        self._committed = (lines, tokens)

    @contextmanager
    def shown(
        self, stats: Callable[[], Mapping[str, float]], times: Callable[[], WorkerTimes]
    ) -> Iterator[str]:
        """Serve everything on a free port of this host alone; gives the address."""
        self._registry.register(_EngineCollector(self._model, stats, times))
        app = make_wsgi_app(self._registry)
        server = make_server(_HOST, 0, app, ThreadingWSGIServer, _QuietHandler)
        thread = Thread(target=server.serve_forever, args=(_END_SECONDS,), daemon=True)
        thread.start()
        try:
            yield f"http://{_HOST}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _histogram(self, name: str, text: str) -> Histogram:
        family = Histogram(name, text, _LABELS, buckets=_SECONDS, registry=self._registry)
        return family.labels(self._model)


class _QuietHandler(WSGIRequestHandler):
    """Logs no request."""

    def log_message(self, format: str, *args: object) -> None: ...


class _EngineCollector(Collector):
    """Reads the engine's own counters when asked, so that no step pays for it."""

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], Mapping[str, float]],
        times: Callable[[], WorkerTimes],
    ) -> None:
        self._model = model_name
        self._stats = stats
        self._times = times
        self._last = (now_us(), 0)

    def collect(self) -> Iterator[Metric]:
        """A reading; what a backend does not count is left out."""
        stats = self._stats()
        for name, text, key, unit in _GAUGES:
            if key in stats:
                gauge = GaugeMetricFamily(name, text, labels=_LABELS)
                gauge.add_metric((self._model,), stats[key] * unit)
                yield gauge
        for name, text, key, unit in _COUNTERS:
            if key in stats:
                counter = CounterMetricFamily(name, text, labels=_LABELS)
                counter.add_metric((self._model,), stats[key] * unit)
                yield counter
        yield from self._time_metrics(self._times())

    def _time_metrics(self, times: WorkerTimes) -> Iterator[Metric]:
        seconds = CounterMetricFamily(
            "tokenmill:worker_seconds",
            "Where the wall time of this worker went.",
            labels=(*_LABELS, "kind"),
        )
        for kind in ("busy", "idle", "load", "wasted"):
            spent = getattr(times, f"{kind}_us")
            seconds.add_metric((self._model, kind), spent * _MICRO)
        yield seconds
        now = now_us()
        then, busy = self._last
        self._last = (now, times.busy_us)
        ratio = GaugeMetricFamily(
            "tokenmill:device_busy_ratio",
            "Share of the time since the last reading that the engine spent in steps.",
            labels=_LABELS,
        )
        ratio.add_metric((self._model,), min(1.0, (times.busy_us - busy) / max(1, now - then)))
        yield ratio
