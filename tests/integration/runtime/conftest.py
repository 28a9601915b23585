"""Two processes' worth of bus in one: a server and a caller on the same broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rorqual_runtime.bus import Bus
from rorqual_runtime.settings import RuntimeSettings


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Every span of this test that has ended."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest_asyncio.fixture
async def server_bus(
    runtime_settings: RuntimeSettings, provider: TracerProvider
) -> AsyncIterator[Bus]:
    bus = await Bus.connect(
        runtime_settings, "router", instance_id="router-1", tracer=provider.get_tracer("test")
    )
    yield bus
    await bus.close()


@pytest_asyncio.fixture
async def caller_bus(runtime_settings: RuntimeSettings) -> AsyncIterator[Bus]:
    bus = await Bus.connect(runtime_settings, "caller")
    yield bus
    await bus.close()
