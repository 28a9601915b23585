"""What one request leaves in its span and in the metrics, however it ends."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode
from rorqual_runtime.clock import Clock

from rorqual_gateway.convert import EncodedRequest
from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.metrics import GatewayMetrics, RequestMetrics
from rorqual_gateway.sinks import Event, TokenUsage


class Observation:
    """Follows one request. Token counts are those of the last event that was taken."""

    def __init__(
        self, endpoint: Endpoint, span: Span, metrics: GatewayMetrics, clock: Clock, request_id: str
    ) -> None:
        self._endpoint = endpoint
        self._span = span
        self._metrics = metrics
        self._clock = clock
        self._request_id = request_id
        self._started_s = clock.monotonic_s()
        self._last_chunk_s: float | None = None
        self._is_streamed = False
        self._meters: RequestMetrics | None = None
        self._usage: TokenUsage | None = None
        self._error = ""
        self.model = ""
        span.set_attribute("gen_ai.operation.name", endpoint.operation)
        span.set_attribute("gen_ai.provider.name", "rorqual")
        span.set_attribute("rorqual.request_id", request_id)

    @contextmanager
    def generation(self, encoded: EncodedRequest) -> Iterator[None]:
        """While the request is generated; its tokens count on every way out."""
        self.model = encoded.model
        self._is_streamed = encoded.stream
        span = self._span
        span.update_name(f"{self._endpoint.operation} {encoded.model}")
        span.set_attribute("gen_ai.request.model", encoded.model)
        span.set_attribute("gen_ai.request.max_tokens", encoded.max_new_tokens)
        span.set_attribute("gen_ai.request.choice.count", encoded.num_choices)
        span.set_attribute("gen_ai.response.id", f"{self._endpoint.id_prefix}{self._request_id}")
        with self._metrics.request(encoded.model, self._endpoint.operation) as meters:
            self._meters = meters
            try:
                yield
            finally:
                self._note_usage(meters)

    def taken(self, events: Sequence[Event]) -> None:
        """Events came, at least one."""
        now_s = self._clock.monotonic_s()
        assert self._meters is not None
        if self._last_chunk_s is None:
            self._last_chunk_s = now_s
            ttft_s = now_s - self._started_s
            self._meters.first_token(ttft_s)
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", ttft_s)
        elif self._is_streamed and any(event.data for event in events):
            self._meters.gap(now_s - self._last_chunk_s)
            self._last_chunk_s = now_s
        self._usage = events[-1].usage or self._usage

    def finished(self, last: Event) -> None:
        """The answer is complete."""
        assert self._meters is not None
        latency_s = self._clock.monotonic_s() - self._started_s
        self._meters.finished(tuple(last.finish_reasons), latency_s)
        self._span.set_attribute("gen_ai.response.finish_reasons", list(last.finish_reasons))

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer, as far as they are known."""
        usage = self._usage
        return usage.prompt_tokens + usage.completion_tokens if usage is not None else 0

    def failed(self, code: str) -> None:
        """The request ends with an error."""
        self._error = code
        self._span.set_status(Status(StatusCode.ERROR, code))
        self._span.set_attribute("error.type", code)
        self._metrics.count_failure(self.model, code)

    def cancelled(self, reason: str) -> None:
        """Everybody was told to let go of a request under way."""
        self._metrics.count_cancel(self.model, reason)

    def client_gone(self) -> None:
        """Nobody waits for the answer any more."""
        self._error = "client_gone"
        self._span.set_attribute("rorqual.outcome", "client_gone")

    def ended(self) -> None:
        """The request is over, whichever way."""
        duration_s = self._clock.monotonic_s() - self._started_s
        self._metrics.request_ended(self._endpoint.operation, self.model, self._error, duration_s)

    def _note_usage(self, meters: RequestMetrics) -> None:
        usage = self._usage
        if usage is None:
            return
        meters.used(usage)
        counts: dict[str, Any] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
        if usage.cache_miss_reason:
            counts["rorqual.cache_miss_reason"] = usage.cache_miss_reason
        self._span.set_attributes(counts)
