"""A gateway and a recipe on a real broker, with router and decode played by a stub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from rorqual_proto.v1.generation_pb2 import Generation
from rorqual_runtime.settings import RuntimeSettings
from tokenizers import Tokenizer

from tests.support.api_services import (
    RunningGateway,
    RunningRecipe,
    running_gateway,
    running_recipe,
)
from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.servers import NatsServer
from tests.support.stub_backend import Playback, StubBackend, stub_backend


@dataclass
class ApiFleet:
    """Everything a test may look at or change. `answer` is what every generation plays."""

    gateway: RunningGateway
    recipe: RunningRecipe
    backend: StubBackend
    tokenizer: Tokenizer
    client: AsyncOpenAI
    nats: NatsServer

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def say(self, text: str, *, per_delta: int = 1, **fields: object) -> None:
        """From now on every generation answers `text`."""
        ids = self.tokens(text)
        deltas = [ids[i : i + per_delta] for i in range(0, len(ids), per_delta)]
        self.backend.play = lambda _generation: Playback(deltas, **fields)  # type: ignore[arg-type]


StartFleet = Callable[..., "AsyncIterator[ApiFleet]"]


@pytest.fixture(scope="session")
def chat_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model_dir(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture
async def start_fleet(
    runtime_settings: RuntimeSettings, nats_server: NatsServer, chat_model_dir: Path
) -> AsyncIterator[Callable[..., object]]:
    """Starts a fleet; keyword arguments are gateway settings."""
    async with AsyncExitStack() as stack:

        async def start(**gateway_settings: object) -> ApiFleet:
            recipe = await stack.enter_async_context(
                running_recipe(
                    runtime_settings, chat_model_dir, stall_probe_s=0.3, resend_timeout_s=2.0
                )
            )
            backend = await stack.enter_async_context(
                stub_backend(runtime_settings, lambda _generation: Playback([]))
            )
            gateway = await stack.enter_async_context(
                running_gateway(runtime_settings, **gateway_settings)
            )
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
            )
            tokenizer = Tokenizer.from_file(str(chat_model_dir / "tokenizer.json"))
            return ApiFleet(gateway, recipe, backend, tokenizer, client, nats_server)

        yield start


def never(_generation: Generation) -> Playback:
    """A generation that stays silent for longer than any test."""
    return Playback([], hold_s=60)
