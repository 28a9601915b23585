"""Typed views of a cache's pages and window slots; reads and writes go to the cache."""

from __future__ import annotations

import torch

from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.layout import (
    Section,
    page_sections,
    plain_format,
    plan_of,
    slot_sections,
    snapshot_rows,
)


class KvViews:
    """By layer. Pages: entries, keys [pages, 128 / r, dim], where keys lie [dim, 128 / r].
    Slots: window [slots, ring, dim]; raw, index_raw fp32 [slots, ring, width]; ids int64 [slots,
    ring]; streams [slots, ring, n, D] and weights fp32 [slots, ring, n], rows that wait for the
    late layers; draft [slots, ring, stages, dim], keys of the draft's stages, where there is one.
    """

    def __init__(self, cache: PagedKvCache, config: DeepseekConfig, dtype: torch.dtype) -> None:
        self.window: dict[int, torch.Tensor] = {}
        self.raw: dict[int, torch.Tensor] = {}
        self.index_raw: dict[int, torch.Tensor] = {}
        self.entries: dict[int, torch.Tensor] = {}
        self.keys: dict[int, torch.Tensor] = {}
        for section in page_sections(config, plain_format(config, dtype)):
            view = _typed(cache.pages, section, dtype)
            if section.name == "keys":  # they lie transposed, for products over many at once
                view = view.view(len(view), -1, section.num_rows).transpose(1, 2)
            getattr(self, section.name)[section.layer] = view
        for section in slot_sections(config, dtype):
            view = _typed(cache.windows, section, _dtype_of(section, dtype))
            if section.layer >= 0:
                getattr(self, section.name)[section.layer] = view
            elif section.name == "ids":
                self.ids = view[..., 0]
            elif section.name == "weights":
                self.weights = view
            elif section.name == "draft":
                self.draft = view.view(*view.shape[:2], -1, config.head_dim)
            else:
                self.streams = view.view(*view.shape[:2], config.streams.num_streams, config.hidden)


def _dtype_of(section: Section, dtype: torch.dtype) -> torch.dtype:
    if section.name == "ids":
        return torch.int64
    return dtype if section.name in ("window", "streams", "draft") else torch.float32


def _typed(pool: torch.Tensor, section: Section, dtype: torch.dtype) -> torch.Tensor:
    part = pool[:, section.offset : section.offset + section.num_bytes]
    typed: torch.Tensor = part.view(dtype)
    return typed.view(len(pool), section.num_rows, -1)


def save_window(
    cache: PagedKvCache, window: int, num_tokens: int, config: DeepseekConfig, dtype: torch.dtype
) -> torch.Tensor:
    """Snapshot after num_tokens tokens: the last rows of every ring, oldest first; uint8."""
    slot = cache.windows[window]
    parts = []
    for section in slot_sections(config, dtype):
        count = snapshot_rows(section, plan_of(config, section), config.window)
        runs = _runs(section, num_tokens - count, count)
        rows = torch.cat([_rows(slot, section)[run] for run in runs])
        rows[: max(0, count - num_tokens)] = 0  # never written: whatever an earlier owner left
        parts.append(rows.flatten())
    return torch.cat(parts).cpu()


def load_window(
    cache: PagedKvCache,
    window: int,
    num_tokens: int,
    snapshot: torch.Tensor,
    config: DeepseekConfig,
    dtype: torch.dtype,
) -> None:
    """Puts the rows of a snapshot back where their positions belong."""
    slot = cache.windows[window]
    source = snapshot.to(cache.device)
    at = 0
    for section in slot_sections(config, dtype):
        count = snapshot_rows(section, plan_of(config, section), config.window)
        for run in _runs(section, num_tokens - count, count):
            size = (run.stop - run.start) * section.row_bytes
            _rows(slot, section)[run] = source[at : at + size].view(-1, section.row_bytes)
            at += size


def _rows(slot: torch.Tensor, section: Section) -> torch.Tensor:
    part = slot[section.offset : section.offset + section.num_bytes]
    return part.view(section.num_rows, section.row_bytes)


def _runs(section: Section, start: int, count: int) -> list[slice]:
    """Where `count` positions from start on lie in a ring, in their order; below 0 counts too."""
    begin = start % section.num_rows
    end = begin + count
    if end <= section.num_rows:
        return [slice(begin, end)]
    return [slice(begin, section.num_rows), slice(0, end - section.num_rows)]
