"""Greedy answers to prompts with images, from a fleet and from the engine alone."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.image_fit import fit_image
from rorqual_engine.models.deepseek.image_size import plan_image
from rorqual_engine.models.deepseek.vision import VisionTower

from tests.e2e.chat import _ids_by_bytes


def data_url(data: bytes) -> str:
    """A picture's file as clients send it."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image_part(url: str, **fields: str) -> dict[str, Any]:
    """An image in a chat message."""
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text_part(text: str) -> dict[str, Any]:
    """A text in a chat message."""
    return {"type": "text", "text": text}


@dataclass(frozen=True)
class SeenAnswer:
    """What a client learns."""

    output_ids: list[int]
    num_prompt_tokens: int
    cached_tokens: int


class SeeingClient:
    """Asks a fleet over HTTP, without a client library in between."""

    def __init__(self, base_url: str, model_dir: Path) -> None:
        self.model = str(json.loads((model_dir / "rorqual.json").read_text())["id"])
        self.http = httpx.Client(base_url=base_url, timeout=60)
        self._id_by_bytes = _ids_by_bytes(model_dir)
        added = json.loads((model_dir / "tokenizer.json").read_text())["added_tokens"]
        self._added_ids = {entry["id"] for entry in added}

    def is_plain(self, output_ids: list[int]) -> bool:
        """Every token shows as content: none opens reasoning or calls."""
        return not self._added_ids & set(output_ids)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json={"model": self.model, **body})

    def chat(self, messages: Sequence[Any], **fields: Any) -> httpx.Response:
        body = {
            "messages": messages,
            "temperature": 0,
            "max_tokens": 12,
            "logprobs": True,
            "thinking": {"type": "disabled"},
            **fields,
        }
        return self.post("/v1/chat/completions", body)

    def ask(self, messages: Sequence[Any], **fields: Any) -> SeenAnswer:
        reply = self.chat(messages, **fields)
        assert reply.status_code == 200, reply.text
        body = reply.json()
        tokens = body["choices"][0]["logprobs"]["content"] or []
        details = body["usage"].get("prompt_tokens_details") or {}
        return SeenAnswer(
            [self._id_by_bytes[bytes(token["bytes"])] for token in tokens],
            body["usage"]["prompt_tokens"],
            details.get("cached_tokens") or 0,
        )

    def prompt_ids(self, messages: Sequence[Any], **fields: Any) -> list[int]:
        """The prompt's ids, images expanded."""
        body = {"messages": messages, "thinking": {"type": "disabled"}, **fields}
        reply = self.post("/tokenize", body)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["tokens"])


class SeeingOracle:
    """The engine and the tower in this process: a whole prompt in one chunk, then row by row."""

    def __init__(self, model_dir: Path) -> None:
        config = json.loads((model_dir / "config.json").read_text())
        self.image_id = int(config["image_token_id"])
        self._model = load_model(model_dir)
        added = json.loads((model_dir / "tokenizer.json").read_text())["added_tokens"]
        self._unseen = {int(token["id"]) for token in added if token["special"]}
        """Answers don't show them; which CPU it is decides whether random weights say one."""
        self._tower = VisionTower.load(model_dir, config, torch.device("cpu"), torch.bfloat16)

    def rows(self, data: bytes) -> torch.Tensor:
        """Embeddings of a picture's file."""
        image = Image.open(io.BytesIO(data)).convert("RGB")
        plan = plan_image(*image.size, self._tower.config.rules)
        return self._tower.encode([fit_image(image, plan)])[0]

    def answer(self, prompt_ids: list[int], files: Sequence[bytes], num_tokens: int) -> list[int]:
        """Greedy tokens as answers show them; files in the order of their places, each exactly as
        many rows as ids."""
        cache = self._model.new_cache(64)
        with cache.allocate((len(prompt_ids) + num_tokens) // 128 + 1) as lease:
            chunk = self._prompt(prompt_ids, files, lease, 0)
            return self._continue(chunk, cache, num_tokens)

    def answer_after_replay(
        self, prompt_ids: list[int], files: Sequence[bytes], num_blocks: int, num_tokens: int
    ) -> list[int]:
        """The same where num_blocks blocks are stored and their window is gone."""
        cache = self._model.new_cache(64)
        num_pages = (len(prompt_ids) + num_tokens) // 128 + 1
        num_stored = num_blocks * 128
        first = num_stored - self._model.num_replayed(num_stored)
        with cache.allocate(num_pages) as whole, cache.allocate(num_pages) as lease:
            self._model.forward([self._prompt(prompt_ids, files, whole, 0)], cache)
            for mine, theirs in zip(lease.pages[:num_blocks], whole.pages, strict=False):
                cache.pages[mine] = cache.pages[theirs]
            chunk = self._prompt(prompt_ids, files, lease, first)
            chunk.window_floor, chunk.num_stored = first, num_stored
            return self._continue(chunk, cache, num_tokens)

    def _prompt(
        self, prompt_ids: list[int], files: Sequence[bytes], lease: PageLease, first: int
    ) -> SequenceChunk:
        """Rows of a prompt from `first` on, the images' among them."""
        (places,) = np.nonzero(np.array(prompt_ids) == self.image_id)
        images = None
        if files:
            values = torch.cat([self.rows(data) for data in files])
            assert len(values) == len(places)
            seen = places >= first
            images = ImageRows(places[seen] - first, values[torch.from_numpy(seen)])
        ids = prompt_ids[first:]
        window = lease.window
        return SequenceChunk(
            ids, first, lease.pages, True, window, defers_late=True, embeddings=images
        )

    def _continue(self, chunk: SequenceChunk, cache: PagedKvCache, num_tokens: int) -> list[int]:
        output: list[int] = []
        position = chunk.start + len(chunk.token_ids)
        pages, window = chunk.pages, chunk.window
        while len(output) < num_tokens:
            with torch.inference_mode():
                token = int(self._model.forward([chunk], cache)[0].argmax())
            if token in self._model.eos_token_ids:
                break
            output.append(token)
            chunk = SequenceChunk([token], position, pages, True, window)
            position += 1
        return [token for token in output if token not in self._unseen]
