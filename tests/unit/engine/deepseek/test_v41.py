"""V4.1: one result whatever the chunks, the batch, the slot; late layers see the last window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.errors import BadChunk
from rorqual_engine.exactness import is_exact
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.prepare.random_v41 import write_random_v41
from rorqual_engine.runner import BareEngine, GenerationParams

from tests.support.engine_runs import cut

TOKENS = np.random.default_rng(1).integers(2, 4000, 290).tolist()
PARAMS = GenerationParams(max_new_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v41")
    write_random_v41(directory)
    return directory


@pytest.fixture(scope="module")
def model(model_dir: Path) -> DeepseekModel:
    return _loaded(model_dir, "bfloat16")


@pytest.fixture(scope="module")
def exact(model_dir: Path) -> DeepseekModel:
    return _loaded(model_dir, "float32")


@pytest.fixture
def cache(model: DeepseekModel) -> PagedKvCache:
    return model.new_cache(12)


def _loaded(directory: Path, dtype: str) -> DeepseekModel:
    loaded = load_model(directory, dtype=dtype)
    assert isinstance(loaded, DeepseekModel)
    return loaded


def _run(
    model: DeepseekModel,
    cache: PagedKvCache,
    lease: PageLease,
    tokens: Sequence[int],
    sizes: Sequence[int],
    *,
    start: int = 0,
    defers: bool = True,
    floor: int = 0,
    num_stored: int = 0,
) -> torch.Tensor:
    """Logits of the last token; tokens before start have run already."""
    logits = torch.empty(0)
    for first, last in cut(len(tokens) - start, sizes):
        chunk = SequenceChunk(
            tokens[start + first : start + last],
            start + first,
            lease.pages,
            start + last == len(tokens),
            lease.window,
            floor,
            num_stored,
            defers,
        )
        logits = model.forward([chunk], cache)
    return logits[0]


def _fresh(model: DeepseekModel, cache: PagedKvCache) -> Iterator[PageLease]:
    while True:
        with cache.allocate(3) as lease:
            yield lease


@pytest.mark.parametrize("defers", [True, False])
def test_any_chunking_gives_the_same_bits(
    model: DeepseekModel, cache: PagedKvCache, defers: bool
) -> None:
    leases = _fresh(model, cache)
    whole = _run(model, cache, next(leases), TOKENS, [290], defers=defers)
    for sizes in ([128], [1, 130, 3, 50, 7, 99], [64, 1]):
        found = _run(model, cache, next(leases), TOKENS, sizes, defers=defers)
        assert torch.equal(found, whole), sizes


def test_a_step_with_others_gives_the_same_bits(model: DeepseekModel) -> None:
    prompts = [TOKENS[:200], TOKENS[100:133], TOKENS[7:9], TOKENS[40:170]]
    alone = [BareEngine(model, num_pages=4).generate([p], PARAMS)[0] for p in prompts]
    for chunk_tokens in (512, 61):
        together = BareEngine(model, num_pages=24, chunk_tokens=chunk_tokens)
        assert together.generate(prompts, PARAMS) == alone
        together.cache.check_integrity()


def test_a_short_prompt_loses_nothing_by_late_layers(
    model: DeepseekModel, cache: PagedKvCache
) -> None:
    leases = _fresh(model, cache)
    tokens = TOKENS[:128]
    late = _run(model, cache, next(leases), tokens, [50], defers=True)
    assert torch.equal(late, _run(model, cache, next(leases), tokens, [50], defers=False))


@pytest.mark.parametrize("num_prompt", [200, 256])
def test_a_prompt_with_the_answer_so_far_goes_on_as_the_answer_did(
    model: DeepseekModel, cache: PagedKvCache, num_prompt: int
) -> None:
    """Its late layers see the prompt's last window, and every row of the answer."""
    leases = _fresh(model, cache)
    once = next(leases)
    _run(model, cache, once, TOKENS[:num_prompt], [128])
    expected = _run(model, cache, once, TOKENS, [1], start=num_prompt, defers=False)
    again = next(leases)
    for start, end in cut(num_prompt, [150]):
        tokens, is_end = TOKENS[start:end], end == num_prompt
        chunk = SequenceChunk(tokens, start, again.pages, window=again.window, defers_late=True)
        chunk.ends_prompt = is_end
        assert len(model.forward([chunk], cache)) == 0
    found = _run(model, cache, again, TOKENS, [33], start=num_prompt, defers=False)
    assert torch.equal(found, expected)


def test_a_long_prompts_late_layers_see_its_last_window(exact: DeepseekModel) -> None:
    """Equal to running every row, if rows before the last window are hidden from late windows."""
    cache = exact.new_cache(6)
    leases = _fresh(exact, cache)
    full = _run(exact, cache, next(leases), TOKENS, [290], defers=False)
    late = _run(exact, cache, next(leases), TOKENS, [290])
    difference = (full - late).abs().max()
    assert 1e-3 < difference < 5 * full.std()


@pytest.mark.parametrize("num_saved", [256, 217])
def test_a_window_taken_to_another_slot_goes_on_with_the_same_bits(
    model: DeepseekModel, cache: PagedKvCache, num_saved: int
) -> None:
    leases = _fresh(model, cache)
    whole = _run(model, cache, next(leases), TOKENS, [290])
    first, second = cache.allocate(3), cache.allocate(3)
    with first, second:
        _run(model, cache, first, TOKENS[:num_saved], [100])
        assert first.window is not None and second.window is not None
        snapshot = model.save_window(cache, first.window, num_saved)
        assert model.kv_layout.window is not None
        assert len(snapshot) == model.kv_layout.window.snapshot_bytes
        cache.windows[second.window] = 255  # NaN wherever something is read that was not loaded
        model.load_window(cache, second.window, num_saved, snapshot)
        for mine, theirs in zip(first.pages, second.pages, strict=True):
            cache.pages[theirs] = cache.pages[mine]
        assert torch.equal(
            _run(model, cache, second, TOKENS, [30], start=num_saved, num_stored=0), whole
        )


def test_decoding_goes_on_from_a_snapshot_with_the_same_bits(
    model: DeepseekModel, cache: PagedKvCache
) -> None:
    first, second = cache.allocate(3), cache.allocate(3)
    with first, second:
        _run(model, cache, first, TOKENS[:280], [280])
        assert first.window is not None and second.window is not None
        snapshot = model.save_window(cache, first.window, 280)
        for mine, theirs in zip(first.pages, second.pages, strict=True):
            cache.pages[theirs] = cache.pages[mine]
        cache.windows[second.window] = 255
        model.load_window(cache, second.window, 280, snapshot)
        found = [
            _run(model, cache, lease, TOKENS, [1], start=280, defers=False)
            for lease in (first, second)
        ]
        assert torch.equal(*found)


def test_tokens_taken_back_leave_no_trace(model: DeepseekModel, cache: PagedKvCache) -> None:
    """A sequence cut back by a few tokens goes on as if they had never been."""
    leases = _fresh(model, cache)
    whole = _run(model, cache, next(leases), TOKENS, [290], defers=False)
    lease = next(leases)
    _run(model, cache, lease, [*TOKENS[:281], 9, 8, 7, 6, 5], [281, 5], defers=False)
    found = _run(model, cache, lease, TOKENS, [9], start=281, defers=False)
    assert torch.equal(found, whole)


def test_a_prefix_up_to_a_window_replays_exactly(model: DeepseekModel, cache: PagedKvCache) -> None:
    assert [model.num_replayed(n) for n in (0, 128, 256)] == [0, 128, 128]
    first, second = cache.allocate(2), cache.allocate(2)
    with first, second:
        whole = _run(model, cache, first, TOKENS[:200], [200])
        cache.pages[second.pages[0]] = cache.pages[first.pages[0]]
        before = cache.pages[second.pages[0]].clone()
        found = _run(model, cache, second, TOKENS[:200], [77], num_stored=128)
        assert torch.equal(found, whole)
        assert torch.equal(cache.pages[second.pages[0]], before)


def test_a_replay_reads_no_window_before_its_floor(
    model: DeepseekModel, cache: PagedKvCache
) -> None:
    """Rows of a replay depend on stored entries and on themselves, not on what a slot held."""
    first, second = cache.allocate(3), cache.allocate(3)
    with first, second:
        _run(model, cache, first, TOKENS, [290])
        found = []
        for garbage in (0, 255):
            for mine, theirs in zip(first.pages[:2], second.pages[:2], strict=True):
                cache.pages[theirs] = cache.pages[mine]
            assert second.window is not None
            cache.windows[second.window] = garbage
            options = {"start": 128, "floor": 128, "num_stored": 256}
            found.append(_run(model, cache, second, TOKENS, [100], **options))
        assert torch.equal(*found)
        assert bool(found[0].isfinite().all())


def test_image_rows_take_their_embeddings_and_bias(
    model: DeepseekModel, cache: PagedKvCache
) -> None:
    image_id = model.config.image_token_id
    assert image_id is not None
    tokens = [*TOKENS[:5], *[image_id] * 4, *TOKENS[5:9]]
    rows = np.arange(5, 9)
    values = torch.randn(4, model.config.hidden, generator=torch.Generator().manual_seed(0))
    found = []
    for image in (values, values + 1, values):
        lease = cache.allocate(1)
        chunk = SequenceChunk(
            tokens, 0, lease.pages, True, lease.window, embeddings=ImageRows(rows, image)
        )
        found.append(model.forward([chunk], cache))
        lease.release()
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_quantised_kv_is_another_model_with_its_own_fingerprint(
    model_dir: Path, model: DeepseekModel, tmp_path: Path
) -> None:
    write_random_v41(tmp_path, changes={"kv_quantized": True})
    quantized = _loaded(tmp_path, "bfloat16")
    assert quantized.fingerprint != model.fingerprint
    found = []
    for which in (model, quantized):
        cache = which.new_cache(3)
        with cache.allocate(2) as lease:
            whole = _run(which, cache, lease, TOKENS[:150], [150])
        with cache.allocate(2) as lease:
            assert torch.equal(_run(which, cache, lease, TOKENS[:150], [1, 70]), whole)
        found.append(whole)
    assert not torch.equal(*found)


def test_the_engine_says_it_is_exact(model: DeepseekModel) -> None:
    assert is_exact(model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"window": 99}, "window slot 99"),
        ({"window_floor": 6}, r"window floor 6 is not in 0\.\.5"),
        ({"num_stored": -1}, "-1 stored"),
        ({"embeddings": ImageRows(np.arange(2), torch.zeros(2, 5))}, r"shape \(2, 5\)"),
        ({"embeddings": ImageRows(np.array([3]), torch.zeros(1, 192))}, r"outside 0\.\.2"),
    ],
)
def test_chunks_that_contradict_themselves_are_refused(
    model: DeepseekModel, cache: PagedKvCache, changes: dict[str, Any], said: str
) -> None:
    with cache.allocate(1) as lease:
        chunk = SequenceChunk([1, 2, 3], 5, lease.pages, True, lease.window)
        with pytest.raises(BadChunk, match=said):
            model.forward([replace(chunk, **changes)], cache)
