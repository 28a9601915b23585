"""A served request and a queued job to try the bus with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rorqual_proto.v1 import prefill_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.discovery import Instance, discover
from rorqual_runtime.queue import WorkQueue

from tests.support.waiting import WAIT_S, until

PlaceHandler = Callable[[router_pb2.PlaceRequest, MessageContext], Awaitable[router_pb2.PlaceReply]]


async def serve_place(bus: Bus, handler: PlaceHandler, **options: int) -> None:
    """Serve `router_place()` with this handler."""
    await bus.serve(
        subjects.router_place(),
        router_pb2.PlaceRequest,
        router_pb2.PlaceReply,
        handler,
        name="place",
        **options,
    )


async def ask_place(
    bus: Bus, request_id: str = "r", *, timeout_s: float = WAIT_S, outlasts_outages: bool = False
) -> str:
    """The decode id that the served `place` answered with."""
    reply = await bus.request(
        subjects.router_place(),
        router_pb2.PlaceRequest(request_id=request_id),
        router_pb2.PlaceReply,
        timeout_s=timeout_s,
        outlasts_outages=outlasts_outages,
    )
    return str(reply.placement.decode_id)


async def answer_place(
    request: router_pb2.PlaceRequest, _context: MessageContext
) -> router_pb2.PlaceReply:
    """Places every request on `decode-<request id>`."""
    return router_pb2.PlaceReply(
        placement=router_pb2.Placement(decode_id=f"decode-{request.request_id}")
    )


async def discovered(bus: Bus, is_it: Callable[[list[Instance]], object]) -> list[Instance]:
    """What discovery finds, once it is as awaited: a busy instance may miss a round."""
    found: list[Instance] = []

    async def look() -> object:
        found[:] = await discover(bus.client)
        return is_it(found)

    await until(look, "discovery")
    return found


JOBS = subjects.prefill_jobs("default", "lt16k")


def job(name: str) -> prefill_pb2.PrefillJob:
    """A job that is recognised by its name."""
    return prefill_pb2.PrefillJob(kv_lease_id=name)


async def put_job(queue: WorkQueue, name: str) -> bool:
    return await queue.publish(JOBS, job(name), msg_id=name)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern of NATS stands for."""
    told, asked = pattern.split("."), subject.split(".")
    if told[-1] == ">":
        told, asked = told[:-1], asked[: len(told) - 1] if len(asked) >= len(told) else []
    return len(told) == len(asked) and all(a in ("*", b) for a, b in zip(told, asked, strict=True))
