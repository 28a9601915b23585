"""A router in this process on a real broker, amid a fleet that only reports its load."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest_asyncio
from rorqual_policy import Bucket
from rorqual_proto.v1 import (
    generation_pb2,
    grammar_pb2,
    kvmeta_pb2,
    load_pb2,
    prefill_pb2,
    router_pb2,
)
from rorqual_router.service import RouterService
from rorqual_router.settings import RouterSettings
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.leases import LeasedJob, LeaseHandle
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.waiting import WAIT_S, soon, until


@dataclass
class FakeFleet:
    """Instances that report and hold nothing. Change `reports`, then `say`."""

    bus: Bus
    reports: dict[str, load_pb2.LoadReport] = field(default_factory=dict)
    seq: int = 0

    def add_prefill(self, instance_id: str = "p0", **fields) -> None:
        self.reports[instance_id] = load_pb2.LoadReport(
            service="prefill",
            instance_id=instance_id,
            incarnation=1,
            prefill=load_pb2.PrefillLoad(tokens_per_s=1000),
            model_fingerprint="engine-fingerprint",
            max_context_tokens=8192,
            **fields,
        )

    def add_decode(self, instance_id: str, num_running: int = 0, max_running: int = 64, **fields):
        fields = {"num_total_pages": 4096, "incarnation": 1, **fields}
        self.reports[instance_id] = load_pb2.LoadReport(
            service="decode",
            instance_id=instance_id,
            decode=load_pb2.DecodeLoad(num_running=num_running, max_running=max_running),
            **fields,
        )

    async def say(self) -> None:
        self.seq += 1
        for report in self.reports.values():
            report.seq = self.seq
            await self.bus.publish(subjects.load(report.service, report.instance_id), report)
        await self.bus.connection.flush()

    async def heard_by(self, router: RouterService) -> None:
        """Return once the router knows what the reports say now."""
        await self.say()
        seq, wanted = self.seq, [(r.service, r.instance_id) for r in self.reports.values()]

        def has_heard() -> bool:
            heard = [router.fleet._view._services.get(s, {}).get(i) for s, i in wanted]
            return all(known is not None and known.report.seq >= seq for known in heard)

        await until(has_heard, "the load reports")

    async def keep_saying(self) -> None:
        while True:
            await self.say()
            await asyncio.sleep(0.1)


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeKvmeta:
    """Answers matches as told, and remembers."""

    num_blocks: int = 0
    may_answer: asyncio.Event = field(default_factory=set_event)
    delay_s: float = 0.0
    requests: list[kvmeta_pb2.MatchRequest] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    async def serve(self, bus: Bus) -> None:
        await bus.serve(
            subjects.kvmeta_match(),
            kvmeta_pb2.MatchRequest,
            kvmeta_pb2.MatchReply,
            self.on_match,
            name="match",
        )
        await bus.subscribe(
            subjects.kvmeta_release(), kvmeta_pb2.ReleaseLeaseRequest, self.on_release
        )

    async def on_match(self, request, _context):
        self.requests.append(request)
        await self.may_answer.wait()
        await asyncio.sleep(self.delay_s)
        return kvmeta_pb2.MatchReply(
            match=kvmeta_pb2.Match(num_matched_blocks=self.num_blocks, lease_id="lease-1")
        )

    async def on_release(self, request, _context):
        self.released.append(request.lease_id)


@dataclass
class FakeGrammar:
    """Compiles at once, or fails with `error`."""

    error: Exception | None = None
    delay_s: float = 0.0

    async def serve(self, bus: Bus) -> None:
        await bus.serve(
            subjects.grammar_compile(),
            grammar_pb2.CompileRequest,
            grammar_pb2.CompileReply,
            self.on_compile,
            name="compile",
        )

    async def on_compile(self, request, _context):
        await asyncio.sleep(self.delay_s)
        if self.error:
            raise self.error
        reply = grammar_pb2.CompileReply()
        reply.compiled.grammar.owner_id = "grammar-1"
        return reply


@dataclass
class Client:
    """What gateway and prefill ask of routers, and what lies on the queue afterwards."""

    bus: Bus
    queue: WorkQueue

    async def submit(self, *generations, timeout_s: float = WAIT_S) -> router_pb2.Submitted:
        request = router_pb2.SubmitRequest(generations=generations)
        reply = await self.bus.request(
            subjects.router_submit(), request, router_pb2.SubmitReply, timeout_s=timeout_s
        )
        return reply.submitted

    async def router_load(self, router_id: str) -> load_pb2.LoadReport:
        """The next load report of a router."""
        heard: asyncio.Queue[load_pb2.LoadReport] = asyncio.Queue()

        async def on_load(report, _context):
            heard.put_nowait(report)

        subject = subjects.load("router", router_id)
        subscription = await self.bus.subscribe(subject, load_pb2.LoadReport, on_load)
        try:
            return await soon(heard.get())
        finally:
            await subscription.unsubscribe()

    async def place(self, request_id: str, *, excluded=(), num_tokens: int = 300) -> str:
        request = router_pb2.PlaceRequest(
            request_id=request_id,
            num_context_tokens=num_tokens,
            max_new_tokens=64,
            excluded_ids=excluded,
        )
        reply = await self.bus.request(
            subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=WAIT_S
        )
        return reply.placement.decode_id

    async def jobs(self, bucket: str = "lt16k") -> list:
        """Takes all jobs there are: as a prefill instance where a router keeps the line, else from
        the queue."""
        taker = FakePrefill(self.bus)
        await taker.serve()
        subject = subjects.prefill_jobs("default", bucket)
        consumer = await self.queue.consumer(subject, f"prefill-default-{bucket}")

        async def is_empty() -> bool:
            await taker.say_room()
            for leased in await consumer.pull(50, 0.0):
                await taker.take(leased)
            return not await self.queue.depth()

        await until(is_empty, "the queue to be empty")
        return taker.jobs


@dataclass
class FakePrefill:
    """Takes every job it is given, and acknowledges it at once, or gives back the first few."""

    bus: Bus
    instance_id: str = "taker"
    jobs: list[prefill_pb2.PrefillJob] = field(default_factory=list)
    buckets: tuple[str, ...] = tuple(Bucket)
    pending_s: float = 0.0
    num_given_back: int = 0
    """Of the jobs it is given next."""
    num_untried: int = 0
    """Of those the first, for no fault of theirs."""
    exhausted: list[bool] = field(default_factory=list)
    """Of each job, whether its tries were over."""
    seq: int = 0

    async def serve(self) -> None:
        self.instance_id += f"-{secrets.token_hex(3)}"
        await self.bus.serve(
            subjects.prefill_assign(self.instance_id),
            prefill_pb2.PrefillAssignment,
            prefill_pb2.PrefillAssignmentReply,
            self.on_assignment,
            name=self.instance_id,
        )

    def room(self) -> prefill_pb2.PrefillRoom:
        self.seq += 1
        return prefill_pb2.PrefillRoom(
            instance_id=self.instance_id,
            incarnation=1,
            seq=self.seq,
            buckets=self.buckets,
            open=True,
            pending_s=self.pending_s,
            longest_s=min(self.pending_s, 1.0),  # so nothing short goes beside it
            cost=prefill_pb2.StepCost(a0_s=0.01, a1_s=0.001),
        )

    async def say_room(self) -> None:
        await self.bus.publish(subjects.prefill_rooms("default"), self.room())

    async def say_untried(self, generation: generation_pb2.Generation, stream_seq: int) -> None:
        room = self.room()
        room.untried.add(request_id=generation.request_id, stream_seq=stream_seq)
        await self.bus.publish(subjects.prefill_rooms("default"), room)

    async def on_assignment(self, message, _context):
        handle = LeaseHandle(
            message.subject,
            message.lease_subject,
            dict(message.headers),
            message.job,
            message.num_begun,
        )
        await self.take(LeasedJob.take_over(self.bus.connection, handle, ack_wait_s=10.0))
        return prefill_pb2.PrefillAssignmentReply(taken=self.room())

    async def take(self, leased: LeasedJob) -> None:
        self.jobs.append(leased.decode(prefill_pb2.PrefillJob))
        self.exhausted.append(leased.is_exhausted)
        if self.num_given_back > 0:
            self.num_given_back -= 1
            if self.num_untried > 0:
                self.num_untried -= 1
                await self.say_untried(self.jobs[-1].generation, leased.stream_seq)
            assert await leased.nak()
        else:
            assert await leased.ack()


@contextlib.asynccontextmanager
async def running_router(
    settings: RuntimeSettings,
    instance_id: str = "router-test",
    *,
    stream_max_jobs: int = 1000,
    **fields,
) -> AsyncIterator[RouterService]:
    """A router that serves until the block ends, and misses nothing for being busy."""
    fields = {"match_timeout_s": WAIT_S, "silent_s": WAIT_S, **fields}
    runtime = settings.model_copy(update={"instance_id": instance_id})
    async with open_service("router", runtime) as ctx:
        queue = WorkQueue(ctx.bus, max_jobs=stream_max_jobs)
        await queue.ensure()
        service = RouterService(ctx, queue, RouterSettings(**fields))
        await service.start()
        yield service


@pytest_asyncio.fixture
async def bus(runtime_settings) -> AsyncIterator[Bus]:
    bus = await Bus.connect(runtime_settings, "fake", instance_id="fake-1")
    yield bus
    await bus.close()


@pytest_asyncio.fixture
async def fleet(bus) -> AsyncIterator[FakeFleet]:
    """One prefill and two decode instances, reporting ten times a second."""
    fleet = FakeFleet(bus)
    fleet.add_prefill()
    fleet.add_decode("d0")
    fleet.add_decode("d1")
    saying = asyncio.create_task(fleet.keep_saying())
    yield fleet
    saying.cancel()


@pytest_asyncio.fixture
async def client(bus) -> Client:
    queue = WorkQueue(bus)
    await queue.ensure()
    return Client(bus, queue)
