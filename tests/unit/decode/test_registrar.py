"""Stored blocks become known to kvmeta, also after it was away."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_decode.block_writer import BlockTraits, StoredBlock
from rorqual_decode.registrar import BlockRegistrar
from rorqual_runtime.errors import Unavailable

from tests.support.waiting import until


def block(n: int) -> StoredBlock:
    return StoredBlock(bytes([n]), 4, BlockTraits(1))


async def test_blocks_are_registered_in_batches_and_in_order():
    batches: list[list[StoredBlock]] = []

    async def register(blocks):
        batches.append(list(blocks))

    registrar = BlockRegistrar(register, max_batch=3, max_backlog=100)
    for n in range(7):
        registrar.add(block(n))
    await registrar.flush()
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [b for batch in batches for b in batch] == [block(n) for n in range(7)]


async def test_an_absent_kvmeta_loses_nothing_up_to_the_bound():
    known: list[StoredBlock] = []
    is_away = True

    async def register(blocks):
        if is_away:
            raise Unavailable()
        known.extend(blocks)

    registrar = BlockRegistrar(register, max_batch=2, max_backlog=4)
    for n in range(6):
        registrar.add(block(n))
    with pytest.raises(Unavailable):
        await registrar.flush()
    assert (registrar.num_waiting, registrar.num_dropped) == (4, 2)
    is_away = False
    running = asyncio.create_task(registrar.run())
    await until(lambda: len(known) == 4)
    running.cancel()
    assert known == [block(n) for n in range(2, 6)]
