"""Requests of generations for unit tests."""

from __future__ import annotations

from typing import Any

from rorqual_decode.generation import GenerationKey, GenerationSpec, OutputStream, SamplingSpec


def sampling_spec(**fields: Any) -> SamplingSpec:
    """Greedy, eight tokens, unless said otherwise."""
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 1,
        "max_new_tokens": 8,
        "stop_token_ids": frozenset(),
        "ignore_eos": False,
        "num_logprobs": None,
    }
    return SamplingSpec(**{**defaults, **fields})


def generation_spec(
    request_id: str = "r", recipe_id: str = "recipe-1", **sampling: Any
) -> GenerationSpec:
    return GenerationSpec(
        key=GenerationKey(request_id, 0),
        model="tiny",
        recipe_id=recipe_id,
        num_prompt_tokens=10,
        num_cached_tokens=0,
        sampling=sampling_spec(**sampling),
        cache_namespace="tenant",
        traffic_class=1,
        deadline_unix_s=0.0,
        submitted_unix_s=0.0,
    )


def output_stream(request_id: str = "r", recipe_id: str = "recipe-1", **sampling) -> OutputStream:
    return OutputStream(generation_spec(request_id, recipe_id, **sampling))
