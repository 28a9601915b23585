"""Blocks of the Messages API -> parts of a message, with every problem on the way."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

from rorqual_recipe.conversation import ImagePart, Part, TextPart
from rorqual_recipe.documents import DocumentReader, UnreadableDocument
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.messages.blocks import (
    BLOCKS,
    SERVER_TOOL_BLOCKS,
    Block,
    DocumentBlock,
    ImageBlock,
    SearchResultBlock,
    SourceBody,
    TextBlock,
)
from rorqual_recipe.protocols.notes import Notes

MAX_URL_CHARS = 8192
MAX_BLOCKS = 65_536
_UNBROKEN_CHARS = 64  # lines of base64 are longer; reading_weight looks at the first ones
TEXT_ONLY = ("text",)
DOCUMENT_CONTENT = ("text", "image")
RESULT_CONTENT = ("text", "image", "document", "search_result", "tool_reference")
_IMAGE_TYPES = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}

PlacedBlock = tuple[str, Block]


class PartReader:
    """Reads the blocks of one body; what is found out about them is noted."""

    def __init__(self, notes: Notes, limits: ParseLimits, model: str) -> None:
        self.notes = notes
        self._limits = limits
        self._model = model
        self._documents = DocumentReader()
        self._blocks_left = MAX_BLOCKS

    def blocks(
        self, path: str, content: str | Sequence[Any] | None, allowed: Sequence[str]
    ) -> list[PlacedBlock]:
        """The valid ones among the blocks, each with its path; plain text is one block."""
        if content is None:
            return []
        if isinstance(content, str):
            return [(path, TextBlock(type="text", text=content))]
        self._blocks_left -= len(content)
        if self._blocks_left < 0:
            self.notes.problem(path, f"at most {MAX_BLOCKS} blocks in one request")
            return []
        found = ((f"{path}[{index}]", raw) for index, raw in enumerate(content))
        blocks = ((place, self._block(place, raw, allowed)) for place, raw in found)
        return [(place, block) for place, block in blocks if block is not None]

    def parts(self, placed: Sequence[PlacedBlock]) -> tuple[Part, ...]:
        """What of the blocks is shown to the model as text or image."""
        return tuple(part for place, block in placed for part in self._parts_of(place, block))

    def _block(self, path: str, raw: Any, allowed: Sequence[str]) -> Block | None:
        kind = raw.get("type") if isinstance(raw, dict) else None
        if isinstance(kind, str) and kind in SERVER_TOOL_BLOCKS:
            self._server_tool_block(path, kind)
            return None
        if isinstance(raw, dict) and (not isinstance(kind, str) or kind not in allowed):
            self.notes.problem(f"{path}.type", self._wrong_type(kind, allowed))
            return None
        block = self.notes.typed(BLOCKS[kind] if kind else Block, raw, path)
        citations = getattr(block, "citations", None)
        if isinstance(citations, dict) and citations.get("enabled"):
            self.notes.warn(f"{path}.citations", "answers carry no citations")
        return block

    def _wrong_type(self, kind: Any, allowed: Sequence[str]) -> str:
        if kind is None:
            return "field required"
        known = "can't stand here" if kind in list(BLOCKS) else "is not a known type of block"
        return f"{clip(str(kind), 64)!r} {known}; here it may be {', '.join(allowed)}"

    def _server_tool_block(self, path: str, kind: str) -> None:
        if self._limits.drop_server_tools:
            self.notes.warn(path, f"{kind} was left out, server tools do not run here")
        else:
            self.notes.unsupported(path, f"{kind}: server tools are not supported")

    def _parts_of(self, path: str, block: Block) -> Iterator[Part]:
        if isinstance(block, TextBlock):
            yield TextPart(block.text)
        elif isinstance(block, ImageBlock):
            image = self._image(f"{path}.source", block.source)
            if image is not None:
                yield image
        elif isinstance(block, DocumentBlock):
            yield from self._document(path, block)
        elif isinstance(block, SearchResultBlock):
            yield from self._search_result(path, block)

    def _image(self, path: str, source: SourceBody) -> ImagePart | None:
        if not self._limits.has_vision:
            reason = f"model {self._model} has no vision tower; send text only"
            self.notes.unsupported(path.removesuffix(".source"), reason)
            return None
        if source.type == "url":
            return self._image_from_url(f"{path}.url", source.url)
        if source.type == "base64":
            return self._image_from_base64(path, source)
        self._refuse_source(path, source.type, "base64 or url")
        return None

    def _image_from_url(self, path: str, url: str | None) -> ImagePart | None:
        if url is None:
            self.notes.problem(path, "field required")
        elif not url.startswith(("http://", "https://")):
            self.notes.problem(path, "must be an http or https address")
        elif len(url) > MAX_URL_CHARS:
            self.notes.problem(path, f"at most {MAX_URL_CHARS} characters")
        else:
            return ImagePart(param=path, url=url)
        return None

    def _image_from_base64(self, path: str, source: SourceBody) -> ImagePart | None:
        media_type = _IMAGE_TYPES.get(source.media_type or "")
        if media_type is None:
            self.notes.problem(f"{path}.media_type", f"must be one of {', '.join(_IMAGE_TYPES)}")
        data = self._base64(f"{path}.data", source.data)
        if media_type is None or data is None:
            return None
        return ImagePart(param=path, media_type=media_type, data_base64=source.data)

    def _base64(self, path: str, data: str | None) -> bytes | None:
        if data is None:
            self.notes.problem(path, "field required")
            return None
        try:
            whole = data[:_UNBROKEN_CHARS] + "".join(data[_UNBROKEN_CHARS:].split())
            decoded = base64.b64decode(whole, validate=True)
        except (binascii.Error, ValueError):
            self.notes.problem(path, "is not valid base64")
            return None
        if not decoded:
            self.notes.problem(path, "must not be empty")
            return None
        return decoded

    def _document(self, path: str, block: DocumentBlock) -> Iterator[Part]:
        facts = {"Title": block.title, "Context": block.context}
        source = block.source
        if source.type == "content":
            inner = self.blocks(f"{path}.source.content", source.content, DOCUMENT_CONTENT)
            yield from _titled(facts, self.parts(inner))
            return
        text = self._document_text(f"{path}.source", source)
        if text is not None:
            yield from _titled(facts, (TextPart(text),))

    def _document_text(self, path: str, source: SourceBody) -> str | None:
        if source.type == "text":
            if source.data is None:
                self.notes.problem(f"{path}.data", "field required")
            return source.data
        if source.type != "base64":
            self._refuse_source(path, source.type, "base64, text or content")
            return None
        data = self._base64(f"{path}.data", source.data)
        return None if data is None else self._read(path, data, source.media_type or "")

    def _read(self, path: str, data: bytes, media_type: str) -> str | None:
        try:
            document = self._documents.read(data, media_type.partition(";")[0].strip().lower())
        except UnreadableDocument as err:
            self.notes.problem(path, str(err))
            return None
        if document.note:
            self.notes.warn(path, document.note)
        return document.text

    def _refuse_source(self, path: str, kind: str, known: str) -> None:
        if kind in ("url", "file"):
            reason = f"sources of type {kind} are not fetched here; send {known}"
            self.notes.unsupported(f"{path}.type", reason)
        else:
            self.notes.problem(f"{path}.type", f"unknown type of source {kind!r}; send {known}")

    def _search_result(self, path: str, block: SearchResultBlock) -> Iterator[Part]:
        inner = self.blocks(f"{path}.content", block.content, TEXT_ONLY)
        yield from _titled({"Title": block.title, "Source": block.source}, self.parts(inner))


def _titled(facts: dict[str, str | None], parts: Sequence[Part]) -> Iterator[Part]:
    """Parts, the first of them led by what is known about where they come from."""
    head = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
    if not head:
        yield from parts
    elif parts and isinstance(parts[0], TextPart):
        yield TextPart(f"{head}\n\n{parts[0].text}")
        yield from parts[1:]
    else:
        yield TextPart(head)
        yield from parts
