"""Equal constraints are compiled once, results are bounded, rejections are kept for a while."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_grammar.cache import REJECTION_TTL_S, GrammarCache
from rorqual_grammar.constraint import Constraint, ConstraintKind
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import InvalidRequest, Unavailable


def regex(source: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, source)


class Compiler:
    """Compiles to as many bytes as asked for, once it is let go."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.was_cancelled = False

    async def __call__(self, constraint: Constraint) -> bytes:
        self.calls.append(constraint.source)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return constraint.source.encode().ljust(self.size, b".")


def make_cache(compiler: Compiler, capacity_bytes: int = 1000) -> tuple[GrammarCache, ManualClock]:
    clock = ManualClock()
    return GrammarCache(compiler, capacity_bytes=capacity_bytes, clock=clock), clock


async def test_callers_at_the_same_time_share_one_compilation() -> None:
    compiler = Compiler()
    cache, _ = make_cache(compiler)
    compiler.gate.clear()
    callers = [asyncio.create_task(cache.get(regex("a"))) for _ in range(10)]
    await asyncio.sleep(0)
    compiler.gate.set()
    results = await asyncio.gather(*callers)
    assert compiler.calls == ["a"]
    assert len(set(results)) == 1
    assert (await cache.get(regex("a")))[1], "a later caller gets the kept result"


async def test_the_least_recently_used_leave_when_the_bound_is_reached() -> None:
    compiler = Compiler(size=400)
    cache, _ = make_cache(compiler, capacity_bytes=1000)
    for source in ("a", "b", "a", "c"):
        await cache.get(regex(source))
    assert cache.used_bytes <= 1000
    assert (await cache.get(regex("a")))[1]
    assert not (await cache.get(regex("b")))[1]


async def test_a_result_larger_than_the_cache_is_returned_and_not_kept() -> None:
    cache, _ = make_cache(Compiler(size=5000), capacity_bytes=1000)
    assert len((await cache.get(regex("a")))[0]) == 5000
    assert cache.used_bytes == 0


async def test_a_rejection_is_repeated_without_work_until_it_expires() -> None:
    compiler = Compiler()
    compiler.error = InvalidRequest("too slow", "response_format.regex")
    cache, clock = make_cache(compiler, capacity_bytes=10_000)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="too slow") as caught:
            await cache.get(regex("a"))
        assert caught.value.param == "response_format.regex"
    assert len(compiler.calls) == 1
    await clock.advance(REJECTION_TTL_S + 1)
    compiler.error = None
    assert await cache.get(regex("a"))


async def test_a_failure_that_is_not_the_constraints_fault_is_not_remembered() -> None:
    compiler = Compiler()
    compiler.error = Unavailable("sandbox is gone")
    cache, _ = make_cache(compiler)
    with pytest.raises(Unavailable):
        await cache.get(regex("a"))
    compiler.error = None
    assert await cache.get(regex("a"))


async def test_the_last_one_to_leave_ends_the_compilation() -> None:
    compiler = Compiler()
    cache, _ = make_cache(compiler)
    compiler.gate.clear()
    first, second = (asyncio.create_task(cache.get(regex("a"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not compiler.was_cancelled, "the other one still waits"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await asyncio.sleep(0)
    assert compiler.was_cancelled
    compiler.gate.set()
    assert not (await cache.get(regex("a")))[1], "a new caller starts anew"


def test_kinds_never_share_a_key() -> None:
    keys = {Constraint(kind, "x").key for kind in ConstraintKind}
    assert len(keys) == len(ConstraintKind)
