"""What this gateway measures, under the names that engine dashboards already know."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rorqual_gateway.sinks import TokenUsage

_FINE_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075)
_MEDIUM_S = (0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75)
_COARSE_S = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
LATENCY_BUCKETS_S = (*_FINE_S, *_MEDIUM_S, *_COARSE_S)


class GatewayMetrics:
    """What a gateway measures, beside what every service does."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._running = self._gauge("vllm:num_requests_running", "requests under way")
        self._waiting = self._gauge("vllm:num_requests_waiting", "requests without a first token")
        self._ttft_s = self._histogram("vllm:time_to_first_token_seconds", "time to first token")
        self._itl_s = self._histogram("vllm:inter_token_latency_seconds", "gap between chunks")
        self._e2e_s = self._histogram("vllm:e2e_request_latency_seconds", "whole request")
        self._prompt = self._counter("vllm:prompt_tokens", "prompt tokens")
        self._generated = self._counter("vllm:generation_tokens", "generated tokens")
        self._cache_queries = self._counter(
            "vllm:prefix_cache_queries", "prompt tokens looked up in the prefix cache"
        )
        self._cache_hits = self._counter(
            "vllm:prefix_cache_hits", "prompt tokens taken from the prefix cache"
        )
        self._success = self._counter(
            "vllm:request_success", "ended choices by reason", "finished_reason"
        )
        self._refused = self._counter("rorqual_requests_failed", "failed requests by code", "code")
        self._cancelled = self._counter(
            "rorqual_requests_cancelled", "cancels sent by reason", "reason"
        )
        self._reasoning = self._counter("rorqual_reasoning_tokens", "generated reasoning tokens")
        self._tokens = self._counter(
            "rorqual_tokens", "tokens by operation and type", "operation", "type"
        )
        self._duration_s = self._by_operation(
            "gen_ai_server_request_duration_seconds", "whole request", "error_type"
        )
        self._first_token_s = self._by_operation(
            "gen_ai_server_time_to_first_token_seconds", "time to first token"
        )
        self._unmetered = Counter(
            "rorqual_quota_checks_skipped",
            "quota checks left out because Redis was away",
            registry=self.registry,
        )
        self._http = Counter(
            "rorqual_http_responses", "answers by status", ["status"], registry=self.registry
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            name, text, ["model_name"], registry=self.registry, buckets=LATENCY_BUCKETS_S
        )

    def _by_operation(self, name: str, text: str, *labels: str) -> Histogram:
        """Under OpenTelemetry's GenAI names, as an exporter spells them for Prometheus."""
        names = ["gen_ai_operation_name", "gen_ai_request_model", *labels]
        return Histogram(name, text, names, registry=self.registry, buckets=LATENCY_BUCKETS_S)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ["model_name", *labels], registry=self.registry)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def request(self, model: str, operation: str) -> "RequestMetrics":
        """Meters of one request that is generated."""
        return RequestMetrics(self, model, operation)

    def request_ended(self, operation: str, model: str, error: str, duration_s: float) -> None:
        """One request of any kind is over; error: why it failed, "" when it did not."""
        self._duration_s.labels(operation, model, error).observe(duration_s)

    def count_response(self, status: int) -> None:
        """One HTTP answer has begun."""
        self._http.labels(str(status)).inc()

    def count_unmetered(self) -> None:
        """One request was not counted against its key's quotas."""
        self._unmetered.inc()

    def count_failure(self, model: str, code: str) -> None:
        """One request ended with an error."""
        self._refused.labels(model, code).inc()

    def count_cancel(self, model: str, reason: str) -> None:
        """One cancel was broadcast."""
        self._cancelled.labels(model, reason).inc()
        self._success.labels(model, "abort").inc()


class RequestMetrics:
    """Label lookups done once, so that a chunk costs one observation."""

    def __init__(self, metrics: GatewayMetrics, model: str, operation: str) -> None:
        self._metrics = metrics
        self._model = model
        self._operation = operation
        self._running = metrics._running.labels(model)
        self._waiting = metrics._waiting.labels(model)
        self._itl_s = metrics._itl_s.labels(model)
        self._is_waiting = False

    def __enter__(self) -> "RequestMetrics":
        self._running.inc()
        self._waiting.inc()
        self._is_waiting = True
        return self

    def __exit__(self, *_: object) -> None:
        self._running.dec()
        self._leave_waiting()

    def first_token(self, ttft_s: float) -> None:
        """The first content is here."""
        self._leave_waiting()
        self._metrics._ttft_s.labels(self._model).observe(ttft_s)
        self._metrics._first_token_s.labels(self._operation, self._model).observe(ttft_s)

    def gap(self, gap_s: float) -> None:
        """Another chunk came `gap_s` after the one before."""
        self._itl_s.observe(gap_s)

    def finished(self, reasons: tuple[str, ...], latency_s: float) -> None:
        """The whole answer is out."""
        self._metrics._e2e_s.labels(self._model).observe(latency_s)
        for reason in reasons:
            self._metrics._success.labels(self._model, reason).inc()

    def used(self, usage: TokenUsage) -> None:
        """Tokens of the request, complete or not."""
        metrics, model = self._metrics, self._model
        metrics._prompt.labels(model).inc(usage.prompt_tokens)
        metrics._generated.labels(model).inc(usage.completion_tokens)
        metrics._reasoning.labels(model).inc(usage.reasoning_tokens)
        metrics._cache_queries.labels(model).inc(usage.prompt_tokens)
        metrics._cache_hits.labels(model).inc(usage.cached_tokens)
        metrics._tokens.labels(model, self._operation, "input").inc(usage.prompt_tokens)
        metrics._tokens.labels(model, self._operation, "output").inc(usage.completion_tokens)

    def _leave_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._waiting.dec()
