"""How often a job was begun is remembered by its message on the queue, and of not too many."""

from types import SimpleNamespace

from rorqual_router.begun import BegunJobs


def test_each_message_of_the_queue_counts_for_itself_and_the_oldest_are_forgotten():
    begun, first, again = BegunJobs(2), SimpleNamespace(stream_seq=1), SimpleNamespace(stream_seq=9)
    for _ in range(2):
        begun.note("a", first)
    assert (begun.num("a", first), begun.num("a", again), begun.num("b", first)) == (2, 0, 0)
    begun.note("b", first)
    begun.note("a", first)
    begun.note("c", first)
    assert [begun.num(job_id, first) for job_id in "abc"] == [3, 0, 1]
