"""Compiled CPU kernels against the plain operations beside them, and against themselves by bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk, lay_out
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek import mhc
from rorqual_engine.models.deepseek.indexer import Selection
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import Rows, rows_of
from rorqual_engine.prepare.random_v41 import write_random_v41

from tests.support.engine_runs import cut
from tests.support.tiny_deepseek import save_tiny_v4

KINDS = {
    "v4": ["window", "csa", "hca"],
    "v4.1": ["window", "latent pairs", "latent", "latent, bounded", "latent, shared choice"],
}
LAYERS = {"v4": [0, 1, 2], "v4.1": [0, 2, 5, 7, 8]}
CASES = [(family, i) for family, layers in LAYERS.items() for i in range(len(layers))]
Pair = tuple[DeepseekModel, DeepseekModel]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """By family: the same bf16 model on kernels and on plain operations."""
    v4, v41 = tmp_path_factory.mktemp("v4"), tmp_path_factory.mktemp("v41")
    save_tiny_v4(v4, n_routed_experts=16, o_lora_rank=32)
    write_random_v41(v41, changes={"index_topk": 8, "candidate_blocks": 4})
    return {"v4": (_loaded(v4), _plain(v4)), "v4.1": (_loaded(v41), _plain(v41))}


def _loaded(directory: Path) -> DeepseekModel:
    loaded = load_model(directory)
    assert isinstance(loaded, DeepseekModel)
    return loaded


def _plain(directory: Path) -> DeepseekModel:
    model = _loaded(directory)
    for layer in model._layers:
        attention = layer._attention
        for part in (attention, attention.compress, attention._indexer):
            if part is not None:
                assert part._is_compiled
                part._is_compiled = False
    return model


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class Sequences:
    """Four sequences in a cache full of NaN, run layer by layer without a model around."""

    def __init__(self, model: DeepseekModel) -> None:
        self.model = model
        self.cache: PagedKvCache = model.new_cache(12)
        self.cache.pages.fill_(255)
        self.cache.windows.fill_(255)
        self.leases = [self.cache.allocate(3) for _ in range(4)]
        self.views: KvViews = model._views_of(self.cache)

    def rows(self, spans: Sequence[tuple[int, int, int]]) -> Rows:
        """spans: (sequence, start, count)."""
        chunks = [
            SequenceChunk([1] * count, start, self.leases[s].pages, window=self.leases[s].window)
            for s, start, count in spans
        ]
        batch = lay_out(chunks, self.cache, vocab_size=4096, max_context_tokens=4096)
        return rows_of(chunks, batch, torch.device("cpu"), None, window_slots=12, hidden=64)

    def run(self, layers: Sequence[int], rows: Rows, seed: int) -> list[torch.Tensor]:
        """The layers' attention over random rows."""
        selections: dict[int, Selection] = {}
        num_rows = len(rows.token_ids)
        outputs = []
        for index in layers:
            attention = self.model._layers[index]._attention
            x = _random(num_rows, self.model.config.hidden, seed=seed + index)
            if attention.compress is not None:
                attention.compress(x, rows, self.views)
            outputs.append(attention(x, rows, self.views, selections))
        return outputs


EARLIER = [(0, 0, 300), (1, 0, 129), (2, 0, 17)]
MIXED = [(2, 17, 1), (0, 300, 45), (3, 0, 3), (1, 129, 2)]


@pytest.mark.parametrize("family", LAYERS)
def test_attention_with_all_its_state_agrees_with_plain_operations(
    pairs: dict[str, Pair], family: str
) -> None:
    fast, slow = (Sequences(model) for model in pairs[family])
    for step, spans in enumerate((EARLIER, MIXED)):
        found = fast.run(LAYERS[family], fast.rows(spans), seed=100 * step)
        expected = slow.run(LAYERS[family], slow.rows(spans), seed=100 * step)
        for kind, mine, theirs in zip(KINDS[family], found, expected, strict=True):
            assert bool(mine.isfinite().all()), kind
            wrong = (mine.float() - theirs.float()).abs() > 0.03 * theirs.float().std()
            assert wrong.float().mean() < 0.01, f"{kind}: {wrong.float().mean()} differ"


@pytest.mark.parametrize("family", LAYERS)
def test_entries_and_keys_agree_with_plain_operations(pairs: dict[str, Pair], family: str) -> None:
    fast, slow = (Sequences(model) for model in pairs[family])
    for step, spans in enumerate((EARLIER, MIXED)):
        fast.run(LAYERS[family], fast.rows(spans), seed=step)
        slow.run(LAYERS[family], slow.rows(spans), seed=step)
    for name in ("entries", "keys", "raw", "index_raw", "window"):
        for layer, mine in getattr(fast.views, name).items():
            theirs = getattr(slow.views, name)[layer]
            is_written = theirs.isfinite()
            assert torch.equal(is_written, mine.isfinite()), f"{name} of layer {layer}"
            a, b = mine[is_written].float(), theirs[is_written].float()
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def _chunkings(num_tokens: int) -> Iterator[list[tuple[int, int]]]:
    for sizes in ([num_tokens], [1, 130, 3, 50], [64]):
        yield list(cut(num_tokens, sizes))


@pytest.mark.parametrize(("family", "index"), CASES)
def test_chunks_change_no_bit(pairs: dict[str, Pair], family: str, index: int) -> None:
    model = pairs[family][0]
    layers = LAYERS[family][: index + 1]
    x_of = {layer: _random(200, model.config.hidden, seed=layer) for layer in layers}
    results = []
    for spans in _chunkings(200):
        state = Sequences(model)
        rows_out = []
        for start, end in spans:
            rows = state.rows([(0, start, end - start)])
            selections: dict[int, Selection] = {}
            for layer in layers:
                attention = model._layers[layer]._attention
                x = x_of[layer][start:end].contiguous()
                if attention.compress is not None:
                    attention.compress(x, rows, state.views)
                output = attention(x, rows, state.views, selections)
            rows_out.append(output)
        results.append(torch.cat(rows_out))
    assert all(torch.equal(found, results[0]) for found in results[1:])


@pytest.mark.parametrize("lagged", [True, False])
def test_streams_agree_with_plain_operations(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, lagged: bool
) -> None:
    mixing = pairs["v4.1"][0]._layers[3]._attention_mix
    monkeypatch.setattr(mixing, "is_lagged", lagged)
    streams, output = _random(70, 4, 192, seed=1), _random(70, 192, seed=2)
    pre = torch.rand(70, 4, generator=torch.Generator().manual_seed(3))
    x, mix = mixing.read(streams, pre)
    written = mixing.write(streams, output, mix)
    parts = [mixing.read(streams[at : at + 1], pre[at : at + 1])[0] for at in range(70)]
    assert torch.equal(torch.cat(parts), x)
    monkeypatch.setattr(mhc, "is_compiled", lambda streams: False)
    plain_x, plain = mixing.read(streams, pre)
    torch.testing.assert_close(x.float(), plain_x.float(), rtol=0.01, atol=0.01)
    for name in ("pre", "post", "comb"):
        found, expected = getattr(mix, name), getattr(plain, name)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    again = mixing.write(streams, output, mix)
    torch.testing.assert_close(written.float(), again.float(), rtol=0.01, atol=0.01)


def test_two_streams_are_balanced_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random_v41(tmp_path, changes={"hc_mult": 2})
    mixing = _loaded(tmp_path)._layers[3]._attention_mix
    streams = _random(9, 2, 192, seed=1)
    pre = torch.rand(9, 2)
    _, mix = mixing.read(streams, pre)
    monkeypatch.setattr(mhc, "is_compiled", lambda streams: False)
    torch.testing.assert_close(mix.comb, mixing.read(streams, pre)[1].comb, rtol=1e-5, atol=1e-5)


def test_a_v4_model_in_bf16_gives_the_same_bits_in_any_chunks(pairs: dict[str, Pair]) -> None:
    model = pairs["v4"][0]
    tokens = np.random.default_rng(0).integers(2, 300, 200).tolist()
    found = []
    for spans in _chunkings(200):
        cache = model.new_cache(2)
        with cache.allocate(2) as lease:
            for start, end in spans:
                chunk = SequenceChunk(tokens[start:end], start, lease.pages, True, lease.window)
                logits = model.forward([chunk], cache)
        found.append(logits)
    assert all(torch.equal(logits, found[0]) for logits in found[1:])
