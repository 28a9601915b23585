"""Taking a sequence out of the engine's steps, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio

from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import Entry
from rorqual_decode.running import Running

_OUT_S = 30.0
"""No step lasts as long."""


async def take_out(engine: DecodeEngine, entry: Entry, timeout_s: float = _OUT_S) -> Running | None:
    """The sequence, once no step touches it; None when it has ended before, or somebody else takes
    it out, or the engine does not let go of it in time: it goes on then. It is the caller's
    otherwise, pages and all. Call on the event loop.
    """
    sequence = entry.sequence
    if sequence is None or entry.leaving is not None:
        return None
    loop = asyncio.get_running_loop()
    leaving = entry.leaving = loop.create_future()

    def on_out() -> None:
        if not leaving.done():
            entry.sequence = None
            leaving.set_result(True)
        elif entry.sequence is sequence:  # nobody waits for it any more
            engine.add(sequence)
        else:  # it was cancelled while the engine let go of it
            sequence.hold.release()

    def post() -> None:
        loop.call_soon_threadsafe(on_out)

    engine.take_out(sequence, post)
    try:
        await asyncio.wait((leaving,), timeout=timeout_s)
        return sequence if leaving.done() and leaving.result() else None
    except asyncio.CancelledError:
        if leaving.done() and leaving.result():
            sequence.hold.release()  # it had just come out
        raise
    finally:
        leaving.cancel()
        entry.leaving = None
