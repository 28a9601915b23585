"""How often a job was begun is remembered by its message on the queue, and of not too many."""

from rorqual_router.begun import BegunJobs


def test_each_message_of_the_queue_counts_for_itself_and_the_oldest_are_forgotten():
    begun, first, again = BegunJobs(2), 1, 9
    for _ in range(2):
        begun.note("a", first)
    assert (begun.num("a", first), begun.num("a", again), begun.num("b", first)) == (2, 0, 0)
    begun.note("b", first)
    begun.note("a", first)
    begun.note("c", first)
    assert [begun.num(job_id, first) for job_id in "abc"] == [3, 0, 1]


def test_what_came_back_untried_counts_as_one_less():
    begun = BegunJobs()
    for _ in range(2):
        begun.note("a", 1)
    begun.take_back("a", 1)
    begun.take_back("b", 1)
    assert (begun.num("a", 1), begun.num("b", 1)) == (1, 0)
