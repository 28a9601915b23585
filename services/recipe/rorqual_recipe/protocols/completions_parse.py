"""Completions body -> ParsedRequest: prompts to be continued as they are."""

import re
from typing import Any

from rorqual_recipe.conversation import (
    Conversation,
    ParsedRequest,
    RawPrompt,
    SamplingOptions,
)
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.cache_ttl import read_cache_ttl
from rorqual_recipe.protocols.chat.sampling import read_sampling, read_stops
from rorqual_recipe.protocols.completions_schema import CompletionRequest
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.output_shape import ShapeReader
from rorqual_recipe.protocols.paths import read_json_object, validate

DEFAULT_MAX_TOKENS = 16
_WITHOUT_EFFECT = {
    "echo": (None, False),
    "suffix": (None, ""),
    "prompt_logprobs": (None, 0),
    "prompt_embeds": (None,),
}


def parse_completion_request(body: bytes, limits: ParseLimits) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused with every problem found."""
    value = read_json_object(body)
    request, problems = validate(CompletionRequest, value)
    notes = Notes(problems=list(problems))
    parsed = None
    if request is not None:
        parsed = _read(request, limits, notes)
    else:
        _read_valid_rest(value, limits, notes)
    if parsed is None or notes.problems:
        raise RequestRefused(notes.problems)
    return parsed


def _read_valid_rest(value: dict[str, Any], limits: ParseLimits, notes: Notes) -> None:
    """Notes what is wrong beyond the types, in the fields whose types are right."""
    wrong = {re.split(r"[.\[]", problem.param)[0] for problem in notes.problems}
    rest = {name: field for name, field in value.items() if name not in wrong}
    request, _ = validate(CompletionRequest, {"model": "", "prompt": "x", **rest})
    if request is not None:
        _read(request, limits, notes)


def _read(request: CompletionRequest, limits: ParseLimits, notes: Notes) -> ParsedRequest:
    notes.warn_unknown("", list(request.model_extra or ()))
    for name, harmless in _WITHOUT_EFFECT.items():
        if getattr(request, name) not in harmless:
            notes.unsupported(name, "not supported; leave it out")
    if request.best_of not in (None, request.n or 1):
        notes.unsupported("best_of", "not supported; use n")
    prompts = PromptReader(limits, notes).read(request.prompt)
    num_choices = len(prompts) * (request.n or 1)
    if len(prompts) > 1 and num_choices > limits.max_choices:
        notes.problem("prompt", f"prompts times n: at most {limits.max_choices}")
    return ParsedRequest(
        model=request.model,
        conversation=Conversation((), response_format=ShapeReader(notes).read(request)),
        sampling=_sampling(request, limits, notes),
        stop=read_stops(request.stop, notes),
        num_choices=max(num_choices, 1),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        cache_salt=request.cache_salt or "",
        cache_ttl_s=read_cache_ttl(request.cache_ttl, limits, notes),
        warnings=notes.warnings,
        raw_prompts=prompts,
        adds_special_tokens=request.add_special_tokens is not False,
        prompt_param="prompt",
    )


def _sampling(request: CompletionRequest, limits: ParseLimits, notes: Notes) -> SamplingOptions:
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if (request.min_tokens or 0) > limit:
        notes.problem("min_tokens", "must not be above the largest number of tokens")
    return read_sampling(
        request,
        limits,
        notes,
        max_tokens=limit,
        logprobs=request.logprobs is not None,
        top_logprobs=request.logprobs or 0,
    )


class PromptReader:
    """Reads a text, token ids, or a list of either; what is wrong is noted."""

    def __init__(self, limits: ParseLimits, notes: Notes) -> None:
        self._limits = limits
        self._notes = notes

    def read(self, prompt: Any, path: str = "prompt") -> tuple[RawPrompt, ...]:
        """The prompts, each a text or a tuple of ids."""
        if isinstance(prompt, str):
            return (prompt,)
        if not isinstance(prompt, list) or not prompt:
            self._notes.problem(path, "must be a text, token ids, or a list of either; not empty")
            return ()
        if all(type(entry) is int for entry in prompt):
            return (self.token_ids(prompt, path),)
        if len(prompt) > self._limits.max_choices:
            self._notes.problem(path, f"at most {self._limits.max_choices} prompts")
            return ()
        return tuple(self._one(entry, f"{path}[{index}]") for index, entry in enumerate(prompt))

    def _one(self, entry: Any, path: str) -> RawPrompt:
        if isinstance(entry, str):
            return entry
        if isinstance(entry, list) and entry and all(type(item) is int for item in entry):
            return self.token_ids(entry, path)
        self._notes.problem(path, "must be a text or a list of token ids, not empty")
        return ""

    def token_ids(self, ids: list[int], path: str) -> tuple[int, ...]:
        """Ids of the vocabulary."""
        size = self._limits.vocabulary_size
        least, greatest = min(ids, default=0), max(ids, default=0)
        if least < 0 or (size is not None and greatest >= size):
            wrong = next(i for i, token in enumerate(ids) if token < 0 or token >= (size or 0))
            bound = f"from 0 to {size - 1}" if size is not None else "0 or more"
            self._notes.problem(f"{path}[{wrong}]", f"no such token: ids are {bound}")
        return tuple(ids)
