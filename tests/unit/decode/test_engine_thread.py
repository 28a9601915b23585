"""An engine thread that died is noticed, one that was closed has not died; no forward reads pages
that are free, whenever sequences arrive, end and are cancelled."""

from __future__ import annotations

import random
import threading
from typing import Any, cast

import pytest
import torch
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.generation import Emission, FinishReason
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.sampling import choose_tokens
from rorqual_engine.speculation import NoDrafter

from tests.support.waiting import WAIT_S, until_blocking
from tests.unit.decode.markov import PROMPT, Answer, MarkovModel, sequence


class FailingModel:
    vocab_size = 8

    def forward(self, chunks, cache):
        raise OSError("no memory")


def make_engine(on_output) -> DecodeEngine:
    return DecodeEngine(FailingModel(), cast(Any, None), cast(Any, None), on_output)


def test_a_failed_step_ends_its_generations_and_not_the_thread() -> None:
    told = threading.Event()
    engine = make_engine(lambda emissions: told.set())
    assert not engine.has_died
    engine.start()
    engine.add(sequence(0, NoDrafter()))
    assert told.wait(WAIT_S)
    assert not engine.has_died
    engine.close()
    assert not engine.has_died


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_outside_a_step_is_noticed() -> None:
    def on_output(_emissions) -> None:
        raise AssertionError("our bug")

    engine = make_engine(on_output)
    engine.start()
    engine.add(sequence(0, NoDrafter()))
    until_blocking(lambda: engine.has_died)


class WatchedLease:
    def __init__(self) -> None:
        self.num_releases = 0

    def release(self) -> None:
        self.num_releases += 1


class WatchfulModel(MarkovModel):
    """Fails where a forward runs rows of sequences whose pages are free."""

    def __init__(self, table: torch.Tensor, leases: list[WatchedLease]) -> None:
        super().__init__(table)
        self._leases = leases

    def forward(self, chunks, cache):
        owners = [self._leases[chunk.pages[0]] for chunk in chunks]
        assert not any(owner.num_releases for owner in owners)
        logits = super().forward(chunks, cache)
        assert not any(owner.num_releases for owner in owners)
        return logits


class Forgetful:
    """A block writer that is only told what to forget."""

    def forget(self, key) -> None:
        return


@pytest.mark.parametrize("seed", range(3))
def test_pages_are_free_only_behind_the_last_forward_that_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    leases = [WatchedLease() for _ in range(40)]
    model = WatchfulModel(torch.randn(7, 8, 8), leases)
    options = {"temperature": 1.0, "seed": seed}
    sequences = [
        sequence(n, NoDrafter(), lease=lease, max_new_tokens=rng.randint(2, 30), **options)
        for n, lease in enumerate(leases)
    ]
    answers = {s.spec.key: Answer() for s in sequences}

    def on_output(emissions: list[Emission]) -> None:
        for emission in emissions:
            answers[emission.key].take(emission)

    engine = DecodeEngine(model, cast(Any, None), cast(Any, Forgetful()), on_output)
    engine.start()
    cancelled = set()
    for running in sequences:
        on_output(choose_tokens(model.row(len(PROMPT) - 1, PROMPT[-1])[None], [running]))
        engine.add(running)
        if rng.random() < 0.4:
            victim = rng.choice(sequences[: running.pages[0] + 1])
            cancelled.add(victim.spec.key)
            engine.cancel(victim)
    until_blocking(lambda: all(lease.num_releases for lease in leases))
    engine.close()
    assert [lease.num_releases for lease in leases] == [1] * len(leases)
    for running in sequences:
        answer, limit = answers[running.spec.key], running.stop.max_output_tokens
        assert answer.finish is FinishReason.LENGTH or running.spec.key in cancelled
        assert len(answer.token_ids) <= limit
        assert (len(answer.token_ids) == limit) == (answer.finish is FinishReason.LENGTH)


def test_who_leaves_before_its_first_step_is_not_forgotten() -> None:
    """It had just been added: no later change would wake the engine for it."""
    engine = DecodeEngine(cast(Any, None), cast(Any, None), cast(Any, Forgetful()), print)
    leases = [WatchedLease(), WatchedLease()]
    taken, cancelled = (sequence(n, NoDrafter(), lease=lease) for n, lease in enumerate(leases))
    is_out = threading.Event()
    for running in (taken, cancelled):
        engine.add(running)
    engine.take_out(taken, is_out.set)
    engine.cancel(cancelled)
    engine._let_leave()
    engine._tell_now()
    assert is_out.is_set()
    assert [lease.num_releases for lease in leases] == [0, 1]


def test_who_is_asked_to_leave_meanwhile_leaves_a_step_later() -> None:
    """Whatever the engine has is in its steps or leaves, at any moment at which it is asked for."""

    class AskedInBetween(Running):
        num_looks = 0

        @property
        def is_leaving(self) -> bool:
            type(self).num_looks += 1
            return self.num_looks > 1

    engine = DecodeEngine(cast(Any, None), cast(Any, None), cast(Any, Forgetful()), print)
    lease = WatchedLease()
    plain = sequence(0, NoDrafter())
    asked = AskedInBetween(plain.spec, [0], PageHold(cast(Any, lease)), plain.stop, plain.chain)
    engine._running.append(asked)
    for _ in range(2):
        engine.cancel(sequence(1, NoDrafter()))  # somebody else's wish
        asked.is_cancelled = True
        engine._let_leave()
        engine._tell_now()
    assert lease.num_releases == 1
