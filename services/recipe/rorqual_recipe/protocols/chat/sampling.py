"""Sampling, stops and thinking as Chat Completions and Completions ask for them."""

import re
from collections.abc import Iterator
from typing import Any

from rorqual_recipe.conversation import Effort, SamplingOptions, Thinking
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat.schema import ChatRequest, SamplingFields
from rorqual_recipe.protocols.notes import Notes

MAX_STOP_CHARS = 1000
MAX_BIAS = 100
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
_EFFORTS = {**{effort.value: effort for effort in Effort}, "ultra": Effort.MAX}


def read_sampling(
    request: SamplingFields, limits: ParseLimits, notes: Notes, **wishes: object
) -> SamplingOptions:
    """Everything about sampling. wishes: fields that the protocols name differently."""
    _check(request, limits, notes)
    if request.top_p == 0:
        notes.warn("top_p", "0 was taken as temperature 0")
    fields: dict[str, object] = {
        "temperature": 0.0 if request.top_p == 0 else request.temperature,
        "top_p": None if request.top_p == 0 else request.top_p,
        "top_k": None if request.top_k is None else max(request.top_k, 0),
        "min_p": request.min_p,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "presence_penalty": request.presence_penalty or 0.0,
        "repetition_penalty": request.repetition_penalty or 1.0,
        "logit_bias": tuple(_biases(request, limits, notes)),
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens or 0,
        "ignore_eos": bool(request.ignore_eos),
    }
    return SamplingOptions(**{**fields, **wishes})  # type: ignore[arg-type]


def _check(request: SamplingFields, limits: ParseLimits, notes: Notes) -> None:
    if (request.n or 1) > limits.max_choices:
        notes.problem("n", f"at most {limits.max_choices}")
    if request.stream_options is not None and not request.stream:
        notes.problem("stream_options", "needs stream to be true")
    if request.stop_token_ids:
        notes.unsupported("stop_token_ids", "not supported; use stop")


def _biases(
    request: SamplingFields, limits: ParseLimits, notes: Notes
) -> Iterator[tuple[int, float]]:
    size = limits.vocabulary_size
    for key, bias in (request.logit_bias or {}).items():
        path = f"logit_bias.{key[:32]}"
        if not _TOKEN_ID.fullmatch(key):
            notes.problem(path, "must be a token id")
        elif size is not None and int(key) >= size:
            notes.problem(path, f"no such token: ids are below {size}")
        elif not -MAX_BIAS <= bias <= MAX_BIAS:
            notes.problem(path, f"must be from -{MAX_BIAS} to {MAX_BIAS}")
        else:
            yield int(key), bias


def read_stops(stop: str | list[str] | None, notes: Notes) -> tuple[str, ...]:
    """Stop strings."""
    if stop is None:
        return ()
    named = [("stop", stop)] if isinstance(stop, str) else _numbered(stop)
    for path, entry in named:
        if not entry:
            notes.problem(path, "must not be empty")
        elif len(entry) > MAX_STOP_CHARS:
            notes.problem(path, f"at most {MAX_STOP_CHARS} characters")
    return tuple(entry for _, entry in named)


def _numbered(stops: list[str]) -> list[tuple[str, str]]:
    return [(f"stop[{index}]", entry) for index, entry in enumerate(stops)]


def read_thinking(request: ChatRequest, notes: Notes) -> Thinking:
    """Whether and how long to think. `thinking.type` wins over an effort."""
    effort, percent, is_off = _effort(request.reasoning_effort, notes)
    enabled = _switch(request, notes)
    if enabled is None and is_off:
        enabled = False
    budget = request.thinking.budget_tokens if request.thinking else None
    if enabled is False:
        return Thinking(enabled=False)
    return Thinking(enabled, effort, budget, percent)


def _switch(request: ChatRequest, notes: Notes) -> bool | None:
    if request.thinking is not None:
        return request.thinking.type != "disabled"
    switches = request.chat_template_kwargs
    if switches is None:
        return None
    notes.warn_unknown("chat_template_kwargs", list(switches.model_extra or ()))
    return switches.thinking if switches.thinking is not None else switches.enable_thinking


def _effort(wish: Any, notes: Notes) -> tuple[Effort | None, int | None, bool]:
    """The effort as a word or as a number, and whether the wish was not to think at all."""
    if wish is None or wish == "none":
        return None, None, wish == "none"
    if isinstance(wish, int) and not isinstance(wish, bool) and 1 <= wish <= 100:
        return None, wish, False
    effort = _EFFORTS.get(wish) if isinstance(wish, str) else None
    if effort is None:
        words = ", ".join(["none", *_EFFORTS])
        notes.problem("reasoning_effort", f"must be one of {words}, or a number from 1 to 100")
    return effort, None, False
