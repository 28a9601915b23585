"""The few calls of the JetStream API that the work queue needs, with the bus's retries."""

from __future__ import annotations

import json
from typing import Any

from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.errors import Internal, NoCapacity, ServingError, Unavailable

API_TIMEOUT_S = 5.0
_STREAM_NAME_IN_USE = 10058
_STREAM_NOT_FOUND = 10059


class JetStreamApi:
    """Streams and consumers by name; every call is idempotent and bounded."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    async def ensure_stream(self, config: dict[str, Any]) -> None:
        """The stream exists with this configuration, its messages kept.

        Raises: Unavailable, DeadlineExceeded, Internal when the broker refuses the configuration.
        """
        name = config["name"]
        reply = await self._call(f"STREAM.CREATE.{name}", config)
        if _error_code(reply) == _STREAM_NAME_IN_USE:
            reply = await self._call(f"STREAM.UPDATE.{name}", config)
        raise_for_error(reply)

    async def ensure_consumer(self, stream: str, config: dict[str, Any]) -> None:
        """The durable consumer exists with this configuration, its position kept.

        Raises: as `ensure_stream`.
        """
        durable, subject = config["durable_name"], config["filter_subject"]
        request = {"stream_name": stream, "config": config}
        raise_for_error(await self._call(f"CONSUMER.CREATE.{stream}.{durable}.{subject}", request))

    async def num_messages(self, stream: str) -> int:
        """Messages in the stream; 0 when there is no such stream."""
        reply = await self._call(f"STREAM.INFO.{stream}", {})
        if _error_code(reply) == _STREAM_NOT_FOUND:
            return 0
        raise_for_error(reply)
        return int(reply["state"]["messages"])

    async def _call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            msg = await self._connection.request(
                f"$JS.API.{name}", json.dumps(body).encode(), {}, timeout_s=API_TIMEOUT_S
            )
        except Unavailable as error:
            raise Unavailable(
                "JetStream does not answer; is the broker started with it?"
            ) from error
        return parse_api_reply(msg.data)


def parse_api_reply(payload: bytes) -> dict[str, Any]:
    """Raises: Internal when it is no JSON object."""
    try:
        reply = json.loads(payload)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Internal("JetStream answered with something that is no JSON object")
    return reply


def raise_for_error(reply: dict[str, Any]) -> None:
    """Raises: NoCapacity when a limit of the stream is reached, Internal for other errors."""
    error = reply.get("error")
    if error is None:
        return
    raise _serving_error(int(error.get("code", 500)), str(error.get("description", "")))


def _serving_error(code: int, description: str) -> ServingError:
    if code == 503:
        return NoCapacity(f"the queue takes no more: {description}")
    return Internal(f"JetStream: {description}")


def _error_code(reply: dict[str, Any]) -> int:
    return int((reply.get("error") or {}).get("err_code", 0))
