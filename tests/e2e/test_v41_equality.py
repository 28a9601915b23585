"""random-v41 through the fleet: greedily what its engine says alone, under every circumstance."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import BlockStore

from tests.e2e.chat import _ids_by_bytes
from tests.e2e.test_guesses import guesses
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.model import random_v41_dir
from tests.support.replay import greedy_after_replay
from tests.support.waiting import WAIT_S, until_blocking

MODEL = "random-v41"
LENGTHS = (1, 40, 128, 129, 300, 515, 900)
NUM_TOKENS = 12
UNSEEN = {0, 1, 2, 4090, 4091}
"""Special tokens: they add no text, so no client sees them."""
NO_WINDOWS = {f"RORQUAL_{service}_WINDOW_KEEP_BYTES": "0" for service in ("PREFILL", "DECODE")}
GUESSING = {
    "RORQUAL_DRAFTS": "1",
    "RORQUAL_DECODE_DRAFTER": "dspark",
    "RORQUAL_DECODE_GUESS_SCHEDULE": "fixed",
}
NOTHING_KEPT = {**NO_WINDOWS, "RORQUAL_PREFILL_STEP_TOKENS": "192"}


@dataclass(frozen=True)
class Answer:
    output_ids: list[int]
    num_cached: int


def seen(token_ids: list[int]) -> list[int]:
    return [token for token in token_ids if token not in UNSEEN]


class Client:
    """Continues token ids and reads back the ids of the answer, by the spelling of each token."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._id_of = {
            spelling.decode("utf-8", "backslashreplace"): token_id
            for spelling, token_id in _ids_by_bytes(random_v41_dir()).items()
        }

    def post(self, path: str, **fields: object) -> dict[str, object]:
        answer = self._http.post(path, json={"model": MODEL, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    def ids_of(self, tokens: list[str]) -> list[int]:
        return [self._id_of[token] for token in tokens]

    def ask(self, token_ids: list[int], num_tokens: int = NUM_TOKENS) -> Answer:
        done = self.post(
            "/v1/completions",
            prompt=token_ids,
            max_tokens=num_tokens,
            temperature=0,
            logprobs=1,
            ignore_eos=True,
        )
        (choice,) = done["choices"]  # type: ignore[misc]
        usage = done["usage"]
        shown = self.ids_of(choice["logprobs"]["tokens"])
        return Answer(shown, usage["prompt_tokens_details"]["cached_tokens"])  # type: ignore[index]


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return load_model(random_v41_dir())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(3, 4000, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(model: CausalModel, prompts: list[list[int]]) -> list[list[int]]:
    """By the engine alone, one prompt at a time."""
    engine = BareEngine(model, num_pages=16)
    params = GenerationParams(NUM_TOKENS, ignore_eos=True)
    return [seen(engine.generate([prompt], params)[0]) for prompt in prompts]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("v41"), model=str(random_v41_dir())) as running:
        yield running


@contextmanager
def connected(running: RunningFleet) -> Iterator[Client]:
    with httpx.Client(base_url=running.base_url, timeout=60) as http:
        yield Client(http)


@pytest.fixture
def client(fleet: RunningFleet) -> Iterator[Client]:
    with connected(fleet) as client:
        yield client


def test_cold_and_with_kept_windows_it_says_the_same(
    client: Client, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    cold = [client.ask(prompt) for prompt in prompts]
    assert [answer.output_ids for answer in cold] == expected
    assert not any(answer.num_cached for answer in cold)
    with ThreadPoolExecutor(len(prompts)) as pool:
        again = list(pool.map(client.ask, prompts))
    assert [answer.output_ids for answer in again] == expected
    _until(lambda: client.ask(prompts[-1]) == Answer(expected[-1], 896), "all 7 blocks")


def test_a_chat_is_encoded_for_the_model_and_its_next_turn_reuses_the_answer(
    client: Client, model: CausalModel
) -> None:
    engine = BareEngine(model, num_pages=16)
    messages = [{"role": "user", "content": "Say what whales do. " * 12}]
    whole_chat = {"messages": messages, "thinking": {"type": "disabled"}}
    token_ids = client.post("/tokenize", **whole_chat)["tokens"]
    assert isinstance(token_ids, list)
    done = client.post(
        "/v1/chat/completions", **whole_chat, temperature=0, max_tokens=9, logprobs=True
    )
    assert done["usage"]["prompt_tokens"] == len(token_ids)  # type: ignore[index]
    (choice,) = done["choices"]  # type: ignore[misc]
    said = client.ids_of([entry["token"] for entry in choice["logprobs"]["content"]])
    answer = client.ask(token_ids, 150)
    (whole,) = engine.generate([token_ids], GenerationParams(150, ignore_eos=True))
    assert answer.output_ids == seen(whole)
    assert said == seen(whole[:9])
    next_turn = [*token_ids, *whole, *token_ids[-20:]]
    (expected,) = engine.generate([next_turn], GenerationParams(NUM_TOKENS, ignore_eos=True))
    assert client.ask(next_turn) == Answer(seen(expected), (len(token_ids) + 149) // 128 * 128)


def test_a_client_that_leaves_leaves_nothing_held(fleet: RunningFleet) -> None:
    body = {"model": MODEL, "prompt": list(range(3, 603)), "max_tokens": 4000, "stream": True}
    with (
        httpx.Client(base_url=fleet.base_url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        assert json.loads(next(lines)[6:])["choices"]
        _until(lambda: any(load.num_used_windows for load in fleet.loads().values()), "a slot")
    _until(lambda: not _held(fleet), "everything to be free")


def _until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.1)


def _held(fleet: RunningFleet) -> dict[str, list[int]]:
    found = {
        name: [load.num_used_windows, load.num_used_pages, load.num_held_leases]
        for name, load in fleet.loads().items()
        if name.startswith(("prefill", "decode"))
    }
    return {name: counts for name, counts in found.items() if any(counts)}


def test_2p2d_batches_and_replays_are_those_of_the_engine(
    tmp_path: Path, model: CausalModel, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """No window is kept here: a stored prefix is replayed from one block before its end. And the
    draft module guesses, which changes nothing either."""
    options = {"prefill": 2, "decode": 2, "env": NOTHING_KEPT | GUESSING}
    with (
        running_fleet(tmp_path, model=str(random_v41_dir()), **options) as other,
        connected(other) as client,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        together = list(pool.map(client.ask, prompts))
        assert [answer.output_ids for answer in together] == expected
        _wait_for_blocks(other, sum(len(prompt) // 128 for prompt in prompts))
        again = [client.ask(prompt) for prompt in prompts]
        goal = len(prompts) * NUM_TOKENS
        until_blocking(lambda: guesses(other)[0] > goal, "guesses to be reported")
    stored = [(len(prompt) - 1) // 128 for prompt in prompts]
    assert [answer.num_cached for answer in again] == [max(0, n - 1) * 128 for n in stored]
    assert [answer.output_ids for answer in again] == [
        seen(greedy_after_replay(model, prompt, n, NUM_TOKENS)) if n > 1 else whole
        for prompt, n, whole in zip(prompts, stored, expected, strict=True)
    ]


def _wait_for_blocks(running: RunningFleet, num_blocks: int) -> None:
    """They are written behind the answers."""
    store = BlockStore(running.home / "store", 1 << 30, eviction=ValueEviction())
    _until(lambda: store.stats().num_blocks >= num_blocks, "the blocks")
