"""Who is there: one broadcast over the NATS micro protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from nats.aio.client import Client
from nats.aio.msg import Msg
from rorqual_proto.v1 import load_pb2

NAME_PREFIX = "rorqual-"
DISCOVERY_TIMEOUT_S = 0.3


@dataclass(frozen=True, slots=True)
class Instance:
    """One running process of the fleet."""

    service: str
    """Without prefix: router, prefill, ..."""
    id: str
    version: str
    uptime_s: float
    """By the instance's own start time and our clock."""
    ready: bool
    draining: bool
    load: load_pb2.LoadReport | None
    """None when it did not answer the statistics request in time."""
    address: str
    host: str
    pid: int
    incarnation: int
    num_requests: int
    """Requests answered by all its endpoints since start."""
    num_errors: int
    endpoints: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


async def discover(nc: Client, timeout_s: float = DISCOVERY_TIMEOUT_S) -> list[Instance]:
    """All instances that answer within `timeout_s`, by service and id."""
    info, stats = await asyncio.gather(
        _ask_all(nc, "$SRV.INFO", timeout_s), _ask_all(nc, "$SRV.STATS", timeout_s)
    )
    found = [
        _instance(reply, stats.get(instance_id, {}))
        for instance_id, reply in info.items()
        if str(reply.get("name", "")).startswith(NAME_PREFIX)
    ]
    return sorted(found, key=lambda instance: (instance.service, instance.id))


async def _ask_all(nc: Client, subject: str, timeout_s: float) -> dict[str, dict[str, Any]]:
    replies: dict[str, dict[str, Any]] = {}

    async def on_reply(msg: Msg) -> None:
        try:
            reply = json.loads(msg.data)
        except ValueError:
            return
        if isinstance(reply, dict) and isinstance(reply.get("id"), str):
            replies[reply["id"]] = reply

    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox, cb=on_reply)
    try:
        await nc.publish(subject, b"", reply=inbox)
        await asyncio.sleep(timeout_s)
    finally:
        await subscription.unsubscribe()
    return replies


def _instance(info: dict[str, Any], stats: dict[str, Any]) -> Instance:
    metadata = {str(k): str(v) for k, v in (info.get("metadata") or {}).items()}
    endpoints = stats.get("endpoints") or []
    started_unix_s = _number(metadata.get("started_unix_s"))
    return Instance(
        service=str(info["name"]).removeprefix(NAME_PREFIX),
        id=info["id"],
        version=str(info.get("version", "")),
        uptime_s=max(0.0, time.time() - started_unix_s) if started_unix_s else 0.0,
        ready=metadata.get("ready") == "true",
        draining=metadata.get("draining") == "true",
        load=_load(endpoints),
        address=metadata.get("address", ""),
        host=metadata.get("host", ""),
        pid=int(_number(metadata.get("pid"))),
        incarnation=int(_number(metadata.get("incarnation"))),
        num_requests=sum(int(e.get("num_requests", 0)) for e in endpoints),
        num_errors=sum(int(e.get("num_errors", 0)) for e in endpoints),
        endpoints=tuple(str(e.get("name", "")) for e in info.get("endpoints") or []),
        metadata=metadata,
    )


def _load(endpoints: list[dict[str, Any]]) -> load_pb2.LoadReport | None:
    for endpoint in endpoints:
        data = endpoint.get("data")
        if isinstance(data, dict) and data:
            try:
                return ParseDict(data, load_pb2.LoadReport(), ignore_unknown_fields=True)
            except ParseError:
                return None
    return None


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
