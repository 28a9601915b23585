"""The Messages protocol, and the count of a prompt's tokens in its own terms."""

import json
from collections.abc import Sequence

from rorqual_runtime.anthropic_errors import (
    anthropic_error_body,
    anthropic_error_frame,
    render_anthropic_error,
)
from rorqual_runtime.errors import ServingError, http_status

from rorqual_recipe.conversation import ImagePart, ParsedRequest
from rorqual_recipe.documents import reading_weight
from rorqual_recipe.images import num_extra_tokens
from rorqual_recipe.problems import MAX_TEXT_CHARS, Problem, RequestRefused, clip, model_not_found
from rorqual_recipe.protocols.base import AnswerFacts, EventWriter, ParseLimits, RenderedError
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.protocols.messages.body import MessageBody
from rorqual_recipe.protocols.messages.request import (
    parse_count_tokens_request,
    parse_messages_request,
)
from rorqual_recipe.protocols.messages.stream import MessageStream
from rorqual_recipe.tokens.segments import encode_segments

MAX_PROBLEMS = 20


class _AnthropicErrors:
    """Errors in Anthropic's shape."""

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """All problems, up to a bound, in one error; its own status when there is just one."""
        status = http_status(problems[0].code) if len(problems) == 1 else 400
        sentences = [_sentence(problem) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            sentences.append(f"and {len(problems) - MAX_PROBLEMS} more problems")
        body = anthropic_error_body(status, "; ".join(sentences))
        return RenderedError(status, body, sse_frames=anthropic_error_frame(body))

    def render_error(self, error: ServingError) -> RenderedError:
        """See ProtocolAdapter.render_error."""
        status, body, retry_after_s = render_anthropic_error(error)
        return RenderedError(status, body, retry_after_s, anthropic_error_frame(body))


def _sentence(problem: Problem) -> str:
    """The sentence names the field: this shape has no place of its own for it."""
    text = problem.text()
    return text if problem.param in text else clip(f"{problem.param}: {text}", MAX_TEXT_CHARS)


class Messages(_AnthropicErrors):
    """ProtocolAdapter of `/v1/messages`."""

    def parse(self, body: bytes, limits: ParseLimits) -> ParsedRequest:
        """See ProtocolAdapter.parse."""
        return parse_messages_request(body, limits)

    def make_writer(self, facts: AnswerFacts, parsed: ParsedRequest) -> EventWriter:
        """See ProtocolAdapter.make_writer."""
        return MessageStream(facts, parsed) if parsed.stream else MessageBody(facts, parsed)


class CountTokens(_AnthropicErrors):
    """DirectProtocol of `/v1/messages/count_tokens`."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer."""

        def work() -> tuple[int, Sequence[ImagePart]]:
            parsed = parse_count_tokens_request(body, services.limits)
            if parsed.model != services.model.model_id:
                raise RequestRefused([model_not_found(parsed.model, [services.model.model_id])])
            rendered = services.model.encoding.render(parsed.conversation)
            ids = encode_segments(rendered.segments, services.model.encoder)
            return len(ids), rendered.images

        num_tokens, images = await services.compute(work, reading_weight(body))
        num_tokens += await num_extra_tokens(images, services.prepare_images)
        return 200, json.dumps({"input_tokens": num_tokens}).encode()
