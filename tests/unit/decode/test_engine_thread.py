"""An engine thread that died is noticed; one that was closed has not died."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from rorqual_decode.block_chain import BlockChain
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.stopping import StopRule

from tests.support.waiting import WAIT_S, until_blocking
from tests.unit.decode.specs import generation_spec


class Lease:
    def release(self) -> None:
        return


class FailingModel:
    def forward(self, chunks, cache):
        raise OSError("no memory")


def sequence() -> Running:
    chain, stop = BlockChain(bytes(16), []), StopRule(frozenset(), 8)
    return Running(generation_spec(), [0], PageHold(Lease()), stop, chain)


def make_engine(on_output) -> DecodeEngine:
    return DecodeEngine(FailingModel(), cast(Any, None), cast(Any, None), on_output)


def test_a_failed_step_ends_its_generations_and_not_the_thread() -> None:
    told = threading.Event()
    engine = make_engine(lambda emissions: told.set())
    assert not engine.has_died
    engine.start()
    engine.add(sequence())
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
    engine.add(sequence())
    until_blocking(lambda: engine.has_died)
