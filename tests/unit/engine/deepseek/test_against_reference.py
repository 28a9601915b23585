"""The engine in fp32 gives what an independent reading of the formulas gives, however it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rorqual_engine.prepare.random_v41 import TINY_V41

from tests.support.deepseek_reference import Rule
from tests.unit.engine.deepseek.reference_runs import Pair, Prompt, make_pair

TOLERANCE = 1e-4
NUM_TOKENS = 170
PROMPT = Prompt.random(NUM_TOKENS)
CUTS = ([NUM_TOKENS], [7, 1, 33, 64, 2])
VARIANTS: dict[str, dict[str, Any]] = {
    "small": {},
    "wide window": {"sliding_window": 100},
    "quantised": {"kv_quantized": True},
    "one source": {
        "compress_ratios": [0, 0, 0, 1, 1, 1],
        "kv_source_layers": [3],
        "index_source_layers": [3],
        "candidate_source_layer": None,
    },
    "many sources": {
        "num_hidden_layers": 8,
        "compress_ratios": [2, 1, 2, 1, 2, 1, 0, 1],
        "kv_source_layers": [0, 1, 4, 5],
        "index_source_layers": [0, 1, 3, 4, 5, 7],
        "candidate_source_layer": 5,
        "late_start_layer": 5,
    },
    "pairs are late": {
        "compress_ratios": [1, 1, 2, 2, 0, 2],
        "kv_source_layers": [0, 2],
        "index_source_layers": [0, 2, 3],
        "candidate_source_layer": 2,
        "late_start_layer": 2,
    },
    "nothing is late": {"late_start_layer": None},
    "blocks that no entry fills": {"candidate_blocks": 3, "candidate_block_entries": 16},
    "two streams, normed heads": {"hc_mult": 2, "q_head_norm": True},
    "engram": {
        "engram_layers": [0, 1],
        "engram_config": {
            "max_ngram": 4,
            "num_heads": 2,
            "head_dim": 16,
            "table_rows": 50,
            "vocab_size": 90,
            "pad_id": 3,
        },
    },
    "scores of which many are equal": {"index_n_heads": 1},
    "streams not lagged": {"hc_lagged": False},
    "clamped experts, more shared": {"swiglu_limit": 0.4, "n_shared_experts": 2},
    "no scaling of positions": {"rope_scaling": {"rope_type": "default"}},
    "published epsilon": {"rms_norm_eps": 1e-20},
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    changes = VARIANTS[request.param]
    return make_pair(tmp_path_factory.mktemp("model"), seed=len(request.param), changes=changes)


def _agree(found: dict[int, torch.Tensor], expected: torch.Tensor) -> None:
    for position, logits in found.items():
        torch.testing.assert_close(
            logits.double(), expected[position], rtol=0, atol=TOLERANCE, msg=f"row {position}"
        )


def test_streams_after_every_layer(pair: Pair) -> None:
    found: list[torch.Tensor] = []
    pair.model.on_layer = lambda layer, streams: found.append(streams.values.double())
    try:
        with pair.start(NUM_TOKENS) as running:
            logits = running.feed(PROMPT, [NUM_TOKENS])
    finally:
        pair.model.on_layer = None
    trace = pair.reference(PROMPT.ids)
    assert len(found) == pair.reference.shape.num_layers
    for layer, (mine, theirs) in enumerate(zip(found, trace.streams[1:], strict=True)):
        worst = (mine - theirs).abs().max() / theirs.std()
        assert worst < TOLERANCE, f"layer {layer}"
    _agree(logits, trace.logits)


def test_chunks(pair: Pair) -> None:
    trace = pair.reference(PROMPT.ids)
    for sizes in (CUTS[1], [61]):
        with pair.start(NUM_TOKENS) as running:
            _agree(running.feed(PROMPT, sizes), trace.logits)


@pytest.mark.parametrize("num_prompt", [5, NUM_TOKENS - 3])
def test_only_the_tail_of_a_prompt_runs_late_layers(pair: Pair, num_prompt: int) -> None:
    """And the tokens behind it, one by one, go on from there."""
    trace = pair.reference(PROMPT.ids, Rule.tail(num_prompt, pair.reference.shape.window))
    for sizes in CUTS:
        with pair.start(NUM_TOKENS) as running:
            found = running.feed(PROMPT, sizes, end=num_prompt, defers=True)
            found |= running.feed(PROMPT, [1], start=num_prompt, end=num_prompt + 3)
        assert set(range(num_prompt - 1, num_prompt + 3)) <= set(found)
        _agree(found, trace.logits)


@pytest.mark.parametrize("defers", [True, False])
def test_replay_of_a_stored_prefix(pair: Pair, *, defers: bool) -> None:
    """Windows begin at the replayed rows, entries are the stored ones; then a token follows."""
    window, num_prompt = pair.reference.shape.window, NUM_TOKENS - 1
    num_stored = num_prompt // 128 * 128
    floor = num_stored - window
    stored = pair.reference(PROMPT.ids[:num_stored]).stored(num_stored, pair.reference.shape)
    late_floor = num_prompt - window if defers else 0
    trace = pair.reference(PROMPT.ids, Rule(floor, late_floor, stored))
    for sizes in CUTS:
        with pair.start(NUM_TOKENS) as running:
            running.feed(PROMPT, [100], end=num_stored)
            running.forget_window()
            options = {"end": num_prompt, "floor": floor, "num_stored": num_stored}
            found = running.feed(PROMPT, sizes, start=floor, defers=defers, **options)
            found |= running.feed(PROMPT, [1], start=num_prompt)
        assert {num_prompt - 1, num_prompt} <= set(found)
        _agree(found, trace.logits)


def test_images(pair: Pair) -> None:
    """Rows of images take their vectors and the other router bias; positions go on as in text."""
    generator = torch.Generator().manual_seed(0)
    ids, images = list(PROMPT.ids), {}
    for row in (*range(20, 32), *range(100, 151), NUM_TOKENS - 1):
        ids[row] = pair.image_id
        images[row] = torch.randn(pair.reference.shape.hidden, generator=generator)
    prompt = Prompt(ids, images)
    trace = pair.reference(ids, embeddings=images)
    for sizes in CUTS:
        with pair.start(len(ids)) as running:
            _agree(running.feed(prompt, sizes), trace.logits)


def test_the_small_model_of_the_design(tmp_path: Path) -> None:
    """Its whole size once: a window of a page, a replay of one page behind another."""
    pair = make_pair(tmp_path, 0, TINY_V41)
    prompt = Prompt.random(270)
    stored = pair.reference(prompt.ids[:256]).stored(256, pair.reference.shape)
    trace = pair.reference(prompt.ids, Rule(floor=128, late_floor=141, stored=stored))
    with pair.start(270) as running:
        running.feed(prompt, [256], end=256)
        running.forget_window()
        options = {"end": 269, "floor": 128, "num_stored": 256}
        found = running.feed(prompt, [33, 64], start=128, defers=True, **options)
        found |= running.feed(prompt, [1], start=269)
    assert set(found) == {268, 269}
    _agree(found, trace.logits)
