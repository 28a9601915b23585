"""`rorqual chat`: a conversation in the terminal, streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from rorqual_cli.problems import CliError, ExitCode

_CONNECT_TIMEOUT_S = 5.0
_IDLE_TIMEOUT_S = 120.0
_EXIT_WORDS = ("/exit", "/quit")


@dataclass
class Conversation:
    """The messages so far, and how to ask for the next."""

    client: httpx.Client
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str) -> Iterator[str]:
        """Pieces of the answer as they arrive. What was received stays in the history, also when
        the caller stops early; a question that got no answer does not.

        Raises: CliError.
        """
        self.messages.append({"role": "user", "content": question})
        answer: list[str] = []
        try:
            for piece in self._stream():
                answer.append(piece)
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": "".join(answer)})
            else:
                self.messages.pop()

    def _stream(self) -> Iterator[str]:
        body: dict[str, object] = {"model": self.model, "messages": self.messages, "stream": True}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise _refusal(response.read(), response.status_code)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield from _piece(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            raise CliError(f"no answer from {self.client.base_url}: {error}") from error


def open_client(base_url: str, api_key: str | None) -> httpx.Client:
    """A client for one gateway; proxies of the environment are not used."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(_IDLE_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    return httpx.Client(base_url=base_url, headers=headers, timeout=timeout, trust_env=False)


def served_model(client: httpx.Client) -> str:
    """The first model of the gateway. Raises: CliError."""
    try:
        response = client.get("/v1/models")
        if response.status_code != 200:
            raise _refusal(response.content, response.status_code)
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise CliError(
            f"no gateway answers at {client.base_url} ({error})",
            "start one with `make serve`",
            ExitCode.NOT_RUNNING,
        ) from error
    except (ValueError, LookupError) as error:
        raise CliError(f"{client.base_url} lists no model") from error


def error_text(body: bytes, status: int) -> str:
    """The message of a protocol error, else the status."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {status}"


def _refusal(body: bytes, status: int) -> CliError:
    remedy = "use --api-key, or set OPENAI_API_KEY" if status == 401 else ""
    return CliError(error_text(body, status), remedy)


def ask_once(conversation: Conversation, question: str) -> int:
    """Stream one answer to stdout. Ctrl-C ends it."""
    try:
        _print_pieces(conversation.ask(question))
    except KeyboardInterrupt:
        print()
        return 130
    return 0


def talk(conversation: Conversation) -> int:
    """Questions and answers until /exit or end of input. Ctrl-C stops an answer, not the talk."""
    _enable_line_editing()
    print(f"{conversation.model} at {conversation.client.base_url}")
    print("/exit ends, Ctrl-C stops an answer")
    while (question := _read_question()) is not None:
        if not question:
            continue
        try:
            _print_pieces(conversation.ask(question))
        except KeyboardInterrupt:
            print(" [stopped]")
        except CliError as error:
            print(f"error: {error}", file=sys.stderr)
    return 0


def _read_question() -> str | None:
    """None at the end of the talk."""
    try:
        question = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return None if question in _EXIT_WORDS else question


def _print_pieces(pieces: Iterator[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _piece(event: dict[str, object]) -> Iterator[str]:
    """Text of one stream event. Raises: CliError for an error event."""
    error = event.get("error")
    if isinstance(error, dict):
        raise CliError(str(error.get("message", "the generation failed")))
    choices = event.get("choices")
    if isinstance(choices, list) and choices:
        text = (choices[0].get("delta") or {}).get("content")
        if text:
            yield str(text)


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  (importing it gives input() history and editing)
    except ImportError:
        return
