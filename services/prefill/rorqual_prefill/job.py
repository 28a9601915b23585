"""A prefill job in the service's own terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rorqual_policy.blocks import BLOCK_TOKENS, ImageSpan
from rorqual_runtime.windows import WindowPlace


class JobKey(NamedTuple):
    """Identity of one run of a generation across every service."""

    request_id: str
    choice_index: int
    run: int = 0
    """Higher where it goes on after a loss."""

    def __str__(self) -> str:
        return f"{self.request_id}/{self.choice_index}/{self.run}"


@dataclass(frozen=True, slots=True)
class JobImage:
    """An image of a prompt, its embeddings and its pixels by wire tickets; either may be empty."""

    span: ImageSpan
    embeddings: Any
    pixels: Any
    param: str


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to compute and hand over. Fields of type Any are wire values passed on unread."""

    key: JobKey
    model: str
    num_prompt_tokens: int
    """With the output of earlier runs."""
    max_new_tokens: int
    """Beyond that."""
    cache_namespace: str
    recipe_id: str
    deadline_unix_s: float
    """0 = none."""
    num_matched_blocks: int
    """Stored prefix as kvmeta believed at submit time: a hint."""
    kv_lease_id: str
    submitted_unix_s: float
    prompt: Any
    generation: Any
    compiled_grammar: Any
    num_exact_blocks: int = 0
    """Of the matched blocks, before the first one behind a replay."""
    miss_reason: str = ""
    """Why kvmeta matched no more; empty where it matched all."""
    exact_only: bool = False
    """Use exact blocks only, and no bounded replay: without its window a prefix is computed."""
    windows: tuple[tuple[int, WindowPlace], ...] = ()
    """Who is said to keep the window behind the first so many blocks."""
    images: tuple[JobImage, ...] = ()
    """In order of their places."""
    is_plain_draw: bool = False
    """The first token is the largest logit and nothing else: no noise, scores, mask or rules."""
    num_output_tokens: int = 0
    """Of earlier runs: the last ones of the prompt."""
    stop_ids: frozenset[int] = frozenset()
    """End tokens of this request beside the model's."""

    @property
    def answer_at(self) -> int | None:
        """Where output of an earlier run begins; None = there is none."""
        return self.num_prompt_tokens - self.num_output_tokens if self.num_output_tokens else None

    @property
    def image_spans(self) -> list[ImageSpan]:
        """The images as block keys have them."""
        return [image.span for image in self.images]

    def estimated_compute_tokens(self, num_replayed: Callable[[int], int]) -> int:
        """Tokens to compute if kvmeta was right and no window is kept.

        num_replayed: tokens of a stored prefix that are run again then.
        """
        reusable = min(self.num_matched_blocks, num_reusable_blocks(self.num_prompt_tokens))
        num_stored = reusable * BLOCK_TOKENS
        return self.num_prompt_tokens - num_stored + num_replayed(num_stored)


def num_reusable_blocks(num_prompt_tokens: int) -> int:
    """Most stored blocks a prompt may start from: one token at least is computed, for logits."""
    return max(0, num_prompt_tokens - 1) // BLOCK_TOKENS


def num_pages_for(num_tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)
