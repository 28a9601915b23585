"""`rorqual top`: the fleet live in the terminal, asked over NATS once a second, and what the scaler
makes of it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from nats.aio.client import Client
from nats.errors import Error as NatsError
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rorqual_proto.v1.scaler_pb2 import GetDecisionRequest, ScaleDecision
from rorqual_runtime import subjects
from rorqual_runtime.discovery import Instance, discover

from rorqual_cli.address import BusAddress
from rorqual_cli.ps import load_text, state_text, uptime_text
from rorqual_cli.readiness import connect

COLUMNS = ("SERVICE", "ID", "UPTIME", "STATE", "REQUESTS", "ERRORS", "LOAD")
SCALER_COLUMNS = ("SCALED", "RUNNING", "PENDING", "WANTED", "CHANGE", "WHY")
ASK_S = 0.3


@dataclass(frozen=True)
class Totals:
    """The fleet in a few numbers."""

    num_instances: int
    num_running: int
    max_running: int
    queued_jobs: int
    tokens_per_s: float
    """Of decode: running requests over the time of a step"""
    hit_share: float | None
    """Of asked prefix blocks; None = nothing was asked yet"""


def top(address: BusAddress, *, interval_s: float = 1.0, num_rounds: int | None = None) -> int:
    """Show the fleet until interrupted, or num_rounds times. Raises: CliError without NATS."""
    asyncio.run(_watch(address, interval_s, num_rounds))
    return 0


async def _watch(address: BusAddress, interval_s: float, num_rounds: int | None) -> None:
    console = Console(highlight=False)
    nc = await connect(address)
    try:
        with Live(console=console, auto_refresh=False, screen=sys.stdout.isatty()) as live:
            shown = 0
            while num_rounds is None or shown < num_rounds:
                instances, decision = await asyncio.gather(discover(nc, ASK_S), _decision(nc))
                live.update(render(instances, decision), refresh=True)
                shown += 1
                await asyncio.sleep(interval_s if shown != num_rounds else 0)
    finally:
        await nc.close()


async def _decision(nc: Client) -> ScaleDecision | None:
    """What the scaler last decided; None when it does not answer in time."""
    asked = GetDecisionRequest().SerializeToString()
    try:
        reply = await nc.request(subjects.scaler_get_decision(), asked, timeout=ASK_S)
        decision = ScaleDecision.FromString(reply.data)
    except (NatsError, DecodeError):
        return None
    return decision if decision.targets else None


def render(instances: Sequence[Instance], decision: ScaleDecision | None = None) -> Group:
    """What is shown of one answer of the fleet."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for instance in instances:
        table.add_row(
            instance.service,
            instance.id,
            uptime_text(instance.uptime_s),
            state_text(instance),
            str(instance.num_requests),
            str(instance.num_errors),
            load_text(instance.load),
        )
    head = (Text(summary(totals(instances))), Text(_counts(instances)), Text())
    if decision is None:
        return Group(*head, table)
    return Group(*head, table, Text(), _scaling(decision))


def _scaling(decision: ScaleDecision) -> Table:
    table = Table(*SCALER_COLUMNS, box=None, pad_edge=False)
    for target in decision.targets:
        counts = (target.num_running, target.num_pending, target.num_desired)
        change = f"{target.num_change:+d}" if target.num_change else "-"
        table.add_row(target.service, *map(str, counts), change, target.reason)
    if decision.driver == "none":
        table.caption = "dry run: nobody carries this out"
    return table


def totals(instances: Sequence[Instance]) -> Totals:
    """Sums over all instances that answered."""
    loads = [instance.load for instance in instances if instance.load is not None]
    decodes = [load.decode for load in loads if load.HasField("decode")]
    kvmetas = [load.kvmeta for load in loads if load.HasField("kvmeta")]
    asked = sum(kvmeta.asked_blocks_total for kvmeta in kvmetas)
    return Totals(
        num_instances=len(instances),
        num_running=sum(decode.num_running for decode in decodes),
        max_running=sum(decode.max_running for decode in decodes),
        queued_jobs=max((load.router.queued_jobs for load in loads), default=0),
        tokens_per_s=sum(d.num_running / d.step_s for d in decodes if d.step_s > 0),
        hit_share=sum(k.matched_blocks_total for k in kvmetas) / asked if asked else None,
    )


def summary(found: Totals) -> str:
    """One line for the whole fleet."""
    hits = "-" if found.hit_share is None else f"{found.hit_share:.0%}"
    return (
        f"{found.num_instances} instances  {found.num_running}/{found.max_running} running  "
        f"{found.queued_jobs} queued  {found.tokens_per_s:.0f} tokens/s  {hits} of blocks hit"
    )


def _counts(instances: Sequence[Instance]) -> str:
    counts = Counter(instance.service for instance in instances)
    return "  ".join(f"{service} {number}" for service, number in counts.items())
