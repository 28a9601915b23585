"""Greedy output through the fleet equals transformers', and itself under every circumstance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.chat import Answer, GreedyChat
from tests.e2e.conftest import connect
from tests.e2e.prompts import PROMPTS
from tests.e2e.reference import GreedyOracle
from tests.support.fleet import RunningFleet, running_fleet


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> GreedyChat:
    return GreedyChat(model_dir)


@pytest.fixture(scope="module")
def answers(shared_fleet: RunningFleet, chat: GreedyChat) -> list[Answer]:
    """Every prompt for the first time, one after the other, on one prefill and one decode."""
    with connect(shared_fleet) as client:
        return [chat.ask(client, prompt) for prompt in PROMPTS]


def test_the_prompts_span_one_to_three_thousand_tokens(chat: GreedyChat) -> None:
    lengths = [len(chat.prompt_ids(prompt)) for prompt in PROMPTS]
    overhead = len(chat.prompt_ids(""))
    assert min(lengths) - overhead == 1
    assert 2900 <= max(lengths) - overhead <= 3100


def test_output_equals_transformers_up_to_bf16_ties(
    answers: list[Answer], model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = GreedyOracle(model_dir)
    num_tokens, ties = 0, []
    for answer in answers:
        assert answer.output_ids
        num_tokens += len(answer.output_ids)
        for found in oracle.mismatches(answer.prompt_ids, answer.output_ids):
            ties.append(found)
            assert found.is_near_tie, f"not a tie: {found} of {answer}"
    with capsys.disabled():
        worst = max((t.gap for t in ties), default=0.0)
        noise = max((t.noise for t in ties), default=0.0)
        print(
            f"\n{num_tokens} greedy tokens of {len(answers)} prompts: {len(ties)} near ties, "
            f"largest gap {worst:.4f}, bf16 noise there up to {noise:.4f}"
        )
    assert len(ties) <= num_tokens // 20


def test_a_cached_prefix_changes_nothing(
    answers: list[Answer], chat: GreedyChat, shared_fleet: RunningFleet
) -> None:
    with connect(shared_fleet) as client:
        again = [chat.ask(client, prompt) for prompt in PROMPTS]
    assert [a.output_ids for a in again] == [a.output_ids for a in answers]
    long = [a for a in again if len(a.prompt_ids) > 300]
    assert long and all(a.cached_tokens >= 256 for a in long)


def test_batch_composition_chunking_and_2p2d_change_nothing(
    answers: list[Answer], chat: GreedyChat, tmp_path: Path
) -> None:
    env = {"RORQUAL_PREFILL_STEP_TOKENS": "192"}
    with (
        running_fleet(tmp_path, prefill=2, decode=2, env=env) as other,
        connect(other) as client,
        ThreadPoolExecutor(len(PROMPTS)) as pool,
    ):
        together = list(pool.map(lambda prompt: chat.ask(client, prompt), PROMPTS))
    assert [a.output_ids for a in together] == [a.output_ids for a in answers]
