"""What waits at the routers, as their reports say it."""

from rorqual_prefill.room import WaitingWork
from rorqual_proto.v1 import load_pb2
from rorqual_runtime.clock import WallClock
from rorqual_runtime.context import MessageContext


def report(router_id, waiting_s, num_prefill):
    router = load_pb2.RouterLoad(waiting_s=waiting_s, num_prefill=num_prefill)
    return load_pb2.LoadReport(instance_id=router_id, router=router)


async def test_a_router_that_has_heard_of_no_prefill_instance_yet_counts_as_one():
    work = WaitingWork(WallClock())
    assert work.now() == (0.0, 1)
    await work.on_load(report("new", 3.0, 0), MessageContext())
    assert work.now() == (3.0, 1)
    await work.on_load(report("old", 1.0, 4), MessageContext())
    assert work.now() == (4.0, 4)
