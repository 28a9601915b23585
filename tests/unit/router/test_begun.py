"""How often a job was begun is remembered by its message on the queue, and of not too many."""

from rorqual_router.begun import BegunJobs
from rorqual_runtime.clock import ManualClock


def test_each_message_of_the_queue_counts_for_itself_and_the_oldest_are_forgotten():
    begun, first, again = BegunJobs(ManualClock(), max_jobs=2), 1, 9
    for _ in range(2):
        begun.note("a", first)
    assert (begun.num("a", first), begun.num("a", again), begun.num("b", first)) == (2, 0, 0)
    begun.note("b", first)
    begun.note("a", first)
    begun.note("c", first)
    assert [begun.num(job_id, first) for job_id in "abc"] == [3, 0, 1]


def test_what_came_back_untried_counts_as_one_less():
    begun = BegunJobs(ManualClock())
    for _ in range(2):
        begun.note("a", 1)
    begun.take_back("a", 1)
    begun.take_back("b", 1)
    assert (begun.num("a", 1), begun.num("b", 1)) == (1, 0)


async def test_what_has_not_come_back_for_long_is_forgotten_with_the_next():
    clock = ManualClock()
    begun = BegunJobs(clock, keep_s=60.0)
    begun.note("a", 1)
    await clock.advance(40.0)
    begun.note("b", 1)
    await clock.advance(40.0)
    begun.note("c", 1)
    assert [begun.num(job_id, 1) for job_id in "abc"] == [0, 1, 1]
