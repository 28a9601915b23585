"""The reference itself: V4 against transformers, the exact cases of replay, tables by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rorqual_engine.prepare.random_v41 import random_tensors
from safetensors.torch import load_file

from tests.support.deepseek_reference import Rule, TextReference
from tests.support.deepseek_reference.attention import window_mask
from tests.support.deepseek_reference.compression import visible
from tests.support.deepseek_reference.engram import EngramReference
from tests.support.deepseek_reference.formats import (
    round_e2m1,
    round_e4m3,
    round_entries,
    round_index,
)
from tests.support.deepseek_reference.rotation import frequencies, rotate
from tests.support.deepseek_reference.selection import best, candidate_blocks
from tests.support.deepseek_reference.shape import Rotation, Shape
from tests.support.deepseek_reference.streams import doubly_stochastic
from tests.support.tiny_deepseek import save_tiny_v4
from tests.unit.engine.deepseek.reference_runs import SMALL, Prompt

W = 16
IDS = Prompt.random(120).ids


@pytest.fixture(scope="module")
def small() -> TextReference:
    return TextReference(SMALL, random_tensors(SMALL, 0))


@pytest.mark.parametrize(
    "changes",
    [{}, {"index_topk": 512}, {"num_hash_layers": 0, "hc_mult": 2}, {"swiglu_limit": 0.5}],
)
def test_v4_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_tiny_v4(tmp_path, seed=5, **changes)
    config = json.loads((tmp_path / "config.json").read_text())
    found = TextReference(config, load_file(tmp_path / "model.safetensors"))(IDS).logits
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_prompt_within_the_window_has_no_rows_before_its_tail() -> None:
    assert Rule.tail(W, W) == Rule()
    assert Rule.tail(W + 5, W).late_floor == 5


def test_a_tail_is_exact_when_it_is_long_enough(small: TextReference) -> None:
    """The last row depends on n (W - 1) + 1 rows of n late layers, and on no row less."""
    exact = small(IDS).logits[-1]
    needed = 3 * (W - 1) + 1
    enough = small(IDS, Rule(late_floor=len(IDS) - needed)).logits[-1]
    short = small(IDS, Rule.tail(len(IDS), W)).logits[-1]
    assert (enough - exact).abs().max() < 1e-12 < 1e-6 < (short - exact).abs().max()


def test_the_encoder_knows_nothing_of_the_tail(small: TextReference) -> None:
    exact, tail = small(IDS), small(IDS, Rule.tail(len(IDS), W))
    for layer, entries in exact.entries.items():
        assert torch.equal(entries.keys, tail.entries[layer].keys)


@pytest.mark.parametrize(("num_stored", "num_replayed"), [(W, W), (96, 90), (96, 16)])
def test_a_replay_is_exact_with_the_whole_prefix_or_enough_of_it(
    small: TextReference, num_stored: int, num_replayed: int
) -> None:
    exact = small(IDS).logits[num_stored:]
    stored = small(IDS[:num_stored]).stored(num_stored, small.shape)
    found = small(IDS, Rule(floor=num_stored - num_replayed, stored=stored)).logits[num_stored:]
    is_exact = num_replayed == num_stored or num_replayed >= 6 * (W - 1)
    assert ((found - exact).abs().max() < 1e-12) == is_exact


def test_a_causal_model_does_not_look_ahead(small: TextReference) -> None:
    whole, part = small(IDS).logits, small(IDS[:71]).logits
    assert (whole[:71] - part).abs().max() < 1e-12


def test_e4m3_is_torchs() -> None:
    values = torch.cat([torch.linspace(-450, 450, 4001), torch.linspace(-0.02, 0.02, 999)]).clamp(
        -448, 448
    )
    assert torch.equal(round_e4m3(values), values.to(torch.float8_e4m3fn).to(values.dtype))


def test_e2m1_by_hand() -> None:
    given = [0.2, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 9.0, -0.75, -2.4]
    wanted = [0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, -1.0, -2.0]
    assert round_e2m1(torch.tensor(given)).tolist() == wanted


def test_rounded_groups_keep_their_largest_value_and_stay_as_they_are() -> None:
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rounded in (round_entries(values), round_index(values)):
        assert 0.01 < (rounded - values).abs().max() < values.abs().max() / 4
    assert torch.equal(round_index(round_index(values)), round_index(values))
    assert round_entries(torch.zeros(16)).abs().max() == 0
    assert round_index(torch.tensor([6.1] + [0.6] * 31)).tolist() == [6.0, *[1.0] * 31]


def test_sinkhorn_makes_rows_and_columns_sum_to_one() -> None:
    logits = 2 * torch.randn(7, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    mix = doubly_stochastic(logits, 20, 1e-6)
    assert (mix >= 0).all()
    torch.testing.assert_close(mix.sum(-2), torch.ones(7, 4).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(mix.sum(-1), torch.ones(7, 4).double(), atol=1e-2, rtol=0)


def test_windows_hold_the_row_itself_and_end_at_the_floor() -> None:
    mask = window_mask(6, 3, 2)
    seen = [row.nonzero().flatten().tolist() for row in mask]
    assert seen == [[], [], [2], [2, 3], [2, 3, 4], [3, 4, 5]]


def test_entries_are_seen_once_their_tokens_are_all_there() -> None:
    assert visible(5, 2, 2).sum(1).tolist() == [0, 1, 1, 2, 2]
    assert visible(3, 3, 1).sum(1).tolist() == [1, 2, 3]


def test_equal_scores_are_chosen_by_lowest_index() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0]])
    may = torch.tensor([[True, True, True, True, False]])
    assert best(scores, may, 3).tolist() == [[True, True, True, False, False]]


def test_the_newest_block_is_always_a_candidate() -> None:
    scores = torch.tensor([[5.0, 0.0, 9.0, 0.0, 4.0, 4.0, 0.0, 0.0]])
    may = torch.arange(8).unsqueeze(0) < 7
    assert candidate_blocks(scores, may, 2, 2).tolist() == [
        [False, False, True, True, False, False, True, True]
    ]


def test_rotating_there_and_back_is_nothing_and_only_distances_matter() -> None:
    rotation = Rotation(10000.0, 8, 16.0, 64)
    x = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0)).double()
    positions = torch.tensor([5, 900])
    turned = rotate(x, positions, rotation)
    torch.testing.assert_close(rotate(turned, positions, rotation, back=True), x)
    later = rotate(x, positions + 77, rotation)
    torch.testing.assert_close((turned[0] * turned[1]).sum(-1), (later[0] * later[1]).sum(-1))
    assert torch.equal(turned[..., :4], x[..., :4])


def test_yarn_slows_down_only_what_turns_seldom() -> None:
    plain, scaled = frequencies(Rotation(10000.0, 64)), frequencies(Rotation(1e4, 64, 16.0, 4096))
    ratio = plain / scaled
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(16)
    assert (ratio.diff() >= -1e-9).all()


def test_a_row_of_engram_ends_at_the_start_and_at_images() -> None:
    sizes = {"max_ngram": 3, "num_heads": 2, "head_dim": 4, "table_rows": 20, "vocab_size": 300}
    config = {**SMALL, "engram_layers": [1], "engram_config": sizes}
    engram = EngramReference(Shape(config), range(320))
    image = SMALL["image_token_id"]
    assert engram.num_rows(1) == 23 + 29 + 31 + 37
    assert engram.rows(1, [7], 0) == engram.rows(1, [0, 0, 7], 2)
    assert engram.rows(1, [5, image, 7], 2) == engram.rows(1, [9, image, 7], 2)
    assert engram.rows(1, [5, 6, 7], 2)[:2] == engram.rows(1, [9, 6, 7], 2)[:2]
    assert engram.rows(1, [5, 6, 7], 2)[2:] != engram.rows(1, [9, 6, 7], 2)[2:]
