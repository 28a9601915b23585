"""Taking a sequence out of the engine's steps, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio

from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import Entry
from rorqual_decode.running import Running


async def take_out(engine: DecodeEngine, entry: Entry) -> Running | None:
    """The sequence, once no step touches it; None when it has ended before, or somebody else takes
    it out. It is the caller's then, pages and all. Call on the event loop.
    """
    sequence = entry.sequence
    if sequence is None or entry.leaving is not None:
        return None
    loop = asyncio.get_running_loop()
    leaving = entry.leaving = loop.create_future()

    def on_out() -> None:
        if leaving.done():  # it was cancelled, or we were, while the engine let go of it
            sequence.hold.release()
        else:
            entry.sequence = None
            leaving.set_result(True)

    def post() -> None:
        loop.call_soon_threadsafe(on_out)

    engine.take_out(sequence, post)
    try:
        return sequence if await leaving else None
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled() and leaving.result():
            sequence.hold.release()  # it had just come out
        raise
    finally:
        entry.leaving = None
