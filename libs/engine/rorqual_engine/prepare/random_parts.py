"""Names and shapes of what a V4.1 checkpoint holds beside its text model, as they are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.plan import LayerPlan

NamedShape = tuple[str, tuple[int, ...]]


def vision_shapes(config: DeepseekConfig, vision: Mapping[str, Any]) -> Iterator[NamedShape]:
    """The tower `vision.*`, the aligner, and the vectors around an image's rows.

    w1 of a block's mlp holds the gate's rows and then the other factor's; wqkv all of q, k and v.
    """
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    yield from _biased("vision.patch_embed.proj", width, 3 * vision["patch_size"] ** 2)
    for block in range(vision["num_hidden_layers"]):
        prefix = f"vision.blocks.{block}"
        yield f"{prefix}.norm1.weight", (width,)
        yield from _biased(f"{prefix}.attn.wqkv", 3 * width, width)
        yield from _biased(f"{prefix}.attn.wo", width, width)
        yield f"{prefix}.norm2.weight", (width,)
        yield f"{prefix}.mlp.w1.weight", (2 * inner, width)
        yield f"{prefix}.mlp.w2.weight", (width, inner)
    yield "vision.norm.weight", (width,)
    yield from _biased("aligner.w1", config.hidden, width * vision["downsample"] ** 2)
    yield from _biased("aligner.w2", config.hidden, config.hidden)
    for name in ("start", "newline", "end"):
        yield f"image_{name}", (config.hidden,)


def draft_ends_shapes(config: DeepseekConfig, draft: Mapping[str, Any]) -> Iterator[NamedShape]:
    """DSpark but for its stages: what joins the taps in the first, what guesses in the last."""
    num_stages, rank = len(draft["taps"]), draft["rank"]
    yield "mtp.0.main_proj.weight", (config.hidden, num_stages * config.hidden)
    yield "mtp.0.main_norm.weight", (config.hidden,)
    last = f"mtp.{num_stages - 1}"
    yield f"{last}.norm.weight", (config.hidden,)
    yield f"{last}.markov_head.embed.weight", (config.vocab_size, rank)
    yield f"{last}.markov_head.head.weight", (config.vocab_size, rank)
    yield f"{last}.confidence_head.proj.weight", (1, config.hidden + rank)


def engram_shapes(config: DeepseekConfig, plan: LayerPlan) -> Iterator[NamedShape]:
    """One layer's table, its projection to n keys and a value, and the weights of the gate."""
    engram, n = config.engram, config.streams.num_streams
    if engram is None or not plan.has_engram:
        return
    prefix = f"layers.{plan.index}.engram"
    num_columns = (engram.max_ngram - 1) * engram.num_heads
    yield f"{prefix}.embed.weight", (engram_rows(config)[plan.index], engram.head_dim)
    yield f"{prefix}.wkv.weight", ((n + 1) * config.hidden, num_columns * engram.head_dim)
    yield f"{prefix}.q_weight", (n, config.hidden)
    yield f"{prefix}.k_weight", (n, config.hidden)


def engram_rows(config: DeepseekConfig) -> dict[int, int]:
    """Rows of every layer's table: a prime number for each n-gram and head, none used twice."""
    engram = config.engram
    if engram is None:
        return {}
    used: set[int] = set()
    rows = {}
    for layer in sorted(engram.layers):
        rows[layer] = 0
        for _ in range(engram.max_ngram - 1):
            size = engram.table_rows - 1
            for _ in range(engram.num_heads):
                size = _next_prime(size, used)
                rows[layer] += size
    return rows


def _next_prime(size: int, used: set[int]) -> int:
    size += 1
    while size in used or not _is_prime(size):
        size += 1
    used.add(size)
    return size


def _is_prime(number: int) -> bool:
    if number < 2 or (number % 2 == 0 and number > 2):
        return False
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))


def _biased(name: str, rows: int, columns: int) -> Iterator[NamedShape]:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)
