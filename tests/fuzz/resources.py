"""Requests about stored responses: of ids that are there, were there, or never made sense."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode

from tests.fuzz.http_client import Answer
from tests.support.chat_model_dir import MODEL_ID

ENDPOINT = "stored_responses"
_IDS = (
    *("resp_", "resp_0", "x", "..", ".", "%", "a/b", "input_items", "resp_\u0000", "🎈" * 90, "*"),
    *("resp_" + "0" * 24, "resp_" + "a" * 4000, " ", "?", "#", "resp_x y", "\r\nx: y"),
)
_QUERY_VALUES = (
    "",
    "0",
    "1",
    "100",
    "101",
    "-1",
    "asc",
    "desc",
    "true",
    "null",
    "🎈",
    "resp_",
    "[]",
)
_QUERY_NAMES = ("limit", "order", "after", "before", "include", "include[]", "stream", "x", "")
_MAX_KNOWN = 50

Send = Callable[[str, str, bytes | None], Awaitable[Answer]]


class StoredResponses:
    """Makes requests from a seed, around a few responses that are stored as it goes."""

    def __init__(self) -> None:
        self._known: list[str] = []

    async def send(self, chance: random.Random, send: Send) -> Answer:
        """One request: mostly reading, sometimes storing or deleting."""
        kind = chance.randrange(10)
        if kind == 0 or not self._known:
            return await self._store(chance, send)
        known = chance.random() < 0.7
        response_id = chance.choice(self._known if known else _IDS)
        path = f"/v1/responses/{quote(response_id, safe='')}"
        if kind == 1:
            return await send("DELETE", path, None)
        if kind < 6:
            path += "/input_items"
        return await send("GET", path + _query(chance), None)

    async def _store(self, chance: random.Random, send: Send) -> Answer:
        body: dict[str, object] = {"model": MODEL_ID, "input": "hi", "store": True}
        if self._known and chance.random() < 0.5:
            body["previous_response_id"] = chance.choice(self._known)
        answer = await send("POST", "/v1/responses", json.dumps(body).encode())
        if answer.status == 200:
            self._known.append(json.loads(answer.body)["id"])
            del self._known[:-_MAX_KNOWN]
        return answer


def _query(chance: random.Random) -> str:
    pairs = [
        (chance.choice(_QUERY_NAMES), chance.choice(_QUERY_VALUES))
        for _ in range(chance.choice((0, 0, 1, 2, 3)))
    ]
    return f"?{urlencode(pairs)}" if pairs else ""
