"""A target whose logits depend on a row's token and position alone, and the engine over it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from rorqual_decode.block_chain import BlockChain
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.generation import Emission, FinishReason, TokenScores
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.sampling import choose_tokens
from rorqual_decode.speculation import Speculation
from rorqual_decode.stopping import make_stop_rule
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.logit_rules import make_editor
from rorqual_engine.speculation import Drafter, Guesses, GuessRequest

from tests.support.waiting import WAIT_S
from tests.unit.decode.specs import generation_spec

PROMPT = [0, 1, 0, 1, 0]


class Lease:
    def release(self) -> None:
        return


class MarkovModel:
    """table: [P, V, V], the logits behind token t at position p are table[p % P, t]."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.vocab_size = table.shape[-1]
        self.num_rows: list[int] = []

    def row(self, position: int, token_id: int) -> torch.Tensor:
        return self.table[position % len(self.table), token_id]

    def forward(self, chunks: Sequence[SequenceChunk], cache: Any) -> torch.Tensor:
        rows = []
        for chunk in chunks:
            ids = [int(token) for token in chunk.token_ids]
            found = [self.row(p, t) for p, t in enumerate(ids, chunk.start)]
            rows += found if chunk.all_logits else found[-1:]
        self.num_rows.append(len(rows))
        return torch.stack(rows)


class FunctionDrafter(Drafter):
    """Guesses whatever a function says, with the confidences it says."""

    name = "function"

    def __init__(self, num_guesses: int, function) -> None:
        self.num_guesses, self._function = num_guesses, function

    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        found = []
        for request in requests:
            count = min(self.num_guesses, request.num_wanted)
            ids, chances = self._function(request, count)
            found.append(Guesses(ids[:count], chances[:count]))
        return found


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScores] = field(default_factory=list)
    finish: FinishReason | None = None
    num_guessed: int = 0
    num_taken: int = 0

    def take(self, emission: Emission) -> None:
        self.token_ids += emission.token_ids
        self.scores += emission.scores
        self.finish = emission.finish
        self.num_guessed += emission.num_guessed
        self.num_taken += max(0, len(emission.token_ids) - 1)


def sequence(
    number: int,
    drafter: Drafter,
    *,
    grammar: Any = None,
    eos_token_ids: tuple[int, ...] = (),
    lease: Any = None,
    **sampling: Any,
) -> Running:
    spec = replace(generation_spec(f"r{number}", **sampling), num_prompt_tokens=len(PROMPT))
    stop = make_stop_rule(
        spec.sampling,
        eos_token_ids=eos_token_ids,
        num_prompt_tokens=len(PROMPT),
        max_context_tokens=1000,
    )
    return Running(
        spec,
        [number],
        PageHold(lease or Lease()),
        stop,
        BlockChain(bytes(16), PROMPT),
        grammar=grammar,
        editor=make_editor(spec.sampling.rules, PROMPT, sorted(stop.stop_ids)),
        window=0,
        memory=drafter.open(np.array(PROMPT)),
    )


def generate(
    model: MarkovModel, sequences: Sequence[Running], speculation: Speculation
) -> list[Answer]:
    """Through the engine's own thread, all together."""
    answers = {s.spec.key: Answer() for s in sequences}
    have_ended = threading.Event()

    def on_output(emissions: list[Emission]) -> None:
        for emission in emissions:
            answers[emission.key].take(emission)
        if all(answer.finish is not None for answer in answers.values()):
            have_ended.set()

    first = model.row(len(PROMPT) - 1, PROMPT[-1])[None]
    engine = DecodeEngine(
        model, cast(Any, None), cast(Any, None), on_output, speculation=speculation
    )
    for running in sequences:
        (emission,) = choose_tokens(first, [running])
        on_output([emission])
        if emission.finish is None:
            engine.add(running)
    engine.start()
    assert have_ended.wait(WAIT_S)
    engine.close()
    return list(answers.values())
