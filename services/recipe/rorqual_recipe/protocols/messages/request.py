"""Messages body -> ParsedRequest, with every problem of the body at once."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    OutputConstraint,
    ParsedRequest,
    SamplingOptions,
    Thinking,
)
from rorqual_recipe.problems import Problem, RequestRefused, clip, unsupported
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.json_spelling import SpelledValues
from rorqual_recipe.protocols.messages.parts import PartReader
from rorqual_recipe.protocols.messages.schema import CountTokensRequest, JsonFormat, MessagesRequest
from rorqual_recipe.protocols.messages.thinking_signature import ThinkingSigner
from rorqual_recipe.protocols.messages.tools import ToolReader
from rorqual_recipe.protocols.messages.turns import TurnReader
from rorqual_recipe.protocols.paths import read_json_object, validate

MAX_STOP_CHARS = 1000
MAX_WARNINGS = 16
MAX_WARNING_CHARS = 200
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
    value = read_json_object(body)
    request, problems = validate(MessagesRequest, value)
    conversation, reader = _read_conversation(body, value, request, limits)
    problems = _in_order([*problems, *reader.problems, *_field_problems(request)])
    if request is None or conversation is None or problems:
        raise RequestRefused(problems)
    warnings = [*_field_warnings(request), *reader.warnings]
    return ParsedRequest(
        model=request.model,
        conversation=conversation,
        sampling=_sampling(request),
        stop=tuple(request.stop_sequences or ()),
        stream=bool(request.stream),
        include_usage=True,
        cache_salt=request.cache_salt or "",
        warnings=[clip(warning, MAX_WARNING_CHARS) for warning in warnings[:MAX_WARNINGS]],
    )


def parse_count_tokens_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """What is to be counted, as a request. Raises: RequestRefused with every problem found."""
    value = read_json_object(body)
    request, problems = validate(CountTokensRequest, value)
    conversation, reader = _read_conversation(body, value, request, limits)
    problems = _in_order([*problems, *reader.problems, *_field_problems(request)])
    if request is None or conversation is None or problems:
        raise RequestRefused(problems)
    return ParsedRequest(request.model, conversation, SamplingOptions())


def _read_conversation(
    body: bytes, value: dict[str, Any], request: CountTokensRequest | None, limits: ParseLimits
) -> tuple[Conversation | None, PartReader]:
    """The conversation, and the reader with all problems; reads on where other fields are wrong."""
    model = value.get("model")
    reader = PartReader(limits, clip(model, 64) if isinstance(model, str) else "")
    tool_reader = ToolReader(reader, drop_server_tools=limits.drop_server_tools)
    raw_tools, raw_messages = _list(value.get("tools")), _list(value.get("messages"))
    tools = tool_reader.tools(raw_tools)
    spellings = _spellings(body) if _holds_calls(raw_messages) else {}
    turns = TurnReader(reader, tools, spellings, ThinkingSigner(limits.signing_key))
    if request is None:
        turns.turns(raw_messages)
        return None, reader
    messages = (*turns.system(request.system), *turns.turns(raw_messages))
    conversation = Conversation(
        messages=messages,
        tools=tuple(tools.values()),
        tool_choice=tool_reader.choice(request.tool_choice, tuple(tools)),
        thinking=_thinking(request),
        response_format=_response_format(request),
    )
    return conversation if messages else None, reader


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Every problem once; what was found first stays first."""
    return list(dict.fromkeys(problems))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _holds_calls(messages: Sequence[Any]) -> bool:
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    blocks = (block for content in contents for block in _list(content))
    return any(isinstance(block, dict) and block.get("input") for block in blocks)


def _spellings(body: bytes) -> dict[str, str]:
    return SpelledValues(body.decode("utf-8")).find(*_INPUT_STEPS)


def _field_problems(request: CountTokensRequest | None) -> Iterator[Problem]:
    if request is None:
        return
    if request.container is not None:
        yield unsupported("container", "containers are not supported")
    if request.mcp_servers:
        yield unsupported("mcp_servers", "servers of tools are not called here")
    if not isinstance(request, MessagesRequest):
        return
    for index, stop in enumerate(request.stop_sequences or ()):
        if not stop:
            yield Problem(f"stop_sequences[{index}]", "must not be empty")
        if len(stop) > MAX_STOP_CHARS:
            yield Problem(f"stop_sequences[{index}]", f"at most {MAX_STOP_CHARS} characters")


def _field_warnings(request: MessagesRequest) -> Iterator[str]:
    for name in islice(request.model_extra or (), MAX_WARNINGS):
        yield f"{name}: unknown field, ignored"
    if request.top_p == 0:
        yield "top_p: 0 was taken as temperature 0"
    if request.thinking and request.thinking.display:
        yield "thinking.display: thinking is shown as it is"
    if _format(request) is request.output_format is not None:
        yield "output_format: taken as output_config.format"


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


def _format(request: CountTokensRequest) -> JsonFormat | None:
    asked = request.output_config.format if request.output_config else None
    return asked or request.output_format


def _response_format(request: CountTokensRequest) -> OutputConstraint | None:
    shape = _format(request)
    if shape is None:
        return None
    owner = "output_format" if shape is request.output_format else "output_config.format"
    source = json.dumps(shape.json_schema, ensure_ascii=False)
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, source, f"{owner}.schema")
