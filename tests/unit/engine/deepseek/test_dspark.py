"""The draft module: the independent reference's guesses, a loop that changes no token, no trace of
rows that were taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk, CorruptModel, UnsupportedModel
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.dspark import Anchor
from rorqual_engine.models.deepseek.dspark_heads import Drafts, by_temperature
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.prepare.random_v41 import TINY_V41, random_tensors, write_random_v41
from rorqual_engine.sampling import SamplingState

from tests.support.deepseek_reference import DraftReference, Rule, TextReference
from tests.support.engine_runs import cut
from tests.unit.engine.deepseek.reference_runs import SMALL, Prompt

W = 16
FIELDS = {
    **SMALL,
    "dspark_config": {**TINY_V41["dspark_config"], "taps": [4, 5], "noise_id": 301},
}
IDS = Prompt.random(150).ids


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dspark")
    write_random_v41(directory, changes=FIELDS)
    return directory


@pytest.fixture(scope="module")
def model(model_dir: Path) -> DeepseekModel:
    return _loaded(model_dir, "bfloat16")


@pytest.fixture(scope="module")
def exact(model_dir: Path) -> DeepseekModel:
    return _loaded(model_dir, "float32")


@pytest.fixture(scope="module")
def target() -> TextReference:
    return TextReference(FIELDS, random_tensors(FIELDS, 0))


def _loaded(directory: Path, dtype: str) -> DeepseekModel:
    loaded = load_model(directory, dtype=dtype, options=LoadOptions(drafts=True))
    assert isinstance(loaded, DeepseekModel)
    return loaded


@dataclass
class Drafting:
    """ids of which the first `length` are in the state."""

    model: DeepseekModel
    cache: PagedKvCache
    lease: PageLease
    ids: list[int] = field(default_factory=list)
    length: int = 0

    def chunk(self, ids: Sequence[int], **options: Any) -> SequenceChunk:
        return SequenceChunk(
            ids, self.length, self.lease.pages, window=self.lease.window, **options
        )

    def prefill(self, ids: Sequence[int], sizes: Sequence[int] = (1000,)) -> torch.Tensor:
        """As a prompt, late layers last; logits of the last token."""
        logits = torch.empty(0)
        for start, end in cut(len(ids), sizes):
            is_last = end == len(ids)
            chunk = self.chunk(ids[start:end], wants_logits=is_last, defers_late=True)
            logits = self.model.forward([chunk], self.cache)
            self.length += end - start
        self.ids = list(ids)
        return logits[0]

    def step(self, token: int) -> torch.Tensor:
        logits = self.model.forward([self.chunk([token], wants_logits=True)], self.cache)
        self.ids.append(token)
        self.length += 1
        return logits[0]

    def verify(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of every row; nothing counts as run yet."""
        chunk = self.chunk(rows, wants_logits=True, all_logits=True)
        return self.model.forward([chunk], self.cache)

    def anchor(self, token: int) -> Anchor:
        assert self.lease.window is not None
        return Anchor(token, self.length, self.lease.window)

    def draft(self, token: int) -> Drafts:
        return self.model.draft([self.anchor(token)], self.cache)

    def saved(self) -> torch.Tensor:
        assert self.lease.window is not None
        return self.model.save_window(self.cache, self.lease.window, self.length)


@contextmanager
def _sequence(model: DeepseekModel, cache: PagedKvCache | None = None) -> Iterator[Drafting]:
    """In a cache full of NaN."""
    if cache is None:
        cache = _cache(model)
    with cache.allocate(3) as lease:
        yield Drafting(model, cache, lease)


def _cache(model: DeepseekModel, num_pages: int = 12) -> PagedKvCache:
    cache = model.new_cache(num_pages)
    cache.pages.fill_(255)
    cache.windows.fill_(255)
    return cache


def _expected(target: TextReference, ids: Sequence[int], anchor: int, rule: Rule) -> Drafts:
    reference = DraftReference(target)
    trace = target(ids, rule)
    block = reference.block(reference.context(trace), anchor, len(ids), rule.late_floor)
    tokens = reference.greedy(block, anchor)
    before = [anchor, *tokens[:-1]]
    logits = [reference.corrected(block, k, token) for k, token in enumerate(before)]
    sure = [reference.confidence(block, k, token) for k, token in enumerate(before)]
    return Drafts(
        torch.tensor([tokens]), torch.stack(logits)[None], torch.empty(0), torch.stack(sure)[None]
    )


def _assert_close(found: Drafts, expected: Drafts) -> None:
    torch.testing.assert_close(found.logits, expected.logits.float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.confidences, expected.confidences.float(), rtol=0, atol=1e-5)
    assert found.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("num_tokens", [1, 5, 16, 90])
def test_a_block_behind_a_prompt_is_the_references(
    exact: DeepseekModel, target: TextReference, num_tokens: int
) -> None:
    ids = IDS[:num_tokens]
    with _sequence(exact) as sequence:
        sequence.prefill(ids, [37, 5])
        found = sequence.draft(9)
    _assert_close(found, _expected(target, ids, 9, Rule.tail(num_tokens, W)))


def test_a_block_behind_decoded_and_verified_rows_is_the_references(
    exact: DeepseekModel, target: TextReference
) -> None:
    with _sequence(exact) as sequence:
        sequence.prefill(IDS[:40])
        for token in IDS[40:50]:
            sequence.step(token)
        sequence.verify([*IDS[50:53], 7, 8, 9])
        sequence.length += 3
        found = sequence.draft(11)
        _assert_close(found, _expected(target, IDS[:53], 11, Rule(late_floor=40 - W)))


def test_neither_chunks_nor_others_change_a_bit_of_a_block(model: DeepseekModel) -> None:
    cache = _cache(model)
    found = []
    for sizes in ([100], [1], [30, 3]):
        with _sequence(model, cache) as sequence:
            sequence.prefill(IDS[:100], sizes)
            found.append(sequence.draft(9))
    with (
        _sequence(model, cache) as one,
        _sequence(model, cache) as short,
        _sequence(model, cache) as two,
    ):
        for sequence, ids in ((one, IDS[:100]), (short, IDS[:3]), (two, IDS[20:77])):
            sequence.prefill(ids)
        anchors = [two.anchor(5), short.anchor(6), one.anchor(9)]
        together = model.draft(anchors, cache)
    for other in found[1:]:
        assert torch.equal(other.logits, found[0].logits)
        assert torch.equal(other.confidences, found[0].confidences)
    assert torch.equal(together.logits[2:], found[0].logits)
    assert torch.equal(together.confidences[2:], found[0].confidences)


def test_a_verify_steps_rows_are_the_rows_of_single_steps(model: DeepseekModel) -> None:
    """Of two sequences in one pass, with different numbers of rows, and a prompt beside them."""
    cache = _cache(model)
    starts, rows = (40, 57), (IDS[100:106], IDS[106:108])
    expected = []
    for start, ids in zip(starts, rows, strict=True):
        with _sequence(model, cache) as sequence:
            sequence.prefill(IDS[:start])
            expected += [sequence.step(token) for token in ids]
    with (
        _sequence(model, cache) as one,
        _sequence(model, cache) as prompt,
        _sequence(model, cache) as two,
    ):
        one.prefill(IDS[:40])
        two.prefill(IDS[:57])
        every = {"wants_logits": True, "all_logits": True}
        chunks = [
            one.chunk(rows[0], **every),
            prompt.chunk(IDS[:30], wants_logits=True, defers_late=True),
            two.chunk(rows[1], **every),
        ]
        found = model.forward(chunks, cache)
        del chunks[1]
        without = model.forward(chunks, cache)
    assert len(found) == 9
    assert torch.equal(torch.cat([found[:6], found[7:]]), torch.stack(expected))
    assert torch.equal(without, torch.stack(expected))


@pytest.mark.parametrize("num_accepted", [0, 1, 3])
def test_rows_taken_back_leave_no_trace(model: DeepseekModel, num_accepted: int) -> None:
    """Neither in later logits and blocks nor in what travels, nor in a prompt that goes on."""
    after = IDS[70:80]
    found = []
    for rejects in (False, True):
        with _sequence(model) as sequence:
            sequence.prefill(IDS[:50])
            for turn in range(4):
                at = 50 + turn * (num_accepted + 1)
                kept = IDS[at : at + num_accepted + 1]
                if rejects:
                    sequence.verify([*kept, *IDS[140 : 145 - num_accepted]])
                    sequence.length += len(kept)
                else:
                    for token in kept:
                        sequence.step(token)
            parts = [sequence.saved(), sequence.draft(9).logits]
            more = sequence.chunk(after, wants_logits=True, defers_late=True)
            parts.append(model.forward([more], sequence.cache))
            sequence.length += len(after)
            parts += [sequence.saved(), sequence.draft(9).logits, sequence.step(4)]
            found.append(parts)
    for plain, speculative in zip(*found, strict=True):
        assert torch.equal(plain, speculative)


def test_a_greedy_loop_with_drafts_gives_the_plain_tokens(model: DeepseekModel) -> None:
    """Some drafts right, some wrong: real ones are mixed with the plain run's own tokens."""
    with _sequence(model) as sequence:
        plain = [int(sequence.prefill(IDS[:60]).argmax())]
        while len(plain) < 60:
            plain.append(int(sequence.step(plain[-1]).argmax()))
    accepted: list[int] = []
    with _sequence(model) as sequence:
        found = [int(sequence.prefill(IDS[:60]).argmax())]
        while len(found) < 50:
            drafts = sequence.draft(found[-1]).tokens[0].tolist()
            right = len(accepted) % 5
            guesses = plain[len(found) : len(found) + right] + drafts[right:]
            logits = sequence.verify([found[-1], *guesses])
            chosen = logits.argmax(-1).tolist()
            count = 0
            while count < len(guesses) and guesses[count] == chosen[count]:
                count += 1
            found += chosen[: count + 1]
            sequence.length += count + 1
            accepted.append(count)
    assert found == plain[: len(found)]
    assert max(accepted) >= 4 and min(accepted) < 4


def test_a_draft_goes_on_in_another_slot(model: DeepseekModel) -> None:
    cache = _cache(model)
    with _sequence(model, cache) as first, _sequence(model, cache) as second:
        first.prefill(IDS[:60])
        assert second.lease.window is not None
        model.load_window(cache, second.lease.window, 60, first.saved())
        second.length = 60
        assert torch.equal(second.draft(9).logits, first.draft(9).logits)


def test_nothing_before_a_replay_is_read(exact: DeepseekModel, target: TextReference) -> None:
    with _sequence(exact) as sequence:
        sequence.prefill(IDS[:60])
        reference = DraftReference(target)
        context = reference.context(target(IDS[:60], Rule.tail(60, W)))
        window = sequence.lease.window
        assert window is not None
        found = exact.draft([Anchor(9, 60, window, window_floor=52)], sequence.cache)
    block = reference.block(context, 9, 60, valid_from=52)
    expected = reference.corrected(block, 0, 9).float()
    torch.testing.assert_close(found.logits[0, 0], expected, rtol=0, atol=1e-4)


def test_guesses_are_drawn_from_the_logits_that_are_returned(model: DeepseekModel) -> None:
    with _sequence(model) as sequence:
        sequence.prefill(IDS[:30])
        anchors = [sequence.anchor(9)] * 400
        states = [SamplingState(temperature=1.5, seed=s, position=31) for s in range(400)]
        found = model.draft(anchors, sequence.cache, by_temperature(states))
        again = model.draft(anchors[:7], sequence.cache, by_temperature(states[:7]))
    assert torch.equal(found.tokens[:7], again.tokens)
    assert torch.equal(found.logits[:, 0], found.logits[:1, 0].expand(400, -1))
    chances = torch.softmax(found.logits[0, 0] / 1.5, -1)
    counts = torch.bincount(found.tokens[:, 0], minlength=len(chances)) / 400
    assert (counts - chances).abs().max() < 4 * (chances * (1 - chances) / 400).sqrt().max()
    by_first = {int(t): row for t, row in zip(found.tokens[:, 0], found.logits[:, 1], strict=True)}
    for token, row in zip(found.tokens[:, 0], found.logits[:, 1], strict=True):
        assert torch.equal(row, by_first[int(token)])  # a guess depends on the one before it
    assert len({float(row[0]) for row in by_first.values()}) > 1


def test_confidence_temperatures(tmp_path: Path, model: DeepseekModel) -> None:
    scales = [0.5, 1.0, 2.0, 4.0, 8.0]
    draft = {**FIELDS["dspark_config"], "confidence_temperatures": scales}
    write_random_v41(tmp_path, changes={**FIELDS, "dspark_config": draft})
    found = []
    for loaded in (model, _loaded(tmp_path, "bfloat16")):
        with _sequence(loaded) as sequence:
            sequence.prefill(IDS[:30])
            found.append(sequence.draft(9))
    assert torch.equal(found[0].raw_confidences, found[1].raw_confidences)
    expected = torch.sigmoid(found[0].raw_confidences / torch.tensor(scales))
    assert torch.equal(found[1].confidences, expected)


def test_only_who_asks_has_drafts(model_dir: Path, model: DeepseekModel) -> None:
    without = load_model(model_dir)
    assert isinstance(without, DeepseekModel) and without.dspark is None
    assert without.fingerprint != model.fingerprint
    assert without.kv_layout.window is not None and model.kv_layout.window is not None
    ring = W * 2 * SMALL["head_dim"] * 2
    more = model.kv_layout.window.snapshot_bytes - without.kv_layout.window.snapshot_bytes
    assert more == ring


def test_rows_that_wait_have_no_logits(model: DeepseekModel) -> None:
    with _sequence(model) as sequence:
        chunk = sequence.chunk([3, 4], wants_logits=True, all_logits=True, defers_late=True)
        with pytest.raises(BadChunk, match="wait for the late layers"):
            model.forward([chunk], sequence.cache)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"block": 17}, CorruptModel),
        ({"taps": []}, CorruptModel),
        ({"taps": [2, 5]}, UnsupportedModel),
        ({"taps": [4, 6]}, CorruptModel),
        ({"noise_id": 320}, CorruptModel),
        ({"num_experts_per_tok": 9}, CorruptModel),
        ({"confidence_temperatures": [1.0]}, CorruptModel),
        ({"confidence_temperatures": [1, 1, 1, 1, 0]}, CorruptModel),
    ],
)
def test_wrong_keys_are_named(change: dict[str, Any], error: type[Exception]) -> None:
    fields = {**FIELDS, "dspark_config": {**FIELDS["dspark_config"], **change}}
    with pytest.raises(error, match=rf"dspark_config\.{next(iter(change))}"):
        DeepseekConfig.from_hf(fields)
