"""What the service keeps of one generation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from rorqual_decode.carried_kv import HostKv
from rorqual_decode.generation import GenerationKey, Origin, OutputStream
from rorqual_decode.generation_span import GenerationSpan
from rorqual_decode.running import Running

NO_TOKENS = np.empty(0, np.int32)


@dataclass(eq=False, slots=True)
class Entry:
    """One generation of this instance, from the first offer until its tokens are forgotten."""

    stream: OutputStream
    span: GenerationSpan
    origin: Origin
    admission: asyncio.Task[None] | None = None
    sequence: Running | None = None
    """Set while the engine has it."""
    prompt_ids: np.ndarray = field(default_factory=lambda: NO_TOKENS)
    """Known once it is admitted."""
    paused: tuple[Running, HostKv] | None = None
    """Set while it stands aside; the sequence has no pages then."""
    moving: HostKv | None = None
    """What is copied elsewhere from where it stood aside."""
    leaving: asyncio.Future[bool] | None = None
    """Set while it is asked for at the engine: whether that has let go of it, or it has ended."""
    departure: asyncio.Task[bool] | None = None
    """Set while it is moved; owns the sequence once the engine has let go of it."""

    @property
    def key(self) -> GenerationKey:
        """Which run of which generation."""
        return self.stream.spec.key

    @property
    def num_host_bytes(self) -> int:
        """KV of it in host memory."""
        kv = self.moving if self.paused is None else self.paused[1]
        return 0 if kv is None else kv.num_bytes

    @property
    def is_active(self) -> bool:
        """It has not ended."""
        return self.stream.finish is None
