"""Chat Completions body -> ParsedRequest, with every problem of the body at once."""

import json
import re
from collections.abc import Iterator
from itertools import islice
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
from rorqual_recipe.problems import Problem, RequestRefused, clip, unsupported
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat_schema import ChatMessage, ChatRequest, ContentPart
from rorqual_recipe.protocols.paths import read_json_object, validate

MAX_STOP_CHARS = 1000
MAX_WARNINGS = 16
MAX_WARNING_CHARS = 200
_IMAGE_PARTS = ("image_url", "input_image", "image")
_NEUTRAL_TOOL_CHOICES = (None, "none", "auto")
_WITHOUT_EFFECT = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": _NEUTRAL_TOOL_CHOICES,
    "functions": (None, []),
    "function_call": _NEUTRAL_TOOL_CHOICES,
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "min_tokens": (None, 0),
    "stop_token_ids": (None, []),
}


def parse_chat_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused with every problem found."""
    value = read_json_object(body)
    request, problems = validate(ChatRequest, value)
    if request is None:
        raise RequestRefused([*problems, *_problems_of_the_valid_rest(value, problems, limits)])
    problems += _unsupported_fields(request)
    problems += _cross_field_problems(request, limits)
    messages = [
        _message(index, message, request.model, limits, problems)
        for index, message in enumerate(request.messages)
    ]
    if problems:
        raise RequestRefused(problems)
    return ParsedRequest(
        model=request.model,
        conversation=Conversation(tuple(messages), response_format=_constraint(request)),
        sampling=_sampling(request),
        stop=_stop_strings(request),
        num_choices=request.n or 1,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        cache_salt=request.cache_salt or "",
        warnings=[clip(w, MAX_WARNING_CHARS) for w in islice(_warnings(request), MAX_WARNINGS)],
    )


def _problems_of_the_valid_rest(
    value: dict[str, Any], known: list[Problem], limits: ParseLimits
) -> list[Problem]:
    """What is wrong beyond the types, in the fields and messages whose types are right."""
    wrong_fields = {re.split(r"[.\[]", problem.param)[0] for problem in known}
    rest = {name: field for name, field in value.items() if name not in wrong_fields}
    model = value["model"] if isinstance(value.get("model"), str) else ""
    placeholder = {"model": model, "messages": [{"role": "user", "content": ""}]}
    request, _ = validate(ChatRequest, {**rest, **placeholder})
    found: list[Problem] = []
    if request is not None:
        found += _unsupported_fields(request)
        found += _cross_field_problems(request, limits)
    messages = value.get("messages")
    for index, raw in enumerate(messages if isinstance(messages, list) else ()):
        message = validate(ChatMessage, raw)[0] if isinstance(raw, dict) else None
        if message is not None:
            _message(index, message, model, limits, found)
    return found


def _unsupported_fields(request: ChatRequest) -> Iterator[Problem]:
    for name, harmless in _WITHOUT_EFFECT.items():
        if getattr(request, name) not in harmless:
            yield unsupported(name, "not supported yet; leave it out")


def _cross_field_problems(request: ChatRequest, limits: ParseLimits) -> Iterator[Problem]:
    if (request.n or 1) > limits.max_choices:
        yield Problem("n", f"at most {limits.max_choices}")
    if request.top_logprobs and not request.logprobs:
        yield Problem("top_logprobs", "needs logprobs to be true")
    yield from _stop_problems(request.stop)
    shape = request.response_format
    if shape and shape.type == "json_schema" and shape.json_schema is None:
        yield Problem("response_format.json_schema", "field required with type json_schema")


def _stop_problems(stop: str | list[str] | None) -> Iterator[Problem]:
    if isinstance(stop, str):
        named = [("stop", stop)]
    else:
        named = [(f"stop[{index}]", entry) for index, entry in enumerate(stop or ())]
    for path, entry in named:
        if not entry and path != "stop":
            yield Problem(path, "must not be empty")
        if len(entry) > MAX_STOP_CHARS:
            yield Problem(path, f"at most {MAX_STOP_CHARS} characters")


def _message(
    index: int, message: ChatMessage, model: str, limits: ParseLimits, problems: list[Problem]
) -> Message:
    path = f"messages[{index}]"
    if message.tool_calls:
        problems.append(unsupported(f"{path}.tool_calls", "tool calls are not supported yet"))
    if message.function_call:
        problems.append(unsupported(f"{path}.function_call", "tool calls are not supported yet"))
    role = Role.SYSTEM if message.role == "developer" else Role(message.role)
    if message.content is None and role is not Role.ASSISTANT:
        problems.append(Problem(f"{path}.content", "field required"))
    return Message(
        role=role,
        parts=tuple(_parts(f"{path}.content", message, model, limits, problems)),
        name=message.name,
        tool_call_id=message.tool_call_id,
    )


def _parts(
    path: str, message: ChatMessage, model: str, limits: ParseLimits, problems: list[Problem]
) -> Iterator[TextPart]:
    if message.content is None:
        return
    if isinstance(message.content, str):
        yield TextPart(message.content)
        return
    if not message.content:
        problems.append(Problem(path, "must hold at least one part"))
    for index, part in enumerate(message.content):
        problem = _part_problem(f"{path}[{index}]", part, model, limits)
        if problem:
            problems.append(problem)
        else:
            yield TextPart(part.text or part.refusal or "")


def _part_problem(path: str, part: ContentPart, model: str, limits: ParseLimits) -> Problem | None:
    if part.type == "text":
        return None if part.text is not None else Problem(f"{path}.text", "field required")
    if part.type == "refusal":
        return None if part.refusal is not None else Problem(f"{path}.refusal", "field required")
    if part.type in _IMAGE_PARTS:
        reason = "images are not supported yet" if limits.has_vision else "has no vision tower"
        return unsupported(path, f"model {model} {reason}; send text parts only")
    if part.type in ("input_audio", "file", "video_url"):
        return unsupported(path, f"parts of type {part.type} are not supported")
    return Problem(f"{path}.type", f"unknown part type {part.type!r}")


def _sampling(request: ChatRequest) -> SamplingOptions:
    by_new_name = request.max_completion_tokens is not None
    return SamplingOptions(
        temperature=0.0 if request.top_p == 0 else request.temperature,
        top_p=None if request.top_p == 0 else request.top_p,
        top_k=None if request.top_k is None else max(request.top_k, 0),
        min_p=request.min_p,
        seed=request.seed,
        max_tokens=request.max_completion_tokens if by_new_name else request.max_tokens,
        max_tokens_param="max_completion_tokens" if by_new_name else "max_tokens",
        ignore_eos=bool(request.ignore_eos),
        logprobs=bool(request.logprobs),
        top_logprobs=request.top_logprobs or 0,
    )


def _stop_strings(request: ChatRequest) -> tuple[str, ...]:
    if isinstance(request.stop, str):
        return (request.stop,) if request.stop else ()
    return tuple(request.stop or ())


def _constraint(request: ChatRequest) -> OutputConstraint | None:
    shape = request.response_format
    if shape is None or shape.type == "text":
        return None
    if shape.type == "json_object" or shape.json_schema is None:
        return OutputConstraint(ConstraintKind.JSON_OBJECT)
    schema = json.dumps(shape.json_schema.json_schema, ensure_ascii=False)
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, schema)


def _warnings(request: ChatRequest) -> Iterator[str]:
    for name in request.model_extra or ():
        yield f"{name}: unknown field, ignored"
    for index, message in enumerate(request.messages):
        for name in message.model_extra or ():
            yield f"messages[{index}].{name}: unknown field, ignored"
    if request.top_p == 0:
        yield "top_p: 0 was taken as temperature 0"
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        yield "max_tokens: ignored, max_completion_tokens was given too"
    if request.stream_options and not request.stream:
        yield "stream_options: ignored without stream"
