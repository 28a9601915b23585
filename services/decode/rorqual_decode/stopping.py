"""When a generation ends."""

from __future__ import annotations

from dataclasses import dataclass

from rorqual_decode.generation import FinishReason, SamplingSpec


@dataclass(frozen=True, slots=True)
class StopRule:
    """Everything that can end one generation besides its reader."""

    stop_ids: frozenset[int]
    max_output_tokens: int

    def finish_after(
        self, token_id: int, num_output_tokens: int, grammar_finished: bool
    ) -> FinishReason | None:
        """Why the generation ends with this token, or None when it goes on.

        A stop token outranks the length: an answer that ends by itself on its last allowed token
        ended by itself.
        """
        if token_id in self.stop_ids or grammar_finished:
            return FinishReason.STOP
        if num_output_tokens >= self.max_output_tokens:
            return FinishReason.LENGTH
        return None


def make_stop_rule(
    sampling: SamplingSpec,
    *,
    eos_token_ids: tuple[int, ...],
    num_prompt_tokens: int,
    max_context_tokens: int,
) -> StopRule:
    """The rule of one request on one model: output never grows past the model's context."""
    eos_ids = frozenset() if sampling.ignore_eos else frozenset(eos_token_ids)
    return StopRule(
        stop_ids=sampling.stop_token_ids | eos_ids,
        max_output_tokens=max(
            1, min(sampling.max_new_tokens, max_context_tokens - num_prompt_tokens)
        ),
    )
