"""One answer being written: items open and close, every step an event with its number."""

from collections.abc import Mapping, Sequence
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json, json_string
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.responses.echo import Outcome, ResponsesEcho, response_object
from rorqual_recipe.protocols.responses.open_items import (
    Emit,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from rorqual_recipe.protocols.responses.output import logprob_objects, usage_object
from rorqual_recipe.protocols.responses.prior import response_id_of
from rorqual_recipe.protocols.responses.tools import TOOL_SEARCH

MAX_OUTPUT_WARNINGS = 16
_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}


class Answer:
    """The state of one response; what happens is told through `emit`, in order."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest, emit: Emit) -> None:
        self._facts = facts
        self._echo: ResponsesEcho = parsed.echo
        self._emit = emit
        self._warnings = list(parsed.warnings)
        self._num_warnings_left = MAX_OUTPUT_WARNINGS
        self._done: list[dict[str, Any]] = []
        self._stray_logprobs: list[Any] = []
        self._open: OpenItem | None = None
        self._finish: FinishReason | None = None
        self._has_begun = False

    def take(self, events: Sequence[AnswerEvent]) -> None:
        """More of the answer."""
        self._begin()
        for event in events:
            self._take(event)

    def end(self, usage: TokenUsage) -> dict[str, Any]:
        """The answer is complete: the response object as it is kept."""
        self._begin()
        reason = _INCOMPLETE.get(self._finish) if self._finish else None
        self._close("incomplete" if reason else "completed")
        status = "incomplete" if reason else "completed"
        response = self._response(
            status,
            usage=usage_object(usage),
            incomplete_reason=reason,
            completed_at_unix_s=self._now_unix_s(),
        )
        self._emit(f"response.{status}", f'"response":{compact_json(response)}')
        return response

    def fail(self, error: Mapping[str, Any], usage: TokenUsage) -> dict[str, Any]:
        """The answer has failed: what there is of it, and why."""
        self._begin()
        self._close("incomplete")
        response = self._response("failed", usage=usage_object(usage), error=error)
        self._emit("response.failed", f'"response":{compact_json(response)}')
        return response

    def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        body = f'"response":{compact_json(self._response("in_progress"))}'
        self._emit("response.created", body)
        self._emit("response.in_progress", body)

    def _take(self, event: AnswerEvent) -> None:
        if isinstance(event, ContentDelta):
            self._text(event)
        elif isinstance(event, ReasoningDelta):
            self._thought(event)
        elif isinstance(event, ToolCallBegan):
            self._call(event)
        elif isinstance(event, ToolArgumentsDelta):
            if isinstance(self._open, OpenCall):
                self._open.add(event.text)
        elif isinstance(event, ToolCallEnded):
            self._call_ended(event)
        elif isinstance(event, OutputWarning):
            self._warn(event.message)
        elif isinstance(event, AnswerFinished):
            self._finish = event.reason

    def _text(self, event: ContentDelta) -> None:
        logprobs = self._logprobs(event)
        if not isinstance(self._open, OpenMessage):
            if not event.text:
                self._stray_logprobs += logprobs
                return
            self._close("completed")
            self._open = OpenMessage(self._item_id("msg"), len(self._done), self._emit)
            logprobs, self._stray_logprobs = [*self._stray_logprobs, *logprobs], []
        self._open.add(json_string(event.text), event.text, logprobs)

    def _thought(self, event: ReasoningDelta) -> None:
        if not isinstance(self._open, OpenReasoning):
            if not event.text:
                return
            self._close("completed")
            self._open = OpenReasoning(self._item_id("rs"), len(self._done), self._emit, self._seal)
        self._open.add(json_string(event.text), event.text, self._logprobs(event))

    def _call(self, event: ToolCallBegan) -> None:
        self._close("completed", before_call=True)
        kind, prefix = "function_call", "fc"
        if event.is_custom:
            kind, prefix = "custom_tool_call", "ctc"
        elif self._echo.searches_tools and event.name == TOOL_SEARCH and not event.namespace:
            kind, prefix = "tool_search_call", "tsc"
        call = {"call_id": event.call_id, "name": event.name}
        if event.namespace:
            call["namespace"] = event.namespace
        self._open = OpenCall(self._item_id(prefix), len(self._done), self._emit, kind, call)

    def _call_ended(self, event: ToolCallEnded) -> None:
        if event.problem and not event.is_cut:
            self._warn(f"output[{len(self._done)}]: {event.problem}")
        if isinstance(self._open, OpenCall):
            self._open.arguments = event.arguments
        self._close("incomplete" if event.is_cut else "completed")

    def _close(self, status: str, *, before_call: bool = False) -> None:
        item, self._open = self._open, None
        if item is not None:
            self._done.append(item.close(status, before_call=before_call))

    def _seal(self, text: str) -> str | None:
        echo = self._echo
        if echo.sealer is None:
            return None
        return echo.sealer.seal(text, echo.binding, self._facts.created_unix_s)

    def _logprobs(self, event: ContentDelta | ReasoningDelta) -> list[Any]:
        if not self._echo.shows_logprobs or not event.logprobs:
            return []
        return logprob_objects(event.logprobs, self._facts.vocabulary)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._facts.request_id}_{len(self._done)}"

    def _warn(self, message: str) -> None:
        if self._num_warnings_left:
            self._num_warnings_left -= 1
            self._warnings.append(message)

    def _now_unix_s(self) -> int:
        facts = self._facts
        return facts.created_unix_s if facts.clock is None else int(facts.clock())

    def _response(self, status: str, **facts: Any) -> dict[str, Any]:
        now = Outcome(status, output=self._done, warnings=self._warnings, **facts)
        return response_object(
            response_id_of(self._facts.request_id),
            self._facts.created_unix_s,
            self._facts.model,
            self._echo.fields,
            now,
        )
