"""`python -m tests.fuzz.run [--bodies N] [--seed N] [endpoint ...]`: mutated bodies, one by one.

Each goes the way of a real one as far as recipe decides about it: read, rendered, encoded, its
constraint and its writers made, its answer or its error written. Prints one line an endpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason
from rorqual_recipe.output.plan import plan_answer
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import DIRECT_PROTOCOLS, PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits, ProtocolAdapter, TokenUsage
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.settings import RecipeSettings

from tests.fuzz.bodies import ENDPOINTS
from tests.fuzz.memory import MAX_GROWTH_BYTES, resident_bytes
from tests.fuzz.mutate import mutated
from tests.fuzz.paths import leads_into
from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.dsml_model_dir import make_dsml_model_dir

MAX_BODY_CPU_S = 5.0
_ENCODINGS: dict[str, Callable[[Path], Path]] = {
    "chat-template": make_chat_model_dir,
    "deepseek-v4": partial(make_dsml_model_dir, encoding="deepseek-v4"),
    "deepseek-v4.1": partial(make_dsml_model_dir, encoding="deepseek-v4.1", vision_config={}),
}
_ANSWER = (300, 301, 302, 5, 6)


class FuzzedBody(Exception):
    """A body that did what none may do."""


class Target:
    """Everything in recipe that a body reaches."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        size = len(model.vocabulary.token_bytes)
        self._limits = ParseLimits(max_choices=8, has_vision=True, vocabulary_size=size)

    def send(self, endpoint: str, body: bytes) -> int:
        """The HTTP status. Raises: whatever escapes."""
        handler = PROTOCOLS.get(endpoint) or DIRECT_PROTOCOLS[endpoint]
        try:
            if endpoint in DIRECT_PROTOCOLS:
                services = DirectServices(self._model, self._limits, _at_once)
                answer = DIRECT_PROTOCOLS[endpoint].answer(body, "", "t", services)
                return asyncio.run(answer)[0]
            return self._generate(body, PROTOCOLS[endpoint])
        except RequestRefused as refusal:
            rendered = handler.render_refusal(refusal.problems)
            assert len(rendered.body_json) < 20_000
            for problem in refusal.problems:
                assert not problem.param or leads_into(json.loads(body), problem.param), problem
            return rendered.http_status

    def _generate(self, body: bytes, adapter: ProtocolAdapter) -> int:
        encoded = encode_request(
            body, adapter, self._model, default_max_tokens=99, limits=self._limits
        )
        facts = AnswerFacts(
            "r1", "m", 0, None, self._model.vocabulary, thinks=encoded.rendered.thinks
        )
        writer = adapter.make_writer(facts, encoded.parsed)
        usage = TokenUsage(encoded.num_prompt_tokens, 0, len(_ANSWER))
        for index in range(encoded.parsed.num_choices):
            reader = self._reader(encoded)
            writer.write(index, reader.feed(_ANSWER), usage)
            writer.write(index, reader.finish(FinishReason.STOP), usage)
        assert writer.finish(usage)
        return 200

    def _reader(self, encoded: EncodedRequest) -> AnswerReader:
        is_enforced = encoded.constraint is not None
        plan = plan_answer(
            encoded.parsed, encoded.rendered, is_enforced=is_enforced, call_id_seed="r1/0"
        )
        return AnswerReader(self._model.vocabulary, plan)


async def _at_once(work, num_bytes: int):  # type: ignore[no-untyped-def]
    return work()


@dataclass
class Fuzzing:
    """What came of the bodies of one endpoint. growth_bytes: of the process, once it is warm."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    growth_bytes: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        slowest_ms, grown = self.slowest_s * 1000, self.growth_bytes / (1 << 20)
        return f"{counts}; slowest {slowest_ms:.0f} ms; memory {grown:+.1f} MiB"


def fuzz(target: Target, endpoint: str, num_bodies: int, seed: int) -> Fuzzing:
    """Sends them all. Raises: FuzzedBody with what is needed to see it again."""
    found = Fuzzing()
    warm_bytes = 0
    for number in range(num_bodies):
        body = mutated(ENDPOINTS[endpoint], random.Random(f"{endpoint}/{seed}/{number}"))
        started_s = time.process_time()
        try:
            status = target.send(endpoint, body)
        except Exception as err:
            raise FuzzedBody(f"{endpoint} {seed}/{number}: {err!r} from {body[:2000]!r}") from err
        took_s = time.process_time() - started_s
        if status >= 500 or took_s > MAX_BODY_CPU_S:
            raise FuzzedBody(f"{endpoint} {seed}/{number}: {status} in {took_s:.1f} s: {body!r}")
        found.statuses[status] += 1
        found.slowest_s = max(found.slowest_s, took_s)
        if number == num_bodies // 5:
            warm_bytes = resident_bytes()
    found.growth_bytes = resident_bytes() - warm_bytes
    if found.growth_bytes > MAX_GROWTH_BYTES:
        raise FuzzedBody(f"{endpoint}: memory grew by {found.growth_bytes} bytes")
    return found


def main() -> int:
    """Run; 1 when a body did what none may do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoints", nargs="*", choices=[[], *ENDPOINTS], default=[])
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--encoding", choices=_ENCODINGS, default="chat-template")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model_dir = _ENCODINGS[options.encoding](Path(directory))
        target = Target(
            load_served_model(RecipeSettings(model_dir=model_dir, token_cache_bytes=1 << 20))
        )
        failed = False
        for endpoint in options.endpoints or ENDPOINTS:
            started_s = time.perf_counter()
            try:
                found = fuzz(target, endpoint, options.bodies, options.seed)
            except FuzzedBody as err:
                print(f"FAILED {err}", flush=True)
                failed = True
                continue
            took_s = time.perf_counter() - started_s
            print(f"{endpoint}: {found}; {took_s:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
