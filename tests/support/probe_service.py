"""A small service, run as a process of its own: `python -m tests.support.probe_service MODE`.

Modes: `serve` answers `place` and drains for PROBE_DRAIN_S; `stuck` never finishes draining; `fail`
dies of a background task; `slow-start` never gets ready; `busy-thread` leaves a thread behind;
`stuck-close` never finishes closing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from rorqual_proto.v1 import load_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings


async def on_place(
    request: router_pb2.PlaceRequest, _context: MessageContext
) -> router_pb2.PlaceReply:
    if request.num_context_tokens:
        print("asked", flush=True)
    await asyncio.sleep(request.num_context_tokens / 1000)
    return router_pb2.PlaceReply(placement=router_pb2.Placement(decode_id=request.request_id))


def fill(report: load_pb2.LoadReport) -> None:
    report.num_active_requests = 3
    report.decode.kv_tokens = 4096


async def fail_soon() -> None:
    await asyncio.sleep(0.1)
    raise RuntimeError("the background task is broken")


async def main(mode: str) -> None:
    async with open_service("probe", RuntimeSettings(), version="1.2.3") as ctx:
        ctx.report_load(fill)
        if mode == "slow-start":
            print("starting", flush=True)
            await asyncio.sleep(60)
        await ctx.bus.serve(
            subjects.router_place(),
            router_pb2.PlaceRequest,
            router_pb2.PlaceReply,
            on_place,
            name="place",
        )
        ctx.mark_ready()
        print("ready", flush=True)
        if mode == "fail":
            ctx.track(fail_soon())
        if mode == "busy-thread":
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

        async def drain(timeout_s: float) -> None:
            print("draining", flush=True)
            seconds = 3600 if mode == "stuck" else float(os.environ.get("PROBE_DRAIN_S", "0"))
            await asyncio.sleep(seconds)
            print("drained", flush=True)

        await run_until_signal(ctx, drain)
        if mode == "stuck-close":
            await asyncio.sleep(3600)
    print("closed", flush=True)


if __name__ == "__main__":
    run(main(sys.argv[1]))
