"""`rorqual ps`: who is there, asked over NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rorqual_proto.v1 import load_pb2
from rorqual_runtime.discovery import Instance, discover

from rorqual_cli.address import BusAddress
from rorqual_cli.readiness import connect

COLUMNS = ("SERVICE", "ID", "VERSION", "UPTIME", "STATE", "PID", "METRICS", "LOAD")


def ps(address: BusAddress, *, timeout_s: float = 0.5) -> int:
    """Print one line an instance. Raises: CliError when NATS can't be reached."""
    instances = asyncio.run(_discover(address, timeout_s))
    print_table([_row(instance) for instance in instances])
    return 0


async def _discover(address: BusAddress, timeout_s: float) -> list[Instance]:
    nc = await connect(address)
    try:
        return await discover(nc, timeout_s)
    finally:
        await nc.close()


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, aligned plain columns elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        _print_plain([COLUMNS, *rows])
        return
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def _row(instance: Instance) -> tuple[str, ...]:
    return (
        instance.service,
        instance.id,
        instance.version,
        uptime_text(instance.uptime_s),
        state_text(instance),
        str(instance.pid),
        instance.metadata.get("metrics", "-"),
        load_text(instance.load),
    )


def state_text(instance: Instance) -> str:
    """One word."""
    if instance.draining:
        return "draining"
    return "ready" if instance.ready else "starting"


def uptime_text(seconds: float) -> str:
    """The two largest units: 42s, 3m05s, 2h10m, 1d04h."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    return f"{minutes}m{s:02}s" if minutes else f"{s}s"


def load_text(load: load_pb2.LoadReport | None) -> str:
    """What an instance says about its load, in words."""
    if load is None:
        return "-"
    parts = [f"{load.num_active_requests} active"]
    if load.num_held_leases:
        parts.append(f"{load.num_held_leases} leases")
    if load.num_total_pages:
        parts.append(f"{load.num_used_pages}/{load.num_total_pages} pages")
    if load.num_total_windows:
        parts.append(f"{load.num_used_windows}/{load.num_total_windows} windows")
    return ", ".join(parts + _detail(load))


def _guesses(decode: load_pb2.DecodeLoad) -> list[str]:
    if not decode.guess_rounds_total:
        return []
    taken = decode.taken_guesses_total
    share = taken / decode.guessed_tokens_total
    return [
        f"{share:.0%} of guesses taken, {1 + taken / decode.guess_rounds_total:.1f} tokens each"
    ]


def _detail(load: load_pb2.LoadReport) -> list[str]:
    match load.WhichOneof("detail"):
        case "prefill":
            return [
                f"{load.prefill.queued_tokens} tokens queued",
                f"{load.prefill.tokens_per_s:.0f} tokens/s",
            ]
        case "decode":
            decode = load.decode
            step = [f"{decode.step_s * 1000:.1f} ms a step"] if decode.step_s else []
            return [f"{decode.num_running}/{decode.max_running} running", *step, *_guesses(decode)]
        case "router":
            return [f"{load.router.queued_jobs} jobs queued"]
        case "vision" if load.vision.step_patches:
            return [
                f"{load.vision.queued_patches} patches queued",
                f"{load.vision.patches_per_s:.0f} patches/s",
            ]
        case "recipe" if load.recipe.encoded_chars_total:
            share = load.recipe.cached_chars_total / load.recipe.encoded_chars_total
            return [f"{share:.0%} of the text known"]
    return []
