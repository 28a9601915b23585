"""Who reads next: of the prompts that wait for blocks the most urgent that finds memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rorqual_prefill.host_blocks import BlockVersion, HostBlock, HostBlocks


@dataclass(eq=False, slots=True)
class Place:
    """A prompt's place in the line: the smaller urgency_s, the sooner its turn."""

    urgency_s: float
    has_pages: bool = False
    """Its blocks leave host memory soon; who waits for pages may fill one half of it only."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Blocks to use, and those of them that must be filled first."""

    blocks: list[HostBlock]
    to_fill: list[HostBlock]


@dataclass(eq=False, slots=True)
class _Waiting:
    place: Place
    versions: Sequence[BlockVersion]
    turn: asyncio.Future[Turn]


class ReadLine:
    """Hands out readers together with the memory to read into, at most num_readers at a time."""

    def __init__(self, host: HostBlocks, num_readers: int) -> None:
        self._host = host
        self._num_idle = num_readers
        self._line: list[_Waiting] = []

    def __len__(self) -> int:
        """Prompts that wait."""
        return len(self._line)

    async def turn(self, place: Place, versions: Sequence[BlockVersion]) -> Turn:
        """These blocks, and the right to fill those that are not there, until `end` is called."""
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(place, versions, turn)
        self._line.append(waiting)
        self.advance()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise
        finally:
            if waiting in self._line:
                self._line.remove(waiting)

    def end(self) -> None:
        """A reader is idle again."""
        self._num_idle += 1
        self.advance()

    def advance(self) -> None:
        """Give turns to those who can have one; to be called when memory was released."""
        for waiting in sorted(self._line, key=lambda w: w.place.urgency_s):
            if self._num_idle == 0:
                return
            if waiting.turn.done():
                continue
            is_early = not waiting.place.has_pages
            if not self._has_memory(len(waiting.versions), is_early):
                if is_early:
                    continue
                return  # who comes behind would take what it waits for
            self._line.remove(waiting)
            self._num_idle -= 1
            waiting.turn.set_result(self._take(waiting.versions))

    def _has_memory(self, num_blocks: int, is_early: bool) -> bool:
        limit = self._host.num_blocks // 2 if is_early else self._host.num_blocks
        return self._host.num_used + num_blocks <= limit

    def _take(self, versions: Sequence[BlockVersion]) -> Turn:
        blocks, to_fill = [], []
        for version in versions:
            block = self._host.find(version)
            if block is None:
                block = self._host.take(version)
                to_fill.append(block)
            blocks.append(block)
        return Turn(blocks, to_fill)

    def _give_back(self, turn: Turn) -> None:
        for block in turn.to_fill:
            self._host.note_filled(block, False)
        self._host.release(turn.blocks)
        self.end()
