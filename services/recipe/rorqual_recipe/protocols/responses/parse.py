"""Responses body -> ParsedRequest, with every problem of the body at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    Message,
    OutputConstraint,
    ParsedRequest,
    Role,
    SamplingOptions,
    TextPart,
    Thinking,
    Tool,
    ToolChoice,
)
from rorqual_recipe.json_text import compact_json
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.cache_ttl import read_cache_ttl
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.paths import read_json_object
from rorqual_recipe.protocols.responses.content import ContentReader
from rorqual_recipe.protocols.responses.echo import ResponsesEcho, echoed_fields
from rorqual_recipe.protocols.responses.input import InputReader, PlacedItem, placed_items
from rorqual_recipe.protocols.responses.prior import NO_PRIOR, NO_STORE, Prior, items_to_keep
from rorqual_recipe.protocols.responses.schema import (
    JsonSchemaFormat,
    PlainFormat,
    ResponsesRequest,
)
from rorqual_recipe.protocols.responses.tool_choice import ToolChoiceReader
from rorqual_recipe.protocols.responses.tools import DeclaredTools, ToolReader
from rorqual_recipe.protocols.service_tier import read_service_tier, tier_of
from rorqual_recipe.sealing import SealBroken, Sealer

_LOGPROBS = "message.output_text.logprobs"
_SEALED_REASONING = "reasoning.encrypted_content"
_INCLUDABLE = frozenset(
    {
        *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
        *("message.input_image.image_url", "computer_call_output.output.image_url"),
        *("code_interpreter_call.outputs", _SEALED_REASONING, _LOGPROBS),
    }
)
_EFFORTS: dict[str, Effort] = {
    **{effort.value: effort for effort in Effort},
    "ultra": Effort.MAX,
}


def parse_responses_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused with every problem found."""
    return _Parser(read_json_object(body), limits).parse()


class _Parser:
    """One body being read. Members of a wrong type count as absent, so that the rest is read."""

    def __init__(self, value: dict[str, Any], limits: ParseLimits) -> None:
        self._value = value
        self._notes = Notes()
        self._limits = limits
        self._prior: Prior = limits.prior or NO_PRIOR
        self._notes.problems += self._prior.problems
        self._request = self._typed_request()
        self._priority = read_service_tier(self._request.service_tier, self._notes)
        self._content = ContentReader(
            self._notes, model=self._request.model, has_vision=limits.has_vision
        )

    def parse(self) -> ParsedRequest:
        request, notes = self._request, self._notes
        self._refuse_what_is_not_offered()
        self._warn_of_changes()
        reader = ToolReader(notes)
        declared = reader.declare(request.tools)
        items = placed_items(request.input, self._prior.known_items, notes)
        messages = self._messages(items, reader)
        choice = ToolChoiceReader(
            notes, declared, parallel=request.parallel_tool_calls is not False
        ).read(request.tool_choice)
        text_format, constraint = self._text_format(messages)
        thinking = self._thinking()
        cache_ttl_s = read_cache_ttl(request.cache_ttl, self._limits, notes)
        if notes.problems:
            raise RequestRefused(notes.problems)
        conversation = _conversation(messages, declared, choice, thinking, constraint)
        return self._parsed(conversation, self._echo(items, text_format, declared), cache_ttl_s)

    def _typed_request(self) -> ResponsesRequest:
        found = self._notes.typed(ResponsesRequest, self._value, "")
        if found is not None:
            return found
        params = (problem.param for problem in self._notes.problems)
        wrong = {param.partition(".")[0].partition("[")[0] for param in params}
        rest = {name: field for name, field in self._value.items() if name not in wrong}
        return ResponsesRequest.model_validate({"model": "", **rest})

    def _messages(self, items: Sequence[PlacedItem], tools: ToolReader) -> list[Message]:
        request, notes = self._request, self._notes
        earlier = [PlacedItem("previous_response_id", item) for item in self._prior.history]
        reader = InputReader(notes, self._content, tools, self._prior.open_seal)
        messages = reader.read([*earlier, *items])
        if request.instructions:
            system = Message(Role.SYSTEM, (TextPart(request.instructions),))
            messages.insert(0, system)
        if not messages and not notes.problems:
            notes.problem("input", "field required")
        return messages

    def _refuse_what_is_not_offered(self) -> None:
        request, notes = self._request, self._notes
        if request.background:
            notes.unsupported("background", "not supported; leave it out")
        for name in ("conversation", "prompt", "context_management", "moderation"):
            if getattr(request, name) not in (None, []):
                notes.unsupported(name, "not supported; leave it out")
        for index, name in enumerate(request.include or ()):
            if name not in _INCLUDABLE:
                known = ", ".join(sorted(_INCLUDABLE))
                notes.problem(f"include[{index}]", f"unknown; known are {known}")

    def _warn_of_changes(self) -> None:
        request, notes = self._request, self._notes
        if request.top_p == 0:
            notes.warn("top_p", "0 was taken as temperature 0")
        if request.text and request.text.verbosity in ("low", "high"):
            notes.warn("text.verbosity", "has no effect on this model")
        if request.reasoning and (request.reasoning.summary or request.reasoning.generate_summary):
            notes.warn("reasoning.summary", "no summary is made; the reasoning itself is shown")
        if request.stream_options and not request.stream:
            notes.warn("stream_options", "ignored without stream")
        elif request.stream_options and request.stream_options.include_obfuscation:
            notes.warn("stream_options.include_obfuscation", "ignored, nothing is obfuscated")
        why_not = self._prior.why_not_stored
        if why_not and (request.store or (request.store is None and why_not != NO_STORE)):
            notes.warn("store", why_not)

    def _thinking(self) -> Thinking:
        options = self._request.reasoning
        if options is None:
            return Thinking()
        effort, budget = options.effort, options.budget_tokens
        if effort is None:
            return Thinking(budget_tokens=budget)
        if isinstance(effort, int) and not isinstance(effort, bool) and 1 <= effort <= 100:
            return Thinking(True, effort_percent=effort, budget_tokens=budget)
        if effort == "none":
            return Thinking(enabled=False)
        if not isinstance(effort, str) or effort not in _EFFORTS:
            words = ", ".join(("none", *_EFFORTS))
            self._notes.problem("reasoning.effort", f"must be one of {words}, or a number 1 to 100")
            return Thinking()
        return Thinking(True, _EFFORTS[effort], budget)

    def _text_format(
        self, messages: Sequence[Message]
    ) -> tuple[Mapping[str, Any], OutputConstraint | None]:
        given = self._request.text.format if self._request.text else None
        if given is None:
            return {"type": "text"}, None
        if given.get("type") == "json_schema":
            shape = self._notes.typed(JsonSchemaFormat, given, "text.format")
            if shape is None:
                return given, None
            self._notes.problems += schema_problems(shape.json_schema, "text.format.schema")
            return given, _schema_constraint(shape)
        plain = self._notes.typed(PlainFormat, given, "text.format")
        if plain is None or plain.type == "text":
            return given, None
        if not any(_mentions_json(message) for message in messages):
            self._notes.problem(
                "input", "must contain the word 'json' to use text.format of type json_object"
            )
        return given, OutputConstraint(ConstraintKind.JSON_OBJECT, param="text.format")

    def _echo(
        self, items: Sequence[PlacedItem], text_format: Mapping[str, Any], declared: DeclaredTools
    ) -> ResponsesEcho:
        request, prior = self._request, self._prior
        store = request.store is not False and not prior.why_not_stored
        kept = items_to_keep(prior, [item.value for item in items]) if store else []
        include = request.include or ()
        tier = tier_of(self._priority, usual="default")
        return ResponsesEcho(
            fields=echoed_fields(request, text_format, tier, store=store, notes=self._notes),
            items=kept,
            num_earlier=len(prior.history),
            store=store,
            sealer=self._sealer() if _SEALED_REASONING in include else None,
            binding=prior.binding,
            shows_logprobs=_LOGPROBS in include or request.top_logprobs is not None,
            searches_tools=declared.searches_tools,
        )

    def _sealer(self) -> Sealer | None:
        try:
            return self._prior.working_sealer()
        except SealBroken as err:
            self._notes.warn("include", str(err))
            return None

    def _parsed(
        self, conversation: Conversation, echo: ResponsesEcho, cache_ttl_s: int
    ) -> ParsedRequest:
        request = self._request
        return ParsedRequest(
            model=request.model,
            conversation=conversation,
            sampling=_sampling(request, logprobs=echo.shows_logprobs),
            stream=bool(request.stream),
            include_usage=True,
            cache_salt=request.cache_salt or "",
            cache_ttl_s=cache_ttl_s,
            warnings=self._notes.warnings,
            prompt_param="input",
            truncates=request.truncation == "auto",
            echo=echo,
            priority=self._priority,
        )


def _conversation(
    messages: Sequence[Message],
    declared: DeclaredTools,
    choice: ToolChoice,
    thinking: Thinking,
    constraint: OutputConstraint | None,
) -> Conversation:
    tools: tuple[Tool, ...] = tuple(declared.tools)
    return Conversation(tuple(messages), tools, choice, thinking, constraint)


def _schema_constraint(shape: JsonSchemaFormat) -> OutputConstraint:
    source = compact_json(shape.json_schema)
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, source, param="text.format.schema")


def _mentions_json(message: Message) -> bool:
    return any(isinstance(part, TextPart) and "json" in part.text.lower() for part in message.parts)


def _sampling(request: ResponsesRequest, *, logprobs: bool) -> SamplingOptions:
    return SamplingOptions(
        temperature=0.0 if request.top_p == 0 else request.temperature,
        top_p=None if request.top_p == 0 else request.top_p,
        top_k=None if request.top_k is None else max(request.top_k, 0),
        min_p=request.min_p,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        seed=request.seed,
        max_tokens=request.max_output_tokens,
        max_tokens_param="max_output_tokens",
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        top_logprobs=request.top_logprobs or 0,
    )
