"""The draft module: the independent reference's guesses, a loop that changes no token, no trace of
rows that were taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rorqual_engine.errors import BadChunk
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.drafts import Anchor
from rorqual_engine.prepare.random_v41 import TINY_V41, random_tensors, write_random_v41

from tests.support.deepseek_reference import DraftReference, Rule, TextReference
from tests.unit.engine.deepseek.draft_runs import (
    assert_close,
    dirty_cache,
    expected_drafts,
    load_with_drafts,
    sequence,
)
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
    return load_with_drafts(model_dir, "bfloat16")


@pytest.fixture(scope="module")
def exact(model_dir: Path) -> DeepseekModel:
    return load_with_drafts(model_dir, "float32")


@pytest.fixture(scope="module")
def target() -> TextReference:
    return TextReference(FIELDS, random_tensors(FIELDS, 0))


@pytest.mark.parametrize("num_tokens", [1, 5, 16, 90])
def test_a_block_behind_a_prompt_is_the_references(
    exact: DeepseekModel, target: TextReference, num_tokens: int
) -> None:
    ids = IDS[:num_tokens]
    with sequence(exact) as running:
        running.prefill(ids, [37, 5])
        found = running.draft(9)
    assert_close(found, expected_drafts(target, ids, 9, Rule.tail(num_tokens, W)))


def test_a_block_behind_decoded_and_verified_rows_is_the_references(
    exact: DeepseekModel, target: TextReference
) -> None:
    with sequence(exact) as running:
        running.prefill(IDS[:40])
        for token in IDS[40:50]:
            running.step(token)
        running.verify([*IDS[50:53], 7, 8, 9])
        running.length += 3
        found = running.draft(11)
        assert_close(found, expected_drafts(target, IDS[:53], 11, Rule(late_floor=40 - W)))


def test_neither_chunks_nor_others_change_a_bit_of_a_block(model: DeepseekModel) -> None:
    cache = dirty_cache(model)
    found = []
    for sizes in ([100], [1], [30, 3]):
        with sequence(model, cache) as running:
            running.prefill(IDS[:100], sizes)
            found.append(running.draft(9))
    with (
        sequence(model, cache) as one,
        sequence(model, cache) as short,
        sequence(model, cache) as two,
    ):
        for running, ids in ((one, IDS[:100]), (short, IDS[:3]), (two, IDS[20:77])):
            running.prefill(ids)
        anchors = [two.anchor(5), short.anchor(6), one.anchor(9)]
        together = model.draft(anchors, cache)
    for other in found[1:]:
        assert torch.equal(other.logits, found[0].logits)
        assert torch.equal(other.confidences, found[0].confidences)
    assert torch.equal(together.logits[2:], found[0].logits)
    assert torch.equal(together.confidences[2:], found[0].confidences)


def test_compiled_steps_of_a_block_are_those_of_plain_torch(
    model: DeepseekModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to bf16, also where a replay began within the window, and with experts that fill no whole
    vector."""
    assert model.dspark is not None
    with sequence(model) as running:
        running.prefill(IDS[:90])
        anchors = [running.anchor(9), replace(running.anchor(30), window_floor=83)]
        found = model.draft(anchors, running.cache)
        for stage in model.dspark._stages:
            assert stage._attention._is_compiled
            assert stage._moe._router._compiled is not None
            monkeypatch.setattr(stage._attention, "_is_compiled", False)
            monkeypatch.setattr(stage._moe._router, "_compiled", None)
        plain = model.draft(anchors, running.cache)
    first, plain_first = found.logits[:, 0], plain.logits[:, 0]
    assert (first - plain_first).std() < 0.05 * plain_first.std()
    assert (first[0] - first[1]).std() > 0.2 * plain_first.std()


def test_a_verify_steps_rows_are_the_rows_of_single_steps(model: DeepseekModel) -> None:
    """Of two sequences in one pass, with different numbers of rows, and a prompt beside them."""
    cache = dirty_cache(model)
    starts, rows = (40, 57), (IDS[100:106], IDS[106:108])
    expected = []
    for start, ids in zip(starts, rows, strict=True):
        with sequence(model, cache) as running:
            running.prefill(IDS[:start])
            expected += [running.step(token) for token in ids]
    with (
        sequence(model, cache) as one,
        sequence(model, cache) as prompt,
        sequence(model, cache) as two,
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
    after = IDS[20:30]
    found = []
    for rejects in (False, True):
        with sequence(model) as running:
            running.prefill(IDS[:119])
            for turn in range(4):
                at = 119 + turn * (num_accepted + 1)
                kept = IDS[at : at + num_accepted + 1]
                if rejects:
                    running.verify([*kept, *IDS[140 : 145 - num_accepted]])
                    running.length += len(kept)
                else:
                    for token in kept:
                        running.step(token)
            parts = [running.saved(), running.draft(9).logits]
            more = running.chunk(after, wants_logits=True, defers_late=True)
            parts.append(model.forward([more], running.cache))
            running.length += len(after)
            parts += [running.saved(), running.draft(9).logits, running.step(4)]
            found.append(parts)
    for plain, speculative in zip(*found, strict=True):
        assert torch.equal(plain, speculative)


def test_a_greedy_loop_with_drafts_gives_the_plain_tokens(model: DeepseekModel) -> None:
    """Some drafts right, some wrong: real ones are mixed with the plain run's own tokens."""
    with sequence(model) as running:
        plain = [int(running.prefill(IDS[:60]).argmax())]
        while len(plain) < 60:
            plain.append(int(running.step(plain[-1]).argmax()))
    accepted: list[int] = []
    with sequence(model) as running:
        found = [int(running.prefill(IDS[:60]).argmax())]
        while len(found) < 50:
            drafts = running.draft(found[-1]).tokens[0].tolist()
            right = len(accepted) % 5
            guesses = plain[len(found) : len(found) + right] + drafts[right:]
            logits = running.verify([found[-1], *guesses])
            chosen = logits.argmax(-1).tolist()
            count = 0
            while count < len(guesses) and guesses[count] == chosen[count]:
                count += 1
            found += chosen[: count + 1]
            running.length += count + 1
            accepted.append(count)
    assert found == plain[: len(found)]
    assert max(accepted) >= 4 and min(accepted) < 4


def test_a_draft_goes_on_in_another_slot(model: DeepseekModel) -> None:
    cache = dirty_cache(model)
    with sequence(model, cache) as first, sequence(model, cache) as second:
        first.prefill(IDS[:60])
        assert second.lease.window is not None
        model.load_window(cache, second.lease.window, 60, first.saved())
        second.length = 60
        assert torch.equal(second.draft(9).logits, first.draft(9).logits)


def test_nothing_before_a_replay_is_read(exact: DeepseekModel, target: TextReference) -> None:
    with sequence(exact) as running:
        running.prefill(IDS[:60])
        reference = DraftReference(target)
        context = reference.context(target(IDS[:60], Rule.tail(60, W)))
        window = running.lease.window
        assert window is not None
        found = exact.draft([Anchor(9, 60, window, window_floor=52)], running.cache)
    block = reference.block(context, 9, 60, valid_from=52)
    expected = reference.corrected(block, 0, 9).float()
    torch.testing.assert_close(found.logits[0, 0], expected, rtol=0, atol=1e-4)


def test_only_who_asks_has_drafts(model_dir: Path, model: DeepseekModel) -> None:
    without = load_model(model_dir)
    assert isinstance(without, DeepseekModel) and without.dspark is None
    assert without.fingerprint != model.fingerprint
    assert without.kv_layout.window is not None and model.kv_layout.window is not None
    ring = W * 2 * SMALL["head_dim"] * 2
    more = model.kv_layout.window.snapshot_bytes - without.kv_layout.window.snapshot_bytes
    assert more == ring


def test_rows_that_wait_have_no_logits(model: DeepseekModel) -> None:
    with sequence(model) as running:
        chunk = running.chunk([3, 4], wants_logits=True, all_logits=True, defers_late=True)
        with pytest.raises(BadChunk, match="wait for the late layers"):
            model.forward([chunk], running.cache)
