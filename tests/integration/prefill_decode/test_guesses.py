"""Guesses change nothing that a reader, the next turn or the store can see."""

from __future__ import annotations

import asyncio

import pytest
import torch
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.models.drafts import Drafts
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_policy.blocks import block_keys
from rorqual_runtime.errors import Unsupported

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import NAMESPACE, SlowModel, running_fleet
from tests.support.model import random_v41_dir
from tests.support.waiting import until

LENGTHS = (5, 120, 127, 300)
SAMPLING = ({}, {"temperature": 0.5, "top_p": 0.75, "seed": 11}) * 2
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return load_model(random_v41_dir(), options=LoadOptions(drafts=True))


class WellDrafted(SlowModel):
    """A model whose draft module, besides its own guesses, knows the answers: the first few of a
    block are right, how many changes from place to place."""

    def __init__(self, model: CausalModel, answers: list[list[int]]) -> None:
        super().__init__(model, 0.0)
        self.num_drafts = model.num_drafts
        self._answers = answers

    def draft(self, anchors, cache, sampler):
        found = self._model.draft(anchors, cache, sampler)
        tokens = found.tokens.clone()
        for row, anchor in enumerate(anchors):
            at = anchor.position
            known = [a for a in self._answers if a[at : at + 1] == [anchor.token_id]]
            right = [token for answer in known[:1] for token in answer[at + 1 :][: at % 6]]
            tokens[row, : len(right)] = torch.tensor(right, dtype=torch.int64)
        sure = torch.full_like(found.confidences, 0.9)
        return Drafts(tokens, found.logits, found.raw_confidences, sure)


async def test_answers_next_turns_and_blocks_are_those_without(runtime_settings, model):
    """Most answers go past the end of a block, so that steps end on either side of it."""
    engine = BareEngine(model, num_pages=64)
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    expected = [
        engine.generate([p], GenerationParams(NUM_TOKENS, ignore_eos=True, **sampling))[0]
        for p, sampling in zip(prompts, SAMPLING, strict=True)
    ]
    wholes = [[*token_ids, *answer] for token_ids, answer in zip(prompts, expected, strict=True)]
    drafted = WellDrafted(model, wholes)
    decode = {"drafter": "dspark", "guess_schedule": "lagged"}
    async with running_fleet(runtime_settings, drafted, random_v41_dir(), decode=decode) as fleet:

        async def complete(name: str, token_ids: list[int], sampling: dict) -> list[int]:
            options = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, **sampling}
            return (await fleet.around.complete(name, token_ids, **options)).token_ids

        each = enumerate(zip(prompts, SAMPLING, strict=True))
        answers = await asyncio.gather(*(complete(f"a{n}", p, s) for n, (p, s) in each))
        assert answers == expected
        names = {"fingerprint": model.fingerprint, "namespace": NAMESPACE}
        keys = {key for whole in wholes for key in block_keys(whole[:-1], **names)}
        await until(lambda: fleet.around.registered.keys() >= keys)
        turns = [[*whole, 7, 8] for whole in wholes]
        next_answers = [await complete(f"b{n}", turn, {}) for n, turn in enumerate(turns)]
        await fleet.nothing_held()
        ((_, instance),) = fleet.decode
        totals = instance.service.guess_totals
    assert totals.num_guessed > totals.num_taken > 10
    params = GenerationParams(NUM_TOKENS, ignore_eos=True)
    assert next_answers == [engine.generate([turn], params)[0] for turn in turns]


async def test_a_draft_module_that_is_not_there_ends_the_start(
    runtime_settings, tiny_model, tiny_dir
):
    with pytest.raises(Unsupported, match="needs a checkpoint with a draft module"):
        async with running_fleet(
            runtime_settings, tiny_model, tiny_dir, decode={"drafter": "dspark"}
        ):
            pass
