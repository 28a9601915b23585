"""What the load asks: greedy, in several sizes and protocols, some of it in a shape: pure."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from dataclasses import dataclass
from typing import Any

_WORDS = (
    *("harbour", "river", "crate", "notebook", "ferry", "market", "mountain", "window", "prefix"),
    *("stone", "engine", "letter", "garden", "winter", "copper", "signal", "island", "thread"),
)
_SHAPE = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "is_new": {"type": "boolean"},
    },
    "required": ["colour", "count", "is_new"],
    "additionalProperties": False,
}
_IMAGE_SIDE = 56


@dataclass(frozen=True, slots=True)
class Question:
    """A request with one right answer. kind: for reports."""

    kind: str
    path: str
    body: dict[str, Any]

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))


def make_questions(seed: int, model: str, count: int, *, images: bool) -> list[Question]:
    """`count` different questions. images: whether the model can see."""
    rng = random.Random(seed)
    makers = [_chat, _chat, _long_chat, _shaped, _whole, _message, _response]
    if images:
        makers.append(_seen)
    questions = []
    for number in range(count):
        made = makers[number % len(makers)](rng, number)
        questions.append(Question(made.kind, made.path, {"model": model, **made.body}))
    return questions


def _text(rng: random.Random, number: int, num_words: int) -> str:
    return f"{number}. Tell me about the " + " ".join(rng.choices(_WORDS, k=num_words))


def _chat_body(content: Any, max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "thinking": {"type": "disabled"},
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def _chat(rng: random.Random, number: int) -> Question:
    body = _chat_body(_text(rng, number, 12), rng.choice((60, 120)), ignore_eos=True)
    return Question("chat", "/v1/chat/completions", body)


def _long_chat(rng: random.Random, number: int) -> Question:
    body = _chat_body(_text(rng, number, rng.choice((300, 900))), 60, ignore_eos=True)
    return Question("long prompt", "/v1/chat/completions", body)


def _shaped(rng: random.Random, number: int) -> Question:
    shape = {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SHAPE}}
    body = _chat_body(_text(rng, number, 12), 60, response_format=shape)
    return Question("in a shape", "/v1/chat/completions", body)


def _whole(rng: random.Random, number: int) -> Question:
    body = _chat_body(_text(rng, number, 12), 60, ignore_eos=True, stream=False)
    del body["stream_options"]
    return Question("in one piece", "/v1/chat/completions", body)


def _message(rng: random.Random, number: int) -> Question:
    messages = [{"role": "user", "content": _text(rng, number, 12)}]
    body = {"messages": messages, "max_tokens": 80, "temperature": 0, "stream": True}
    return Question("messages", "/v1/messages", body)


def _response(rng: random.Random, number: int) -> Question:
    body = {
        "input": _text(rng, number, 12),
        "max_output_tokens": 80,
        "temperature": 0,
        "stream": True,
        "store": False,
    }
    return Question("responses", "/v1/responses", body)


def _seen(rng: random.Random, number: int) -> Question:
    url = "data:image/png;base64," + base64.b64encode(_picture(rng)).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": _text(rng, number, 6)},
    ]
    body = _chat_body(parts, 40, ignore_eos=True)
    return Question("with an image", "/v1/chat/completions", body)


def _picture(rng: random.Random) -> bytes:
    """A PNG of one random colour."""
    row = b"\0" + rng.randbytes(3) * _IMAGE_SIDE
    header = struct.pack(">IIBBBBB", _IMAGE_SIDE, _IMAGE_SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * _IMAGE_SIDE)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in chunks)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
