"""Messages body -> ParsedRequest, with every problem of the body at once."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    OutputConstraint,
    ParsedRequest,
    SamplingOptions,
    Thinking,
)
from rorqual_recipe.problems import RequestRefused, clip
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.cache_ttl import read_cache_ttl
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.json_spelling import SpelledValues
from rorqual_recipe.protocols.messages.parts import PartReader
from rorqual_recipe.protocols.messages.schema import (
    MAX_MESSAGES,
    CountTokensRequest,
    MessagesRequest,
)
from rorqual_recipe.protocols.messages.thinking_signature import ThinkingSigner
from rorqual_recipe.protocols.messages.tools import ToolReader
from rorqual_recipe.protocols.messages.turns import TurnReader
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.paths import read_json_object, validate
from rorqual_recipe.protocols.service_tier import read_service_tier

Request = TypeVar("Request", bound=CountTokensRequest)

MAX_STOP_CHARS = 1000
_INPUT_STEPS = ("messages", "*", "content", "*", "input")
_EFFORTS = {
    "minimal": Effort.MINIMAL,
    "low": Effort.LOW,
    "medium": Effort.MEDIUM,
    "high": Effort.HIGH,
    "xhigh": Effort.XHIGH,
    "ultra": Effort.MAX,
    "max": Effort.MAX,
}


def parse_messages_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused with every problem found."""
    notes = Notes()
    request, conversation = _read(MessagesRequest, body, limits, notes)
    cache_ttl_s = 0
    if request is not None:
        _note_fields(request, notes)
        cache_ttl_s = read_cache_ttl(request.cache_ttl, limits, notes)
    if request is None or conversation is None or notes.problems:
        raise RequestRefused(notes.problems)
    return ParsedRequest(
        model=request.model,
        conversation=conversation,
        sampling=_sampling(request),
        stop=tuple(request.stop_sequences or ()),
        stream=bool(request.stream),
        include_usage=True,
        cache_salt=request.cache_salt or "",
        cache_ttl_s=cache_ttl_s,
        warnings=notes.warnings,
        priority=read_service_tier(request.service_tier, notes),
    )


def parse_count_tokens_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """What is to be counted, as a request. Raises: RequestRefused with every problem found."""
    notes = Notes()
    request, conversation = _read(CountTokensRequest, body, limits, notes)
    if request is None or conversation is None or notes.problems:
        raise RequestRefused(notes.problems)
    return ParsedRequest(request.model, conversation, SamplingOptions())


def _read(
    model: type[Request], body: bytes, limits: ParseLimits, notes: Notes
) -> tuple[Request | None, Conversation | None]:
    """Fields and conversation; where one is wrong, the other is read all the same."""
    value = read_json_object(body)
    request, problems = validate(model, value)
    notes.problems += problems
    if request is not None:
        notes.warn_unknown("", list(request.model_extra or ()))
    return request, _conversation(body, value, request, limits, notes)


def _conversation(
    body: bytes,
    value: dict[str, Any],
    request: CountTokensRequest | None,
    limits: ParseLimits,
    notes: Notes,
) -> Conversation | None:
    model = value.get("model")
    reader = PartReader(notes, limits, clip(model, 64) if isinstance(model, str) else "")
    tool_reader = ToolReader(notes, drop_server_tools=limits.drop_server_tools)
    raw_messages = _list(value.get("messages"))
    if len(raw_messages) > MAX_MESSAGES:  # one problem is enough for them
        raw_messages = []
    tools = tool_reader.tools(_list(value.get("tools")))
    spellings = _spellings(body) if _holds_calls(raw_messages) else {}
    turns = TurnReader(reader, tools, spellings, ThinkingSigner(limits.signing_key))
    if request is None:
        turns.turns(raw_messages)
        return None
    messages = (*turns.system(request.system), *turns.turns(raw_messages))
    _note_unsupported(request, notes)
    conversation = Conversation(
        messages=messages,
        tools=tuple(tools.values()),
        tool_choice=tool_reader.choice(request.tool_choice, tuple(tools)),
        thinking=_thinking(request),
        response_format=_response_format(request, notes),
    )
    return conversation if messages else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _holds_calls(messages: Sequence[Any]) -> bool:
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    blocks = (block for content in contents for block in _list(content))
    return any(isinstance(block, dict) and block.get("input") for block in blocks)


def _spellings(body: bytes) -> dict[str, str]:
    return SpelledValues(body.decode("utf-8")).find(*_INPUT_STEPS)


def _note_unsupported(request: CountTokensRequest, notes: Notes) -> None:
    if request.container is not None:
        notes.unsupported("container", "containers are not supported")
    if request.mcp_servers:
        notes.unsupported("mcp_servers", "servers of tools are not called here")
    if request.thinking and request.thinking.display:
        notes.warn("thinking.display", "thinking is shown as it is")
    if request.thinking and request.thinking.type == "between_tools":
        notes.warn("thinking.type", "between_tools was taken as adaptive")


def _note_fields(request: MessagesRequest, notes: Notes) -> None:
    for index, stop in enumerate(request.stop_sequences or ()):
        if not stop:
            notes.problem(f"stop_sequences[{index}]", "must not be empty")
        if len(stop) > MAX_STOP_CHARS:
            notes.problem(f"stop_sequences[{index}]", f"at most {MAX_STOP_CHARS} characters")
    if request.speed == "fast":
        notes.warn("speed", "there is one speed here")
    if request.top_p == 0:
        notes.warn("top_p", "0 was taken as temperature 0")


def _sampling(request: MessagesRequest) -> SamplingOptions:
    return SamplingOptions(
        temperature=0.0 if request.top_p == 0 else request.temperature,
        top_p=None if request.top_p == 0 else request.top_p,
        top_k=request.top_k,
        max_tokens=request.max_tokens,
        lowers_max_tokens=True,
    )


def _thinking(request: CountTokensRequest) -> Thinking:
    """`thinking.type` counts more than an effort; an effort alone is a wish to think."""
    word = request.output_config.effort if request.output_config else None
    effort = _EFFORTS.get(word or "")
    wish = request.thinking
    if wish is None:
        return Thinking(enabled=None if word is None else word != "none", effort=effort)
    if wish.type == "disabled":
        return Thinking(enabled=False)
    return Thinking(enabled=True, effort=effort, budget_tokens=wish.budget_tokens)


def _response_format(request: CountTokensRequest, notes: Notes) -> OutputConstraint | None:
    shape = request.output_config.format if request.output_config else None
    owner = "output_config.format"
    if shape is None and request.output_format is not None:
        shape, owner = request.output_format, "output_format"
        notes.warn(owner, "taken as output_config.format")
    if shape is None:
        return None
    notes.problems += schema_problems(shape.json_schema, f"{owner}.schema")
    source = json.dumps(shape.json_schema, ensure_ascii=False)
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, source, f"{owner}.schema")
