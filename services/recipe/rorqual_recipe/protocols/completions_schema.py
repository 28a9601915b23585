"""Bodies of Completions as clients send them."""

from typing import Any

from pydantic import Field

from rorqual_recipe.protocols.chat.schema import SamplingFields


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`. Unknown fields are kept, and reported as warnings."""

    prompt: Any
    logprobs: int | None = Field(None, ge=0, le=20)
    add_special_tokens: bool | None = None

    # Known, not supported: refused when they would have an effect.
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1)
    prompt_logprobs: int | None = None
    prompt_embeds: Any = None
