"""An orchestrator is told absolute counts; what it should have and nobody hears is pending."""

import asyncio

from rorqual_policy import Target
from rorqual_runtime.clock import ManualClock
from rorqual_scaler.counted_driver import CountedDriver, CountedDriverParams, Orchestrator
from rorqual_scaler.drivers import DriverError

PARAMS = CountedDriverParams(
    services=("decode",), start_deadline_s=100.0, drain_s=40.0, poll_s=5.0, retry_pause_s=2.0
)


class Kept(Orchestrator):
    """An orchestrator that does at once what it is told, or fails."""

    name = "kept"

    def __init__(self, num: int) -> None:
        self.num, self.is_failing = num, False
        self.written: list[int] = []
        self.first_to_stop: list[str] = []
        self.can_choose = True
        self.reading: asyncio.Event | None = None

    async def read_count(self, service: str) -> int:
        num = self.num
        if self.reading is not None:
            await self.reading.wait()
        return num

    async def write_count(self, service: str, num: int) -> None:
        self.written.append(num)
        if self.is_failing:
            raise DriverError("scale of decode", "503")
        self.num = num

    async def prefer_to_stop(self, service, instance_ids):
        if not self.can_choose:
            return await super().prefer_to_stop(service, instance_ids)
        self.first_to_stop += instance_ids
        return instance_ids


def target(num_desired: int, num_change: int) -> Target:
    return Target(num_desired - num_change, 0, num_desired, num_change, "because")


async def driving(num: int):
    kept, clock, tasks = Kept(num), ManualClock(), []

    def track(coro):
        tasks.append(asyncio.create_task(coro))
        return tasks[-1]

    driver = CountedDriver(kept, clock, PARAMS, track)
    await driver.start()
    return kept, clock, driver, tasks


async def settled() -> None:
    """Everything that can run without time passing has run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def end(tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_was_asked_for_is_pending_until_it_reports_or_is_overdue():
    kept, clock, driver, tasks = await driving(1)
    assert await driver.grow("decode", target(3, +2))
    await settled()
    assert kept.written == [3]
    deadline_s = clock.monotonic_s() + 100.0
    assert list(driver.own("decode", ["d1"]).pending.values()) == [deadline_s] * 2
    await clock.advance(10.0)
    assert list(driver.own("decode", ["d1", "d2"]).pending.values()) == [deadline_s]
    assert driver.own("decode", ["d1", "d2", "d3"]).pending == {}
    await clock.advance(5.0)
    died = driver.own("decode", ["d1", "d2"]).pending
    assert list(died.values()) == [deadline_s + 15.0]  # it will be started again
    await end(tasks)


async def test_those_that_go_are_no_capacity_and_are_named_to_the_orchestrator():
    kept, clock, driver, tasks = await driving(3)
    assert sorted(driver.removable("decode", ["d1", "d2", "d3"])) == ["d1", "d2", "d3"]
    assert await driver.shrink("decode", target(2, -1), ["d2"])
    await settled()
    assert (kept.num, kept.first_to_stop) == (2, ["d2"])
    own = driver.own("decode", ["d1", "d2", "d3"])
    assert (own.stopping, own.pending) == (frozenset({"d2"}), {})
    assert driver.removable("decode", ["d1", "d2", "d3"]) == ["d1", "d3"]
    await clock.advance(41.0)
    assert driver.own("decode", ["d1", "d2", "d3"]).stopping == frozenset()
    await end(tasks)


async def test_a_failing_orchestrator_is_asked_again_after_growing_pauses():
    kept, clock, driver, tasks = await driving(1)
    kept.is_failing = True
    for _ in range(70):
        await driver.grow("decode", target(2, +1))
        await settled()
        await clock.advance(1.0)
    assert 4 <= len(kept.written) <= 7
    assert driver.own("decode", ["d1"]).pending == {}
    await end(tasks)


async def test_a_service_that_may_not_change_is_left_alone():
    kept, _, driver, tasks = await driving(1)
    assert driver.own("vision", ["v1"]).pending == {}
    assert driver.removable("vision", ["v1"]) == []
    assert not await driver.grow("vision", target(2, +1))
    assert kept.written == []
    await end(tasks)


async def test_a_count_that_others_changed_is_seen():
    kept, clock, driver, tasks = await driving(1)
    kept.num = 4
    await settled()
    await clock.advance(5.0)
    await settled()
    assert len(driver.own("decode", ["d1"]).pending) == 3
    assert not await driver.grow("decode", target(4, +3))  # it is what it should be already
    await end(tasks)


async def test_growing_never_takes_back_what_is_overdue():
    kept, clock, driver, tasks = await driving(10)
    reporting = [f"d{n}" for n in range(8)]
    driver.own("decode", reporting)
    await clock.advance(101.0)
    assert max(driver.own("decode", reporting).pending.values()) < clock.monotonic_s()
    assert not await driver.grow("decode", target(9, +1))
    assert not await driver.shrink("decode", target(10, -1), ["d0"])
    await settled()
    assert kept.written == []
    assert await driver.grow("decode", target(11, +3))
    await settled()
    assert kept.written == [11]
    await end(tasks)


async def test_who_goes_is_only_known_where_the_orchestrator_takes_the_choice():
    kept, _, driver, tasks = await driving(3)
    kept.can_choose = False
    assert await driver.shrink("decode", target(2, -1), ["d2"])
    await settled()
    assert kept.num == 2
    assert driver.own("decode", ["d1", "d2", "d3"]).stopping == frozenset()
    await end(tasks)


async def test_a_count_read_from_before_a_change_is_not_taken_for_the_one_after():
    kept, clock, driver, tasks = await driving(1)
    await settled()
    kept.reading = asyncio.Event()
    await clock.advance(5.0)
    await settled()
    assert await driver.grow("decode", target(3, +2))
    await settled()
    kept.reading.set()
    await settled()
    assert len(driver.own("decode", ["d1"]).pending) == 2
    await end(tasks)
