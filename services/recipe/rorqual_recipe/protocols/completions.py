"""The Completions protocol: a prompt is continued as it is."""

from collections.abc import Sequence

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.problems import Problem
from rorqual_recipe.protocols.base import AnswerFacts, EventWriter, ParseLimits, RenderedError
from rorqual_recipe.protocols.completions_answer import CompletionBody, CompletionChunks
from rorqual_recipe.protocols.completions_parse import parse_completion_request
from rorqual_recipe.protocols.openai_refusals import render_refusal, render_serving_error


class Completions:
    """ProtocolAdapter of `/v1/completions`."""

    def parse(self, body: bytes, limits: ParseLimits) -> ParsedRequest:
        """See ProtocolAdapter.parse."""
        return parse_completion_request(body, limits)

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """See ProtocolAdapter.render_refusal."""
        return render_refusal(problems)

    def render_error(self, error: ServingError) -> RenderedError:
        """See ProtocolAdapter.render_error."""
        return render_serving_error(error)

    def make_writer(self, facts: AnswerFacts, parsed: ParsedRequest) -> EventWriter:
        """See ProtocolAdapter.make_writer."""
        return CompletionChunks(facts, parsed) if parsed.stream else CompletionBody(facts, parsed)
