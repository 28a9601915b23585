"""The span of one generation, with the attributes of the GenAI conventions."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.trace import Span, Status, StatusCode, Tracer

from rorqual_decode.forward_clock import ForwardTimes
from rorqual_decode.generation import FinishReason, GenerationSpec, OutputStream

_FINISH_NAMES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.ERROR: "error",
}


class GenerationSpan:
    """`decode.generate`, from the offer to the last token, under the handover's trace."""

    def __init__(
        self, tracer: Tracer, spec: GenerationSpec, read_times: Callable[[], ForwardTimes]
    ) -> None:
        """read_times: of the engine that runs it."""
        self._read_times, self._times_before = read_times, read_times()
        self._span: Span = tracer.start_span("decode.generate")
        self._span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": spec.model,
                "gen_ai.request.max_tokens": spec.sampling.max_new_tokens,
                "gen_ai.request.temperature": spec.sampling.temperature,
                "rorqual.request_id": spec.key.request_id,
                "rorqual.choice_index": spec.key.choice_index,
            }
        )

    def end(self, stream: OutputStream) -> None:
        """The stream has ended, in whatever way."""
        spec, finish = stream.spec, stream.finish
        attributes: dict[str, int | float | list[str]] = {
            "gen_ai.usage.input_tokens": spec.num_prompt_tokens,
            "gen_ai.usage.cached_tokens": spec.num_cached_tokens,
            "gen_ai.usage.output_tokens": len(stream.token_ids),
        }
        if finish is not None:
            attributes["gen_ai.response.finish_reasons"] = [_FINISH_NAMES[finish]]
        if stream.first_token_unix_s and spec.submitted_unix_s:
            attributes["rorqual.time_to_first_token_s"] = (
                stream.first_token_unix_s - spec.submitted_unix_s
            )
        times = self._read_times().since(self._times_before)
        attributes["rorqual.forward_s"] = times.forward_s
        attributes["rorqual.between_forwards_s"] = times.between_s
        if stream.guesses.num_rounds:
            attributes["rorqual.guessed_tokens"] = stream.guesses.num_guessed
            attributes["rorqual.taken_guesses"] = stream.guesses.num_taken
        self._span.set_attributes(attributes)
        if stream.error is not None:
            self._span.set_status(Status(StatusCode.ERROR, stream.error.message))
        self._span.end()

    def drop(self) -> None:
        """The generation never began here."""
        self._span.set_status(Status(StatusCode.ERROR, "not admitted"))
        self._span.end()
