"""`rorqual record`: listen to a running fleet and write what it is asked as a trace."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.client import Client
from nats.aio.msg import Msg
from rorqual_proto.v1 import decode_pb2, kvmeta_pb2, router_pb2
from rorqual_runtime import subjects

from rorqual_cli.address import BusAddress, bus_address
from rorqual_cli.problems import CliError
from rorqual_cli.readiness import connect
from rorqual_cli.report import Reporter
from rorqual_cli.trace_record import TraceRecorder


def run_record(options: argparse.Namespace, report: Reporter) -> int:
    """Record until Ctrl-C, or for --seconds. Raises: CliError when NATS can't be reached."""
    address = bus_address(options.nats_url, options.home, "recorder")
    recorder = TraceRecorder()
    with suppress(KeyboardInterrupt):
        asyncio.run(_record(address, recorder, options.out, options.seconds, report))
    report.waiting("")
    report.say(
        f"{recorder.num_written} requests in {options.out}, "
        f"{recorder.num_open} had not ended and are left out"
    )
    if not recorder.num_written:
        raise CliError(f"no request ended while {address.shown} was listened to")
    return 0


async def _record(
    address: BusAddress, recorder: TraceRecorder, path: Path, seconds: float, report: Reporter
) -> None:
    nc = await connect(address)
    end_s = time.monotonic() + seconds if seconds else math.inf
    with path.open("w", encoding="utf-8", buffering=1) as out:  # a row is kept at once
        try:
            await listen(nc, recorder, out)
            report.say(f"recording {address.shown}; Ctrl-C ends it")
            while (left_s := end_s - time.monotonic()) > 0:
                report.waiting(f"{recorder.num_written} requests, {recorder.num_open} under way")
                await asyncio.sleep(min(1.0, left_s))
        finally:
            await nc.close()


async def listen(nc: Client, recorder: TraceRecorder, out: IO[str]) -> None:
    """Subscribe beside the services; they notice nothing."""
    began_s = time.monotonic()

    async def on_submit(msg: Msg) -> None:
        if (request := _parsed(router_pb2.SubmitRequest(), msg)) is not None:
            recorder.on_submit(request, time.monotonic() - began_s)

    async def on_match(msg: Msg) -> None:
        if (request := _parsed(kvmeta_pb2.MatchRequest(), msg)) is not None:
            recorder.on_match(request)

    async def on_tokens(msg: Msg) -> None:
        if (batch := _parsed(decode_pb2.TokenBatch(), msg)) is not None:
            for row in recorder.on_tokens(batch):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")

    await nc.subscribe(subjects.router_submit(), cb=on_submit)
    await nc.subscribe(subjects.kvmeta_match(), cb=on_match)
    await nc.subscribe(subjects.recipe_tokens("*"), cb=on_tokens)
    await nc.flush()


Wire = TypeVar("Wire", bound=Message)


def _parsed(message: Wire, msg: Msg) -> Wire | None:
    """None for what is not ours to judge: whoever it is meant for says so."""
    try:
        message.ParseFromString(msg.data)
    except DecodeError:
        return None
    return message
