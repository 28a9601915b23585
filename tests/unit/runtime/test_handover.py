"""The search for a decode instance: where it goes after a refusal, and when it gives up."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_runtime.errors import (
    Cancelled,
    ContextTooLong,
    Corrupt,
    DeadlineExceeded,
    Draining,
    ErrorCode,
    Internal,
    NoCapacity,
    StaleTicket,
    Unavailable,
)
from rorqual_runtime.handover import (
    AfterRefusal,
    Handover,
    ask_until_answered,
    decide_after_refusal,
)

from tests.support.waiting import soon


class Fleet:
    """Decode instances that answer as told; the router names the first one not excluded."""

    def __init__(self, **answers) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def place(self, excluded_ids):
        for decode_id in self.answers:
            if decode_id not in excluded_ids:
                return decode_id
        raise NoCapacity("all excluded")

    async def offer(self, decode_id):
        self.asked.append(decode_id)
        answers = self.answers[decode_id]
        answer = answers.pop(0) if isinstance(answers, list) else answers
        if answer is not None:
            raise answer


async def hand_over(fleet, timeout_s=30.0) -> str:
    search = Handover(fleet, lambda: None)
    return await search.run(fleet.place(()), timeout_s)


@pytest.mark.parametrize(
    "refusal", [NoCapacity(), Draining(), Unavailable(), DeadlineExceeded(), StaleTicket()]
)
async def test_a_refusal_leads_to_another_instance(refusal):
    fleet = Fleet(a=refusal, b=None)
    assert await hand_over(fleet) == "b"
    assert fleet.asked == ["a", "b"]


async def test_when_all_refused_they_are_asked_again_after_a_pause():
    fleet = Fleet(a=[NoCapacity(), NoCapacity(), None], b=NoCapacity())
    assert await hand_over(fleet) == "a"
    assert fleet.asked.count("a") == 3


async def test_who_has_something_better_to_do_than_wait_asks_each_once():
    fleet = Fleet(a=NoCapacity(), b=Draining())
    with pytest.raises(NoCapacity):
        await Handover(fleet, lambda: None, waits=False).run(fleet.place(()), timeout_s=30.0)
    assert fleet.asked == ["a", "b"]


async def test_out_of_time_says_no_capacity():
    with pytest.raises(NoCapacity):
        await hand_over(Fleet(a=NoCapacity()), timeout_s=0.2)


async def test_out_of_time_without_any_answer_is_a_deadline():
    class Silent(Fleet):
        async def offer(self, decode_id):
            await asyncio.sleep(60)

    with pytest.raises(DeadlineExceeded):
        await hand_over(Silent(a=None), timeout_s=0.2)


@pytest.mark.parametrize("refusal", [Cancelled(), ContextTooLong(10, 5)])
async def test_a_final_refusal_is_passed_on(refusal):
    fleet = Fleet(a=refusal, b=None)
    with pytest.raises(type(refusal)):
        await hand_over(fleet)
    assert fleet.asked == ["a"]


async def test_three_broken_transfers_are_enough():
    fleet = Fleet(**{name: Corrupt() for name in "abcd"})
    with pytest.raises(Corrupt):
        await hand_over(fleet)
    assert fleet.asked == ["a", "b", "c"]


@pytest.mark.parametrize("names", ["a", "abcd"])
async def test_a_job_that_every_instance_fails_on_ends_soon(names: str):
    fleet = Fleet(**{name: Internal() for name in names})
    with pytest.raises(Internal):
        await hand_over(fleet, timeout_s=30.0)
    assert len(fleet.asked) == 3


def test_every_code_leads_somewhere():
    for code in ErrorCode:
        assert decide_after_refusal(code, 1) in AfterRefusal


async def test_a_dead_instance_costs_one_probe():
    num_asked = 0

    async def ask(timeout_s):
        nonlocal num_asked
        num_asked += 1
        if num_asked > 1:
            raise Unavailable("nobody serves it")
        await asyncio.sleep(timeout_s)
        raise DeadlineExceeded()

    with pytest.raises(Unavailable):
        await soon(ask_until_answered(ask, timeout_s=600.0, probe_s=0.05))
    assert num_asked == 2
