"""Chat Completions body -> ParsedRequest, with every problem of the body at once."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Message,
    OutputConstraint,
    ParsedRequest,
    Role,
    SamplingOptions,
    TextPart,
)
from rorqual_recipe.problems import Problem, RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.cache_ttl import read_cache_ttl
from rorqual_recipe.protocols.chat.content import ContentReader
from rorqual_recipe.protocols.chat.echo import ChatEcho
from rorqual_recipe.protocols.chat.messages import MessageReader
from rorqual_recipe.protocols.chat.sampling import read_sampling, read_stops, read_thinking
from rorqual_recipe.protocols.chat.schema import ChatRequest
from rorqual_recipe.protocols.chat.tools import ToolChoiceReader, ToolReader
from rorqual_recipe.protocols.media import MediaReader
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.output_shape import ShapeReader
from rorqual_recipe.protocols.paths import read_json_object, validate
from rorqual_recipe.protocols.service_tier import read_service_tier

_WITHOUT_EFFECT = {
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "echo": (None, False),
}
_JSON_WORD = re.compile("json", re.IGNORECASE)


def parse_chat_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused with every problem found."""
    return parse_chat_value(read_json_object(body), limits)


def parse_chat_value(value: dict[str, Any], limits: ParseLimits) -> ParsedRequest:
    """As parse_chat_request, of a body that is JSON already."""
    request, problems = validate(ChatRequest, value)
    if request is None:
        raise RequestRefused([*problems, *_problems_of_the_valid_rest(value, problems, limits)])
    notes = Notes()
    parsed = _read(request, limits, notes)
    if notes.problems:
        raise RequestRefused(notes.problems)
    return parsed


def _problems_of_the_valid_rest(
    value: dict[str, Any], known: list[Problem], limits: ParseLimits
) -> list[Problem]:
    """What is wrong beyond the types, in the fields whose types are right."""
    wrong_fields = {re.split(r"[.\[]", problem.param)[0] for problem in known}
    rest = {name: field for name, field in value.items() if name not in wrong_fields}
    placeholder = {"model": "", "messages": [{"role": "user", "content": "json"}]}
    request, _ = validate(ChatRequest, {**placeholder, **rest})
    notes = Notes()
    if request is not None:
        _read(request, limits, notes)
    return notes.problems


def _read(request: ChatRequest, limits: ParseLimits, notes: Notes) -> ParsedRequest:
    notes.warn_unknown("", list(request.model_extra or ()))
    _refuse_unsupported(request, notes)
    tools = ToolReader(notes).read(request)
    shape = ShapeReader(notes).read(request)
    messages = _messages(request, limits, notes)
    _check_prefix(request, messages, shape, notes)
    if shape is not None and shape.kind is ConstraintKind.JSON_OBJECT:
        _check_json_word(messages, shape, notes)
    return ParsedRequest(
        model=request.model,
        conversation=Conversation(
            messages,
            tools=tools,
            tool_choice=ToolChoiceReader(notes, tools, request).read(request),
            thinking=read_thinking(request, notes),
            response_format=shape,
        ),
        sampling=_sampling(request, limits, notes),
        stop=read_stops(request.stop, notes),
        num_choices=request.n or 1,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        cache_salt=request.cache_salt or "",
        cache_ttl_s=read_cache_ttl(request.cache_ttl, limits, notes),
        warnings=notes.warnings,
        echo=ChatEcho(is_legacy=bool(request.functions and not request.tools)),
        priority=read_service_tier(request.service_tier, notes),
    )


def _refuse_unsupported(request: ChatRequest, notes: Notes) -> None:
    for name, harmless in _WITHOUT_EFFECT.items():
        if getattr(request, name) not in harmless:
            notes.unsupported(name, "not supported; leave it out")
    if request.verbosity not in (None, "medium"):
        notes.warn("verbosity", "not shown to the model")
    if request.prediction is not None:
        notes.warn("prediction", "not used; the answer is the same without")


def _messages(request: ChatRequest, limits: ParseLimits, notes: Notes) -> tuple[Message, ...]:
    media = MediaReader(notes, model=request.model, has_vision=limits.has_vision)
    messages = MessageReader(notes, ContentReader(notes, media)).read(request.messages)
    if not request.continue_final_message:
        if request.add_generation_prompt is False:
            notes.unsupported("add_generation_prompt", "false needs continue_final_message")
        return messages
    if request.add_generation_prompt:
        notes.problem("add_generation_prompt", "must not be true with continue_final_message")
    if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls:
        reason = "the last message must be an assistant's, without calls"
        notes.problem("continue_final_message", reason)
        return messages
    return (*messages[:-1], replace(messages[-1], is_prefix=True))


def _check_prefix(
    request: ChatRequest,
    messages: Sequence[Message],
    shape: OutputConstraint | None,
    notes: Notes,
) -> None:
    """An answer that continues text can neither call tools nor be JSON from its first letter."""
    if not messages or not messages[-1].is_prefix or request.continue_final_message:
        return
    path = f"messages[{len(request.messages) - 1}].prefix"
    if request.tools or request.functions or any(m.role is Role.TOOL for m in messages):
        notes.problem(path, "must not be used with tools")
    elif messages[-1].tool_calls:
        notes.problem(path, "must not be used with tool_calls")
    if shape is not None and shape.kind is ConstraintKind.JSON_OBJECT:
        notes.problem(path, f"must not be used with {shape.param} json_object")


def _check_json_word(messages: Sequence[Message], shape: OutputConstraint, notes: Notes) -> None:
    """A model that is not told to write JSON may write white space for ever instead."""
    texts = (part.text for m in messages for part in m.parts if isinstance(part, TextPart))
    if shape.param == "response_format" and not any(map(_JSON_WORD.search, texts)):
        reason = "json_object needs the word json in one of the messages"
        notes.problem("response_format", reason)


def _sampling(request: ChatRequest, limits: ParseLimits, notes: Notes) -> SamplingOptions:
    if request.top_logprobs and not request.logprobs:
        notes.problem("top_logprobs", "needs logprobs to be true")
    new, old = request.max_completion_tokens, request.max_tokens
    if None not in (new, old) and new != old:
        notes.warn("max_tokens", "ignored, max_completion_tokens was given too")
    limit = old if new is None else new
    if limit is not None and (request.min_tokens or 0) > limit:
        notes.problem("min_tokens", "must not be above the largest number of tokens")
    return read_sampling(
        request,
        limits,
        notes,
        max_tokens=limit,
        max_tokens_param="max_tokens" if new is None else "max_completion_tokens",
        logprobs=bool(request.logprobs),
        top_logprobs=request.top_logprobs or 0,
    )
