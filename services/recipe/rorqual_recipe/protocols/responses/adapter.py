"""ProtocolAdapter of `/v1/responses`."""

from collections.abc import Awaitable, Sequence

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.problems import Problem
from rorqual_recipe.protocols.base import AnswerFacts, EventWriter, ParseLimits, RenderedError
from rorqual_recipe.protocols.direct import RequestContext
from rorqual_recipe.protocols.responses.echo import ResponsesEcho
from rorqual_recipe.protocols.responses.errors import render_refusal, render_serving_error
from rorqual_recipe.protocols.responses.memory import keep, look_up
from rorqual_recipe.protocols.responses.parse import parse_responses_request
from rorqual_recipe.protocols.responses.prior import Prior
from rorqual_recipe.protocols.responses.stream import (
    ResponseBody,
    ResponseEvents,
    ResponseWriter,
)


class Responses:
    """A protocol whose answers may be kept, and continued."""

    async def prepare(self, body: bytes, context: RequestContext) -> Prior:
        """See RemembersAnswers.prepare."""
        return await look_up(body, context)

    def parse(self, body: bytes, limits: ParseLimits) -> ParsedRequest:
        """See ProtocolAdapter.parse."""
        return parse_responses_request(body, limits)

    def completed(
        self, writer: EventWriter, parsed: ParsedRequest, context: RequestContext
    ) -> Awaitable[None] | None:
        """See RemembersAnswers.completed."""
        echo: ResponsesEcho = parsed.echo
        final = writer.final if isinstance(writer, ResponseWriter) else None
        memory = context.services.memory
        if not echo.store or final is None or memory is None:
            return None
        return keep(memory, final, echo, context.tenant)

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """See ProtocolAdapter.render_refusal."""
        return render_refusal(problems)

    def render_error(self, error: ServingError) -> RenderedError:
        """See ProtocolAdapter.render_error."""
        return render_serving_error(error)

    def make_writer(self, facts: AnswerFacts, parsed: ParsedRequest) -> EventWriter:
        """See ProtocolAdapter.make_writer."""
        return ResponseEvents(facts, parsed) if parsed.stream else ResponseBody(facts, parsed)
