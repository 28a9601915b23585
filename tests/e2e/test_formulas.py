"""The whole fleet in fp32 gives the log-probabilities of the model's formulas.

The other tests compare the fleet with the engine; here nothing of the engine is on the other side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.support.deepseek_reference import Rule, TextReference
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.model import random_v41_dir

TOLERANCE = 1e-2
"""Rounding that decides between nearly equal entries moves a result by some 1e-3; one row too many
or too few in a window moves it by 0.1 and more."""
WINDOW = 128
SEED = 12
"""Of long prompts in which no choice of entries is nearly a tie, so that rounding decides none."""
NUM_ANSWERED = 6


@dataclass
class Answer:
    """Tokens of an answer as far as their text tells their ids, each with its log-probability."""

    ids: list[int]
    logprobs: list[float]
    num_cached: int


@pytest.fixture(scope="module")
def reference() -> TextReference:
    directory = random_v41_dir()
    config = json.loads((directory / "config.json").read_text())
    return TextReference(config, load_file(directory / "model.safetensors"))


@pytest.fixture(scope="module")
def exact_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    env = {"RORQUAL_PREFILL_DTYPE": "float32", "RORQUAL_DECODE_DTYPE": "float32"}
    home = tmp_path_factory.mktemp("exact")
    with running_fleet(home, model=str(random_v41_dir()), env=env) as running:
        yield running


class Client:
    """Asks for the most likely continuation of token ids."""

    def __init__(self, base_url: str, directory: Path) -> None:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._url = f"{base_url}/v1/completions"
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(4096)]
        self._ids = {text: token for token, text in enumerate(texts) if "\ufffd" not in text}

    def ask(self, prompt: list[int]) -> Answer:
        body = {"prompt": prompt, "max_tokens": NUM_ANSWERED, "temperature": 0, "logprobs": 1}
        got = httpx.post(self._url, json={"model": "random-v41", **body}, timeout=60).json()
        logprobs, ids = got["choices"][0]["logprobs"], []
        for text in logprobs["tokens"]:
            if text not in self._ids:
                break
            ids.append(self._ids[text])
        cached = got["usage"]["prompt_tokens_details"]["cached_tokens"]
        return Answer(ids, logprobs["token_logprobs"][: len(ids)], cached)


@pytest.fixture(scope="module")
def client(exact_fleet: RunningFleet) -> Client:
    return Client(exact_fleet.base_url, random_v41_dir())


def _tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 4000, count).tolist()


def _worst(reference: TextReference, prompt: list[int], answer: Answer, replayed: int = 0) -> float:
    """The largest difference, when a stored prefix of `replayed` tokens was without its windows."""
    assert answer.ids, "nothing to compare"
    rule = Rule(late_floor=max(0, len(prompt) - WINDOW))
    if replayed:
        stored = reference(prompt[:replayed]).stored(replayed, reference.shape)
        rule = Rule(replayed - WINDOW, rule.late_floor, stored)
    logprobs = reference([*prompt, *answer.ids], rule).logits.log_softmax(-1)
    rows = range(len(prompt) - 1, len(prompt) - 1 + len(answer.ids))
    found = zip(rows, answer.ids, answer.logprobs, strict=True)
    return max(abs(float(logprobs[row, token]) - value) for row, token, value in found)


@pytest.mark.parametrize("num_tokens", [20, 128, 129, 200])
def test_a_cold_prompt(client: Client, reference: TextReference, num_tokens: int) -> None:
    prompt = _tokens(num_tokens, seed=num_tokens)
    answer = client.ask(prompt)
    assert answer.num_cached == 0
    assert _worst(reference, prompt, answer) < TOLERANCE


def test_a_stored_prefix_with_its_windows_changes_nothing(
    client: Client, reference: TextReference
) -> None:
    prompt = _tokens(270, seed=SEED)
    first, second = client.ask(prompt), client.ask(prompt)
    longer = [*prompt, *_tokens(20, seed=2)]
    third = client.ask(longer)
    assert (first.num_cached, second.num_cached, third.num_cached) == (0, 256, 256)
    for given, answer in ((prompt, first), (prompt, second), (longer, third)):
        assert _worst(reference, given, answer) < TOLERANCE


def test_a_stored_prefix_without_its_windows_is_replayed(
    client: Client, reference: TextReference
) -> None:
    """Another prompt went on behind it, so windows were kept for another place only."""
    shared = _tokens(256, seed=SEED + 1)
    client.ask([*shared, *_tokens(140, seed=4)])
    prompt = [*shared, *_tokens(20, seed=5)]
    answer = client.ask(prompt)
    assert answer.num_cached == 256 - WINDOW
    assert _worst(reference, prompt, answer, replayed=256) < TOLERANCE
    assert _worst(reference, prompt, answer) > 10 * TOLERANCE
