"""A client that wants its answers: what breaks off, it goes on with at another gateway."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence

import httpx

from rorqual_cli.chaos.answers import Answer, AnswerReader
from rorqual_cli.chaos.questions import Question
from rorqual_cli.chaos.verdict import Asked

REQUEST_TIMEOUT_S = 120.0
MAX_RESUMES = 20
RESUME_PAUSE_S = 0.25


class Refused(Exception):
    """An answer that is an error."""


class Client:
    """Asks gateways in turn. What breaks off is gone on with at the next one, under the same
    `Idempotency-Key` and behind the last event that came."""

    def __init__(self, base_urls: Sequence[str], http: httpx.AsyncClient) -> None:
        self._base_urls = list(base_urls)
        self._http = http
        self._turn = 0

    async def ask(self, number: int, question: Question) -> Asked:
        """One request from its first byte to its last, whatever happens."""
        asked = Asked(number, time.monotonic())
        attempt = _Attempt(question, asked)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                asked.answer = await self._until_answered(attempt)
        except Refused as error:
            asked.failure = str(error)
        except TimeoutError:
            asked.failure = f"no whole answer within {REQUEST_TIMEOUT_S:g} s"
        asked.ended_s = time.monotonic()
        return asked

    async def ask_for(self, question: Question, patience_s: float) -> bool:
        """A client that leaves after so long and never comes back; whether it got all of it.

        Raises: Refused, or what httpx raises for a broken connection.
        """
        attempt = _Attempt(question, Asked(0, time.monotonic()), comes_back=False)
        try:
            async with asyncio.timeout(patience_s):
                await self._once(attempt)
        except TimeoutError:
            return False
        return attempt.reader.answer() is not None

    async def _until_answered(self, attempt: _Attempt) -> Answer:
        """Raises: Refused."""
        while True:
            try:
                await self._once(attempt)
            except (httpx.TransportError, httpx.StreamError) as error:
                cause = type(error).__name__
            else:
                answer = attempt.reader.answer()
                if answer is not None:
                    return answer
                cause = attempt.reader.error or "the stream ended before its end"
                if attempt.reader.error:
                    raise Refused(cause)
            attempt.asked.num_resumes += 1
            if attempt.asked.num_resumes > MAX_RESUMES:
                raise Refused(f"{cause}, after {MAX_RESUMES} tries elsewhere")
            await asyncio.sleep(RESUME_PAUSE_S)

    async def _once(self, attempt: _Attempt) -> None:
        """Read as much as comes. Raises: Refused, or what httpx raises for a broken connection."""
        self._turn += 1
        url = self._base_urls[self._turn % len(self._base_urls)] + attempt.question.path
        headers = attempt.headers()
        async with self._http.stream(
            "POST", url, json=attempt.question.body, headers=headers
        ) as reply:
            attempt.asked.request_ids.append(reply.headers.get("x-request-id", "?"))
            if reply.status_code != 200:
                raise Refused(f"{reply.status_code} {(await reply.aread()).decode()[:300]}")
            if not attempt.question.is_streamed:
                attempt.take_body(json.loads(await reply.aread()))
                return
            async for line in reply.aiter_lines():
                attempt.take_line(line)


class _Attempt:
    """How far one question has come."""

    def __init__(self, question: Question, asked: Asked, *, comes_back: bool = True) -> None:
        self.question = question
        self.asked = asked
        self.reader = AnswerReader()
        self._key = secrets.token_hex(12) if comes_back else ""
        self._data = ""
        self._last_id = ""
        self._next_id = ""

    def headers(self) -> Mapping[str, str]:
        """Who asks, and what has come already. Half an event that broke off does not count."""
        self._data, self._next_id = "", self._last_id
        last = {"Last-Event-ID": self._last_id} if self._last_id else {}
        if not self._last_id:
            self.reader = AnswerReader()
        key = {"Idempotency-Key": self._key} if self._key else {}
        return {**key, **last}

    def take_line(self, line: str) -> None:
        """A line of an event stream. An event counts once the empty line behind it is here."""
        if line.startswith("id: "):
            self._next_id = line[4:]
        elif line.startswith("data: "):
            self._data = line[6:]
        elif not line and self._data:
            self.reader.feed(self._data)
            self._data, self._last_id = "", self._next_id
            self.asked.pieces_s.append(time.monotonic())

    def take_body(self, body: Mapping[str, object]) -> None:
        """An answer in one piece."""
        self.reader.feed_body(body)
