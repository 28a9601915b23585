"""A response store in memory, with the base class of the real one."""

from __future__ import annotations

from rorqual_recipe.response_store import ResponseStore
from rorqual_runtime.errors import Unavailable


class MemoryResponseStore(ResponseStore):
    """Keeps what it is given for ever. is_down: every call fails as if Redis were away."""

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        super().__init__(ttl_s=60.0, max_bytes=max_bytes)
        self.values: dict[str, bytes] = {}
        self.is_down = False
        self.is_known_down = False

    @property
    def is_away(self) -> bool:
        return self.is_known_down

    async def aclose(self) -> None:
        self.values.clear()

    async def _read(self, name: str) -> bytes | None:
        self._check()
        return self.values.get(name)

    async def _write(self, name: str, packed: bytes) -> None:
        self._check()
        self.values[name] = packed

    async def _remove(self, name: str) -> bool:
        self._check()
        return self.values.pop(name, None) is not None

    async def _write_once(self, name: str, value: bytes) -> bytes:
        self._check()
        return self.values.setdefault(name, value)

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("the response store is away")
