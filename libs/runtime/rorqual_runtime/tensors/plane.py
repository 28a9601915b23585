"""The tensor plane of one process: publish bytes under a lease, fetch what others published."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
from opentelemetry import trace
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.clock import Clock, WallClock
from rorqual_runtime.errors import NoCapacity, StaleTicket
from rorqual_runtime.logs import get_logger
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors.arena import DEFAULT_LEASE_S, Arena, Reservation
from rorqual_runtime.tensors.attachments import Attachments
from rorqual_runtime.tensors.copying import (
    Buffer,
    U8Array,
    as_sources,
    as_target,
    copy_bytes,
    run_copy,
)
from rorqual_runtime.tensors.credentials import link_credentials
from rorqual_runtime.tensors.grpc_reader import RemoteReader
from rorqual_runtime.tensors.grpc_server import TensorServer
from rorqual_runtime.tensors.segment import free_shm_bytes, remove_dead_segments
from rorqual_runtime.tensors.tickets import checked_shape, grpc_address
from rorqual_runtime.tensors.writable import WritableSlot

_log = get_logger(__name__)
_SWEEP_INTERVAL_S = 0.5
_SWEEPS_PER_HOUSEKEEPING = 20
_COPY_THREADS = 2


class TensorPlane:
    """Owner and reader of tensors; one per process, for one event loop.

    As an owner it holds immutable bytes in a bounded shared-memory arena, each under a lease.
    As a reader it copies another's bytes into memory it has reserved itself: through shared
    memory on one host, else by a gRPC stream. A ticket yields exactly the bytes it was made for
    or an error, never anything else.

    allocate, seal, discard, renew and release may be called from any thread.
    """

    def __init__(
        self,
        arena: Arena,
        server: TensorServer,
        *,
        owner_id: str,
        incarnation: int,
        host_id: str,
        max_inline_bytes: int,
        remote: RemoteReader,
        clock: Clock,
        tracer: trace.Tracer,
    ) -> None:
        """Made by `open`."""
        self.owner_id, self.incarnation, self.host_id = owner_id, incarnation, host_id
        self.max_inline_bytes = max_inline_bytes
        self.address = ""
        self._arena, self._server = arena, server
        self._clock, self._tracer = clock, tracer
        self._executor = ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="tensor-copy")
        self._attachments = Attachments(clock, self._executor)
        self._remote = remote
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        settings: RuntimeSettings,
        instance_id: str,
        incarnation: int,
        host_id: str | None,
        *,
        clock: Clock | None = None,
        tracer: trace.Tracer | None = None,
        stall_timeout_s: float = 5.0,
    ) -> TensorPlane:
        """Create the arena, remove arenas of dead processes, and start serving.

        host_id: equal for processes that can share memory; empty or None: gRPC only.
        stall_timeout_s: a peer that sends nothing for this long counts as unavailable.
        Raises: NoCapacity, Unavailable; Unsupported when the files that prove who we are can't be
            read.
        """
        credentials = link_credentials(settings.secrets_dir)
        clock = clock or WallClock()
        tracer = tracer or trace.get_tracer("rorqual.tensors")
        remove_dead_segments()
        _warn_when_shm_is_small(settings.shm_bytes)
        arena = Arena(settings.shm_bytes, incarnation, clock)
        server = TensorServer(arena, instance_id, tracer, credentials)
        plane = cls(
            arena,
            server,
            owner_id=instance_id,
            incarnation=incarnation,
            host_id=host_id or "",
            max_inline_bytes=settings.max_inline_bytes,
            remote=RemoteReader(stall_timeout_s, credentials),
            clock=clock,
            tracer=tracer,
        )
        try:
            plane.address = await server.start(settings.advertise_host)
        except BaseException:
            arena.close()
            raise
        plane._sweeper = asyncio.create_task(plane._sweep(), name="tensor-sweeper")
        return plane

    async def close(self) -> None:
        """Void every ticket, stop serving and remove the arena."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._arena.close()
        await self._server.stop()
        await self._remote.close()
        self._attachments.close()
        self._executor.shutdown(wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def num_held(self) -> int:
        """Slots this owner holds: being written, or under a lease."""
        return self._arena.num_held

    @property
    def num_held_bytes(self) -> int:
        return self._arena.num_held_bytes

    @property
    def num_reading(self) -> int:
        """gRPC streams being sent to readers now."""
        return self._server.num_reading

    @property
    def num_attached(self) -> int:
        """Other processes' segments mapped now."""
        return self._attachments.num_attached

    async def publish(
        self,
        buffers: Buffer | Sequence[Buffer],
        *,
        dtype: str = "uint8",
        shape: Sequence[int] | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        checksum: bool = False,
    ) -> tensor_pb2.TensorTicket:
        """Copy buffers (one after the other) into the arena under a lease.

        shape: default: all elements in one dimension.
        checksum: also hash the whole payload; every reader then verifies it.
        Raises: NoCapacity when the arena is full. Nothing stays held when this fails or is
            cancelled.
        """
        sources = as_sources(buffers)
        num_bytes = sum(source.nbytes for source in sources)
        dims = checked_shape(num_bytes, dtype, shape)
        fill = functools.partial(self._fill, sources, num_bytes, checksum)
        try:
            filled = await run_copy(
                self._executor, num_bytes, fill, lambda lost: self._arena.discard(lost[0])
            )
        except RuntimeError as error:  # the executor is shut down
            raise NoCapacity("the tensor plane is closed") from error
        reservation, digest = filled
        try:
            return self._publish(reservation, dtype, dims, lease_s, digest)
        except BaseException:
            self._arena.discard(reservation)
            raise

    def allocate(
        self, num_bytes: int, *, dtype: str = "uint8", shape: Sequence[int] | None = None
    ) -> WritableSlot:
        """Arena memory to fill without a copy.

        Raises: NoCapacity when the arena is full.
        """
        dims = checked_shape(num_bytes, dtype, shape)
        reservation = self._arena.reserve(num_bytes)
        publish = functools.partial(self._publish, reservation, dtype, dims)
        return WritableSlot(self._arena, reservation, publish)

    async def fetch(
        self,
        ticket: tensor_pb2.TensorTicket,
        into: Buffer | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> U8Array:
        """The ticket's bytes, copied into `into` (contiguous, of exactly that size) or new memory.

        Raises: StaleTicket, Corrupt, Unavailable, DeadlineExceeded. `into` then holds anything,
            and in no case is it written to after this has returned or was cancelled.
        """
        target = None if into is None else as_target(into, ticket.size_bytes)
        with self._tracer.start_as_current_span("tensor.fetch", kind=trace.SpanKind.CLIENT) as span:
            span.set_attribute("rorqual.tensor.bytes", ticket.size_bytes)
            if ticket.owner_id == self.owner_id:
                span.set_attribute("rorqual.tensor.transport", "own")
                return await self._fetch_own(ticket, target)
            shm = self._reachable_shm(ticket)
            if shm is not None:
                span.set_attribute("rorqual.tensor.transport", "shm")
                return await self._attachments.read(shm, ticket, target)
            span.set_attribute("rorqual.tensor.transport", "grpc")
            return await self._remote.read(grpc_address(ticket), ticket, target, timeout_s)

    def renew(self, ticket: tensor_pb2.TensorTicket, lease_s: float = DEFAULT_LEASE_S) -> None:
        """Owner: start the ticket's lease anew and update its `expires_unix_s`.

        Raises: StaleTicket when it has ended already.
        """
        self._arena.renew(ticket, lease_s)
        ticket.expires_unix_s = self._clock.now_unix_s() + lease_s

    def release(self, ticket: tensor_pb2.TensorTicket) -> bool:
        """Owner: free the ticket's memory; False when it was gone already."""
        return ticket.owner_id == self.owner_id and self._arena.release(ticket)

    async def release_remote(
        self, ticket: tensor_pb2.TensorTicket, *, timeout_s: float = 2.0
    ) -> bool:
        """Reader: tell the owner that the ticket is done with; False when it was gone already.

        Raises: Unavailable, DeadlineExceeded: the owner's lease then ends by itself.
        """
        if ticket.owner_id == self.owner_id:
            return self._arena.release(ticket)
        return await self._remote.release(grpc_address(ticket), ticket, timeout_s)

    def _fill(
        self, sources: Sequence[U8Array], num_bytes: int, checksum: bool
    ) -> tuple[Reservation, int]:
        """A reserved slot with the sources' bytes, and their hash (0 without checksum)."""
        reservation = self._arena.reserve(num_bytes)
        try:
            target = self._arena.payload(reservation)
            return reservation, copy_bytes(target, sources, checksum=checksum)
        except BaseException:
            self._arena.discard(reservation)
            raise

    def _publish(
        self,
        reservation: Reservation,
        dtype: str,
        shape: tuple[int, ...],
        lease_s: float,
        digest: int,
    ) -> tensor_pb2.TensorTicket:
        self._arena.publish(reservation, lease_s)
        ticket = tensor_pb2.TensorTicket(
            owner_id=self.owner_id,
            incarnation=self.incarnation,
            slot=reservation.slot,
            generation=reservation.generation,
            size_bytes=reservation.size_bytes,
            dtype=dtype,
            shape=shape,
            xxh3_64=digest,
            expires_unix_s=self._clock.now_unix_s() + lease_s,
        )
        if self.host_id:
            shm = ticket.endpoints.add().shm
            shm.host_id, shm.segment = self.host_id, self._arena.segment_name
            shm.offset_bytes = reservation.offset_bytes
            shm.header_offset_bytes = self._arena.slot_header_offset(reservation.slot)
        ticket.endpoints.add().grpc.address = self.address
        return ticket

    async def _fetch_own(self, ticket: tensor_pb2.TensorTicket, target: U8Array | None) -> U8Array:
        source = self._arena.check(ticket)
        target = np.empty(source.nbytes, np.uint8) if target is None else target
        copy = functools.partial(copy_bytes, target, (source,), checksum=False)
        await run_copy(self._executor, source.nbytes, copy)
        if not self._arena.still_holds(ticket):
            raise StaleTicket("the ticket's data was released while it was read")
        return target

    def _reachable_shm(self, ticket: tensor_pb2.TensorTicket) -> str | None:
        """The segment to read the ticket from, attached; None: use the network."""
        if not self.host_id:
            return None
        for endpoint in ticket.endpoints:
            if (
                endpoint.WhichOneof("transport") == "shm"
                and endpoint.shm.host_id == self.host_id
                and self._attachments.attach(endpoint.shm)
            ):
                return str(endpoint.shm.segment)
        return None

    async def _sweep(self) -> None:
        """Free ended leases at once, and what the dead left behind every few seconds."""
        num_sweeps = 0
        while True:
            await self._clock.sleep(_SWEEP_INTERVAL_S)
            self._arena.free_expired()
            num_sweeps += 1
            if num_sweeps % 2 == 0:
                self._attachments.drop_dead()
            if num_sweeps % _SWEEPS_PER_HOUSEKEEPING == 0:
                remove_dead_segments()


def _warn_when_shm_is_small(wanted_bytes: int) -> None:
    """Not an error: memory is taken as it is used, and a full /dev/shm is a NoCapacity then."""
    free_bytes = free_shm_bytes()
    if free_bytes < wanted_bytes:
        _log.warning(
            "less shared memory is free than RORQUAL_SHM_BYTES asks for",
            extra={"free_bytes": free_bytes, "shm_bytes": wanted_bytes},
        )
