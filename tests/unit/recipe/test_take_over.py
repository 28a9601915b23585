"""An answer of several choices changes hands: nothing is told twice, nothing is left out."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from rorqual_recipe.choices import Choice, Delta, TakeOver
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits
from rorqual_recipe.streams import Events, RequestStream

from tests.unit.recipe.answers import VOCABULARY, token_ids
from tests.vectors.stream_answers import plan_of
from tests.vectors.stream_texts import StreamTexts

BODIES: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": [{"role": "user", "content": "x"}]},
    "completions": {"prompt": "x"},
    "responses": {"input": "x", "store": False},
    "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}
HAVE_CHOICES = ("chat_completions", "completions")
MAX_PAGE = 17


@dataclass
class Script:
    """Answers of all choices, and the order in which decode makes their tokens."""

    protocol: str
    stream: bool
    plan: AnswerPlan
    answers: list[list[int]]
    steps: list[Delta] = field(default_factory=list)

    def make_stream(self, taken_over: TakeOver | None = None) -> RequestStream:
        adapter = PROTOCOLS[self.protocol]
        body = {"model": "m", "stream": self.stream, **BODIES[self.protocol]}
        if self.protocol in HAVE_CHOICES:
            body["n"] = len(self.answers)
        limits = ParseLimits(max_choices=8, has_vision=False)
        parsed = adapter.parse(json.dumps(body).encode(), limits)
        thinks = self.plan.stage.thinks
        facts = AnswerFacts("r1", "m", 1, None, VOCABULARY, thinks, signing_key=b"k" * 32)
        return RequestStream(
            request_id="r1",
            gateway_id="g1",
            adapter=adapter,
            writer=adapter.make_writer(facts, parsed),
            choices=[self._choice(index, taken_over) for index in range(len(self.answers))],
            num_prompt_tokens=3,
            expires_s=1e9,
            log=EventLog(1),
            prompts=(),
            taken_over=taken_over,
        )

    def _choice(self, index: int, taken_over: TakeOver | None) -> Choice:
        choice = Choice(AnswerReader(VOCABULARY, self.plan), DeltaOrder(10_000), 0.0)
        if taken_over is not None:
            choice.num_delivered = taken_over.num_tokens[index]
            choice.end_delivered = bool([*taken_over.finish_reasons, "", "", ""][index])
        return choice

    def pages(self, pick: random.Random) -> list[Delta]:
        """What decode sends again: every choice from its beginning, page by page."""
        pages: list[list[Delta]] = []
        for index, ids in enumerate(self.answers):
            starts = range(0, len(ids), pick.randint(1, MAX_PAGE))
            own = [Delta(index, start, ids[start : start + starts.step]) for start in starts]
            last = own[-1] if own else Delta(index, 0, [])
            own[-1:] = [last]
            last.finish_reason = FinishReason.STOP
            pages.append(own)
        return _shuffled_together(pages, pick)


def _shuffled_together(rows: list[list[Delta]], pick: random.Random) -> list[Delta]:
    rows = [list(row) for row in rows]
    mixed = []
    while rows := [row for row in rows if row]:
        mixed.append(pick.choice(rows).pop(0))
    return mixed


def make_script(protocol: str, pick: random.Random, *, stream: bool) -> Script:
    texts = StreamTexts(pick.randrange(10**9))
    parsing = texts.parsing()
    num_choices = pick.randint(1, 3) if protocol in HAVE_CHOICES else 1
    answers = [token_ids(texts.text(parsing)) for _ in range(num_choices)]
    rows = []
    for index, ids in enumerate(answers):
        row = [Delta(index, at, [token]) for at, token in enumerate(ids)]
        rows.append([*row, Delta(index, len(ids), [], finish_reason=FinishReason.STOP)])
    return Script(protocol, stream, plan_of(parsing), answers, _shuffled_together(rows, pick))


@dataclass
class Client:
    """What a gateway passes on and remembers, as its sink does."""

    frames: list[bytes] = field(default_factory=list)
    next_seq: int = 0
    num_tokens: list[int] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    is_done: bool = False

    def take(self, events: list[Events]) -> None:
        for event in events:
            assert not self.is_done and event.seq == self.next_seq
            assert all(
                new >= old for new, old in zip(event.num_tokens, self.num_tokens, strict=False)
            )
            self.next_seq += 1
            self.frames += event.data
            self.num_tokens = event.num_tokens
            self.finish_reasons = event.finish_reasons or self.finish_reasons
            self.is_done = event.is_last

    def taken_over(self, script: Script, number: int) -> TakeOver:
        counts = self.num_tokens or [0] * len(script.answers)
        return TakeOver(number, "lost", self.next_seq, counts, self.finish_reasons, ())


def by_choice(frames: list[bytes]) -> dict[str, list[bytes]]:
    """Frames of each choice in their order; choices may change places among each other."""
    found: dict[str, list[bytes]] = {}
    for frame in frames:
        text = frame.rpartition(b"data: ")[2].strip()
        data = json.loads(text) if text.startswith(b"{") else {}
        index = [choice["index"] for choice in data.get("choices", ())]
        usage = data.get("usage") if index else None
        key = str(index) if index else "all"
        shown = repr(sorted({**data, "usage": None}.items())).encode() if index else frame
        found.setdefault(key, []).append(shown)
        if usage:
            found.setdefault("usage", []).append(repr(usage).encode())
    return found


def play(stream: RequestStream, client: Client, deltas: list[Delta]) -> None:
    for delta in deltas:
        if not client.is_done:
            client.take(stream.absorb(delta, "d1", 1, 0.0).events)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("protocol", BODIES)
@pytest.mark.parametrize("num_take_overs", [1, 2])
def test_an_answer_that_changes_hands_is_the_same_answer(
    protocol, stream, num_take_overs, monkeypatch
) -> None:
    monkeypatch.setattr("rorqual_recipe.choices.MAX_PIECE_TOKENS", 1)  # else deltas are merged
    pick = random.Random(f"{protocol}/{stream}/{num_take_overs}")
    for _ in range(25):
        script = make_script(protocol, pick, stream=stream)
        whole = Client()
        play(script.make_stream(), whole, script.steps)
        assert whole.is_done
        client = Client()
        play(script.make_stream(), client, script.steps[: pick.randint(0, len(script.steps))])
        for number in range(1, num_take_overs + 1):
            if client.is_done:
                break
            successor = script.make_stream(client.taken_over(script, number))
            live = script.steps[pick.randint(0, len(script.steps)) :]
            deltas = _shuffled_together([script.pages(pick), live], pick)
            if number < num_take_overs:
                deltas = deltas[: pick.randint(0, len(deltas))]
            play(successor, client, deltas)
        assert client.is_done
        assert b"".join(sorted_frames(client)) == b"".join(sorted_frames(whole))


def sorted_frames(client: Client) -> list[bytes]:
    """All frames, choice after choice; a body is compared as it is."""
    if not client.frames or not client.frames[0].endswith(b"\n\n"):
        return client.frames
    return [frame for _, frames in sorted(by_choice(client.frames).items()) for frame in frames]
