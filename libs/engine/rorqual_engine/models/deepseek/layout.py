"""Exact bytes of pages (Block KV) and of window slots (SWA KV).

A page holds, owner layer after owner layer, the compressed entries of its 128 tokens and then the
keys to choose among them. A slot holds rings addressed by absolute position, so that cutting a
sequence back is forgetting its length: row p of a ring of n rows is row p % n.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch

from rorqual_engine.kv import PAGE_TOKENS, KvLayout
from rorqual_engine.kv.layout import LayerKv, WindowLayout
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.dspark_config import MOST_DRAFTS
from rorqual_engine.models.deepseek.plan import LayerPlan

WINDOW_RING = 2 * PAGE_TOKENS
"""Positions of window KV kept: a window, and as many tokens that may still be taken back."""
ROLLBACK_TOKENS = MOST_DRAFTS
"""Tokens that may be taken back: so many rows more than are needed stay in the small rings."""
IDS_RING = 2 * PAGE_TOKENS
_ALIGN = 64


@dataclass(frozen=True)
class KvFormat:
    """Bytes of what is stored, by kind."""

    entry_bytes: int
    index_key_bytes: int
    window_bytes: int
    """Window KV of one position of one layer."""
    align_bytes: int = 1
    """Every part of a page begins at a multiple of it."""


PUBLISHED_V4 = KvFormat(entry_bytes=584, index_key_bytes=132, window_bytes=584)
"""448 e4m3, 64 bf16 and 7 scales, padded; index keys in fp8."""
PUBLISHED_V4_FP4_INDEX = KvFormat(entry_bytes=584, index_key_bytes=68, window_bytes=584)
PUBLISHED_V41 = KvFormat(entry_bytes=288, index_key_bytes=68, window_bytes=528, align_bytes=512)
"""Entries and index keys in 4 bits with scales, window in 8; parts aligned to 512 bytes."""


def plain_format(config: DeepseekConfig, dtype: torch.dtype) -> KvFormat:
    """Everything in the model's dtype. Quantised values are rounded but not packed."""
    size = dtype.itemsize
    return KvFormat(config.head_dim * size, config.index.head_dim * size, config.head_dim * size)


@dataclass(frozen=True)
class Section:
    """A matrix of rows somewhere inside a page or a slot."""

    layer: int
    """-1 = of no layer."""
    name: str
    """Page: entries, keys. Slot: window, raw, index_raw, ids, streams, weights, draft."""
    offset: int
    num_rows: int
    row_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes


def page_sections(config: DeepseekConfig, form: KvFormat) -> tuple[Section, ...]:
    """What a page holds, in order."""
    sections: list[Section] = []
    at = 0
    for plan in config.layers:
        for name, row_bytes in _kept_in_pages(plan, form):
            at = _aligned(at, form.align_bytes)
            sections.append(Section(plan.index, name, at, PAGE_TOKENS // plan.ratio, row_bytes))
            at += sections[-1].num_bytes
    return tuple(sections)


def page_bytes(config: DeepseekConfig, form: KvFormat) -> int:
    last = max(page_sections(config, form), key=lambda s: s.offset, default=None)
    return _aligned(last.offset + last.num_bytes, form.align_bytes) if last else 0


def block_bytes_per_token(config: DeepseekConfig, form: KvFormat) -> Fraction:
    """Payload of Block KV, without padding."""
    return sum((_block_bytes(plan, form) for plan in config.layers), Fraction(0))


def boundary_bytes(config: DeepseekConfig, form: KvFormat) -> tuple[int, int]:
    """(window KV, raw rows of open compressions in fp32) that a page boundary needs."""
    raw = sum(
        plan.ratio * 2 * (config.head_dim + config.index.head_dim) * 4
        for plan in config.layers
        if plan.kind == "csa"
    )
    return config.num_layers * config.window * form.window_bytes, raw


def slot_sections(config: DeepseekConfig, dtype: torch.dtype) -> tuple[Section, ...]:
    """What a window slot holds, in order."""
    wanted: list[tuple[int, str, int, int]] = []
    size = dtype.itemsize
    for plan in config.layers:
        wanted.append((plan.index, "window", WINDOW_RING, config.head_dim * size))
        wanted += _raw_rings(plan, config)
    wanted.append((-1, "ids", IDS_RING, 8))
    if config.late_start is not None:
        streams = config.streams.num_streams
        num_rows = config.window + ROLLBACK_TOKENS
        wanted.append((-1, "streams", num_rows, streams * config.hidden * size))
        wanted.append((-1, "weights", num_rows, streams * 4))
    if config.dspark is not None:
        row_bytes = config.dspark.num_stages * config.head_dim * size
        wanted.append((-1, "draft", WINDOW_RING, row_bytes))
    sections: list[Section] = []
    at = 0
    for layer, name, num_rows, row_bytes in wanted:
        sections.append(Section(layer, name, at, num_rows, row_bytes))
        at = _aligned(at + num_rows * row_bytes, _ALIGN)
    return tuple(sections)


def snapshot_rows(section: Section, plan: LayerPlan | None, window: int) -> int:
    """Last rows of a ring that must travel so that another slot can go on."""
    if section.name in ("raw", "index_raw"):
        assert plan is not None
        return 2 * plan.ratio - 1 if plan.kind == "csa" else plan.ratio - 1
    return {"window": window - 1, "ids": min(16, section.num_rows)}.get(section.name, window)


def snapshot_bytes(config: DeepseekConfig, dtype: torch.dtype) -> int:
    return sum(
        section.row_bytes * snapshot_rows(section, plan_of(config, section), config.window)
        for section in slot_sections(config, dtype)
    )


def plan_of(config: DeepseekConfig, section: Section) -> LayerPlan | None:
    return None if section.layer < 0 else config.layers[section.layer]


def kv_layout(config: DeepseekConfig, dtype: torch.dtype) -> KvLayout:
    """The layout the engine uses: everything in the model's dtype."""
    form = plain_format(config, dtype)
    slots = slot_sections(config, dtype)
    window = WindowLayout(
        window_tokens=config.window,
        slot_bytes=_aligned(slots[-1].offset + slots[-1].num_bytes, _ALIGN),
        snapshot_bytes=snapshot_bytes(config, dtype),
        layers=tuple(LayerKv("window", form.window_bytes) for _ in config.layers),
    )
    block = tuple(LayerKv("block", ceil(_block_bytes(plan, form))) for plan in config.layers)
    # Without entries a page still stands for 128 tokens; it needs a byte to exist.
    return KvLayout(PAGE_TOKENS, max(page_bytes(config, form), _ALIGN), block, window)


def _block_bytes(plan: LayerPlan, form: KvFormat) -> Fraction:
    return sum((Fraction(size, plan.ratio) for _, size in _kept_in_pages(plan, form)), Fraction(0))


def _kept_in_pages(plan: LayerPlan, form: KvFormat) -> list[tuple[str, int]]:
    kept = [("entries", form.entry_bytes)] if plan.owns_entries else []
    return kept + ([("keys", form.index_key_bytes)] if plan.owns_index_keys else [])


def _raw_rings(plan: LayerPlan, config: DeepseekConfig) -> list[tuple[int, str, int, int]]:
    """Rings of raw kv and gates, fp32, of owners that pool several tokens."""
    if not plan.owns_entries or plan.ratio < 2:
        return []
    spans = 2 if plan.kind == "csa" else 1
    num_rows = 1 << (spans * plan.ratio + ROLLBACK_TOKENS - 1).bit_length()
    rings = [(plan.index, "raw", num_rows, 2 * spans * config.head_dim * 4)]
    if plan.kind == "csa":
        rings.append((plan.index, "index_raw", num_rows, 2 * spans * config.index.head_dim * 4))
    return rings


def _aligned(size: int, align: int) -> int:
    return -(-size // align) * align
