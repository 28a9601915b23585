"""NATS micro registration: discovery and statistics that the standard `nats` tool reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.service import Endpoint, EndpointConfig, Service, ServiceConfig

DEFAULT_MAX_IN_FLIGHT = 1024

OnMessage = Callable[[Msg], Awaitable[str | None]]
"""Answers one request; returns None, or the error it answered with."""


class ConcurrentEndpoint(Endpoint):
    """Runs each request in a task of its own, up to a bound, with true statistics.

    nats-py would run one request at a time.
    """

    def __init__(
        self,
        service: MicroService,
        config: EndpointConfig,
        *,
        on_message: OnMessage,
        on_overload: OnMessage,
        max_in_flight: int,
    ) -> None:
        super().__init__(service, config)
        self._on_message = on_message
        self._on_overload = on_overload
        self._max_in_flight = max_in_flight
        self.in_flight: set[asyncio.Task[None]] = set()

    @property
    def is_shared(self) -> bool:
        """Whether other instances answer the same subject."""
        return not self._subject.endswith(f".{self._service.id}")

    async def drain(self) -> None:
        """Take no new requests; those that arrived are still answered."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.drain()  # type: ignore[no-untyped-call]

    async def _stop(self) -> None:
        if self._subscription is not None:
            await super()._stop()

    async def _handle_request(self, msg: Msg) -> None:
        self._num_requests += 1
        if len(self.in_flight) >= self._max_in_flight:
            self._count_error(await self._on_overload(msg))
            return
        task = asyncio.get_running_loop().create_task(self._run(msg))
        self.in_flight.add(task)
        task.add_done_callback(self.in_flight.discard)

    async def _run(self, msg: Msg) -> None:
        started_ns = time.perf_counter_ns()
        try:
            self._count_error(await self._on_message(msg))
        finally:
            self._processing_time += time.perf_counter_ns() - started_ns
            self._average_processing_time = self._processing_time // self._num_requests

    def _count_error(self, description: str | None) -> None:
        if description is not None:
            self._num_errors += 1
            self._last_error = description  # type: ignore[assignment]


class MicroService(Service):
    """A NATS micro service under an id of our choosing, with metadata that may change."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        instance_id: str,
        version: str,
        metadata: dict[str, str],
        load: Callable[[], Any],
    ) -> None:
        config = ServiceConfig(
            name=name,
            version=version,
            description=f"Rorqual {name.removeprefix('rorqual-')} service",
            metadata=metadata,
            stats_handler=lambda _endpoint: load(),
        )
        super().__init__(client, config)
        self._id = instance_id

    @property
    def endpoints(self) -> list[ConcurrentEndpoint]:
        return list(self._endpoints)

    def set_metadata(self, key: str, value: str) -> None:
        """Shows from the next `$SRV.INFO` on."""
        self._metadata[key] = value

    async def attach(
        self,
        *,
        name: str,
        subject: str,
        queue: str,
        on_message: OnMessage,
        on_overload: OnMessage,
        max_in_flight: int,
    ) -> ConcurrentEndpoint:
        """Serve a subject from now on."""

        async def unused(_request: Any) -> None: ...

        config = EndpointConfig(
            name=name, subject=subject, queue_group=queue, handler=unused, metadata={}
        )
        endpoint = ConcurrentEndpoint(
            self,
            config,
            on_message=on_message,
            on_overload=on_overload,
            max_in_flight=max_in_flight,
        )
        await endpoint._start()
        self._endpoints.append(endpoint)
        return endpoint
