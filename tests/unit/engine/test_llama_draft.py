"""The draft module of a plain model: its keys go with the sequence, its guesses change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import CorruptModel
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.models.drafts import Anchor, Drafts, as_the_target_draws
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.sampling import SamplingState, sample
from rorqual_engine.speculation import GuessRequest, Memory, open_drafter

from tests.support.llama_draft import DSPARK, add_draft
from tests.support.tiny_llama import save_tiny_llama

IDS = [(7 * n + n * n) % 509 for n in range(150)]
BLOCK = DSPARK["block"]


@pytest.fixture(scope="module")
def drafting_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafting")
    save_tiny_llama(directory)
    add_draft(directory)
    return directory


@pytest.fixture(scope="module")
def drafting(drafting_dir: Path) -> CausalModel:
    return load_model(drafting_dir, options=LoadOptions(drafts=True))


def run(
    model: CausalModel, cache: PagedKvCache, ids: list[int], start: int, pages: list[int]
) -> torch.Tensor:
    """Logits of every row."""
    chunk = SequenceChunk(ids, start, pages, wants_logits=True, all_logits=True)
    return model.forward([chunk], cache).float()


def guessed(model: CausalModel, sizes: list[int], *, with_detours: bool = False) -> Drafts:
    """Behind IDS, run in parts of these sizes; with_detours: other tokens are run first and taken
    back, as wrong guesses are, and blocks are drafted on the way."""
    cache = model.new_cache(2)
    cache.pages.fill_(255)
    pages, start = cache.allocate(2).pages, 0
    for size in sizes:
        if with_detours and start:
            model.draft([Anchor(IDS[start], start, 0, pages=pages)], cache)
            run(model, cache, [IDS[start], *(3, 4, 5)], start, pages)
        run(model, cache, IDS[start : start + size], start, pages)
        start += size
    assert start == len(IDS)
    return model.draft([Anchor(9, start, 0, pages=pages)], cache)


def test_guesses_depend_on_the_sequence_alone(drafting: CausalModel) -> None:
    expected = guessed(drafting, [150])
    assert expected.tokens.shape == (1, BLOCK)
    assert bool(expected.logits.isfinite().all())
    for sizes in ([100, 50], [*[30] * 5], [1] * 150):
        found = guessed(drafting, sizes, with_detours=True)
        assert torch.equal(found.logits, expected.logits)
        assert torch.equal(found.confidences, expected.confidences)


def test_a_block_does_not_depend_on_the_others(drafting: CausalModel) -> None:
    cache = drafting.new_cache(4)
    leases = [cache.allocate(2), cache.allocate(2)]
    for lease, count in zip(leases, (150, 40), strict=True):
        run(drafting, cache, IDS[:count], 0, lease.pages)
    anchors = [
        Anchor(9, 150, 0, pages=leases[0].pages),
        Anchor(11, 40, 0, pages=leases[1].pages),
    ]
    both = drafting.draft(anchors, cache)
    alone = [drafting.draft([anchor], cache) for anchor in anchors]
    assert torch.equal(both.logits, torch.cat([drafts.logits for drafts in alone]))
    assert torch.equal(both.tokens, torch.cat([drafts.tokens for drafts in alone]))


def test_only_its_own_tokens_are_guessed_each_where_its_logit_is(
    drafting: CausalModel, drafting_dir: Path
) -> None:
    token_ids = add_draft(drafting_dir)["mtp.1.token_ids"]
    drafts = guessed(drafting, [150])
    assert drafts.logits.shape == (1, BLOCK, len(token_ids))
    assert drafts.tokens.tolist() == token_ids[drafts.logits.argmax(-1)].tolist()


def test_the_last_page_ends_a_block(drafting: CausalModel) -> None:
    """Guesses that have rows are those of a whole block."""
    cache = drafting.new_cache(2)
    pages = cache.allocate(2).pages
    run(drafting, cache, IDS[:126], 0, pages)
    whole = drafting.draft([Anchor(9, 126, 0, pages=pages)], cache)
    cut = drafting.draft([Anchor(9, 126, 0, pages=pages[:1])], cache)
    assert torch.equal(cut.logits[:, :2], whole.logits[:, :2])
    assert cut.tokens.shape == whole.tokens.shape


def test_logits_are_those_of_the_model_without_drafts(
    drafting: CausalModel, drafting_dir: Path
) -> None:
    plain = load_model(drafting_dir)
    assert plain.num_drafts == 0
    assert plain.fingerprint != drafting.fingerprint
    found = [
        run(m, (cache := m.new_cache(2)), IDS, 0, cache.allocate(2).pages)
        for m in (plain, drafting)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_checked_guesses_give_the_tokens_of_plain_steps(temperature: float, tmp_path: Path) -> None:
    """On few tokens, so that some guesses hold."""
    save_tiny_llama(tmp_path, vocab_size=8, eos_token_id=None)
    add_draft(tmp_path, num_draft_tokens=6)
    model = load_model(tmp_path, options=LoadOptions(drafts=True))
    prompt = [n % 8 for n in IDS[:100]]

    def state(position: int) -> SamplingState:
        return SamplingState(temperature, seed=5, position=position)

    def drawn(cache: PagedKvCache, ids: list[int], start: int, pages: list[int]) -> list[int]:
        logits = run(model, cache, ids, start, pages)
        states = [state(start + row + 1) for row in range(len(ids))]
        return [int(token) for token in sample(logits, states).ids]

    expected = list(prompt)
    cache = model.new_cache(2)
    pages = cache.allocate(2).pages
    expected.append(drawn(cache, expected, 0, pages)[-1])
    while len(expected) < 160:
        expected.append(drawn(cache, expected[-1:], len(expected) - 1, pages)[0])
    cache = model.new_cache(2)
    pages = cache.allocate(2).pages
    found = [*prompt, drawn(cache, prompt, 0, pages)[-1]]
    drafter = open_drafter("dspark", model, cache, 3)
    num_taken = 0
    while len(found) < 160:
        request = GuessRequest(
            Memory(), found[-1], len(found), state(len(found)), None, 3, pages=pages
        )
        (guesses,) = drafter.guess([request])
        rows = [found[-1], *guesses.token_ids]
        tokens = drawn(cache, rows, len(found) - 1, pages)
        taken = 0
        while taken < 3 and tokens[taken] == guesses.token_ids[taken]:
            taken += 1
        found += tokens[: taken + 1]
        num_taken += taken
    assert found[:160] == expected[:160]
    assert num_taken > 0


def test_the_guess_at_a_place_is_drawn_with_its_noise(
    drafting: CausalModel, drafting_dir: Path
) -> None:
    token_ids = add_draft(drafting_dir)["mtp.1.token_ids"]
    states = [SamplingState(1.0, seed=3, position=150)]
    cache = drafting.new_cache(2)
    pages = cache.allocate(2).pages
    run(drafting, cache, IDS, 0, pages)
    anchor = Anchor(9, 150, 0, pages=pages)
    drafts = drafting.draft([anchor], cache, as_the_target_draws(states))
    places = [
        int(sample(drafts.logits[:, k], [SamplingState(1.0, seed=3, position=150 + k)]).ids[0])
        for k in range(drafts.tokens.shape[1])
    ]
    assert drafts.tokens.tolist() == [token_ids[places].tolist()]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"taps": [4]}, "taps"), ({"block": 17}, "block"), ({"num_draft_tokens": 513}, "num_draft")],
)
def test_a_config_that_cannot_be_is_refused_by_its_key(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    save_tiny_llama(tmp_path)
    add_draft(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["dspark_config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CorruptModel, match=named):
        load_model(tmp_path, options=LoadOptions(drafts=True))
