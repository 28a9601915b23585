"""The byte figures of the published configurations follow from the layout."""

from __future__ import annotations

import pytest
import torch
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.layout import (
    PUBLISHED_V4,
    PUBLISHED_V4_FP4_INDEX,
    PUBLISHED_V41,
    KvFormat,
    block_bytes_per_token,
    boundary_bytes,
    kv_layout,
    page_bytes,
    page_sections,
    plain_format,
    slot_sections,
)
from rorqual_engine.prepare.random_v41 import TINY_V41

from tests.support.deepseek_configs import V4_FLASH, V41_FLASH

V4, V41, TINY = (DeepseekConfig.from_hf(c) for c in (V4_FLASH, V41_FLASH, TINY_V41))
MIB = 2**20


def test_v41_flash_keeps_890_bytes_a_token_and_112_kib_a_block() -> None:
    assert block_bytes_per_token(V41, PUBLISHED_V41) == 890
    unaligned = KvFormat(288, 68, 528)
    assert page_bytes(V41, unaligned) == 890 * 128 == 113_920
    assert page_bytes(V41, PUBLISHED_V41) == 112 * 1024


def test_v41_flash_windows() -> None:
    window, raw = boundary_bytes(V41, PUBLISHED_V41)
    assert window == 40 * 128 * 528 and round(window / MIB, 2) == 2.58
    assert raw == 0  # at a page boundary no ratio of V4.1 has an open compression


def test_v4_flash_figures() -> None:
    assert block_bytes_per_token(V4, PUBLISHED_V4) == 3850.25
    assert block_bytes_per_token(V4, PUBLISHED_V4_FP4_INDEX) == 3514.25
    window, raw = boundary_bytes(V4, PUBLISHED_V4)
    assert (round(window / MIB, 2), round(raw / MIB, 2)) == (3.07, 0.41)


@pytest.mark.parametrize(("config", "per_token"), [(V41, 3200), (TINY, 288)])
def test_bf16_figures(config: DeepseekConfig, per_token: int) -> None:
    form = plain_format(config, torch.bfloat16)
    assert block_bytes_per_token(config, form) == per_token
    layout = kv_layout(config, torch.bfloat16)
    assert layout.page_bytes == per_token * PAGE_TOKENS
    assert layout.bytes_per_token == per_token
    assert boundary_bytes(config, form)[0] == config.num_layers * 128 * config.head_dim * 2


@pytest.mark.parametrize("config", [V4, V41, TINY])
def test_sections_follow_each_other_without_overlap(config: DeepseekConfig) -> None:
    layout = kv_layout(config, torch.bfloat16)
    assert layout.window is not None
    for sections, end in (
        (page_sections(config, plain_format(config, torch.bfloat16)), layout.page_bytes),
        (slot_sections(config, torch.bfloat16), layout.window.slot_bytes),
    ):
        ends = [section.offset + section.num_bytes for section in sections]
        starts = [section.offset for section in sections[1:]]
        assert all(a <= b for a, b in zip(ends, [*starts, end], strict=True))


def test_rings_have_room_to_take_tokens_back() -> None:
    for section in slot_sections(V4, torch.bfloat16):
        if section.name == "raw":
            plan = V4.layers[section.layer]
            needed = 2 * plan.ratio if plan.kind == "csa" else plan.ratio
            assert section.num_rows >= needed + 16
    for section in slot_sections(V41, torch.bfloat16):
        if section.layer < 0:  # a window of rows that wait, of ids, of the draft's keys
            assert section.num_rows >= 128 + 16, section.name
    layout = kv_layout(V41, torch.bfloat16)
    assert layout.window is not None
    assert layout.window.snapshot_bytes < layout.window.slot_bytes
