"""Parts of messages: text, refusals, images, files."""

from collections.abc import Callable
from typing import Any

from rorqual_recipe.conversation import Part, Role, TextPart
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.chat.schema import (
    FileContent,
    ImageContent,
    RefusalContent,
    TextContent,
)
from rorqual_recipe.protocols.media import MediaReader
from rorqual_recipe.protocols.notes import Notes

MAX_PARTS = 4096
_NEVER_SUPPORTED = frozenset({"input_audio", "audio_url", "video_url", "input_video"})
_IMAGES = frozenset({"image_url", "image", "input_image"})


class ContentReader:
    """Reads the content of every message of one request."""

    def __init__(self, notes: Notes, media: MediaReader) -> None:
        self._notes = notes
        self._media = media
        self._readers: dict[str, Callable[[Any, str], Part | None]] = {
            "text": self._text,
            "refusal": self._refusal,
            "image_url": self._image,
            "file": self._file,
        }

    def read(self, content: str | list[Any] | None, path: str, role: Role) -> tuple[Part, ...]:
        """The parts; what is wrong with them is noted."""
        if content is None:
            return ()
        if isinstance(content, str):
            return (TextPart(content),)
        if not content and role is not Role.ASSISTANT:
            self._notes.problem(path, "must hold at least one part")
        if len(content) > MAX_PARTS:
            self._notes.problem(path, f"at most {MAX_PARTS} parts")
            return ()
        parts = [self._part(part, f"{path}[{index}]", role) for index, part in enumerate(content)]
        return tuple(part for part in parts if part is not None)

    def _part(self, part: Any, path: str, role: Role) -> Part | None:
        if not isinstance(part, dict):
            self._notes.problem(path, "must be an object with a type")
            return None
        kind = part.get("type")
        if not isinstance(kind, str):
            self._notes.problem(f"{path}.type", "must be a string" if kind else "field required")
            return None
        if kind in _IMAGES and role is Role.ASSISTANT:
            self._notes.problem(path, "an assistant's message can't hold images")
            return None
        reader = self._readers.get(kind)
        if reader is None:
            self._unknown_part(kind, path)
            return None
        return reader(part, path)

    def _unknown_part(self, kind: str, path: str) -> None:
        if kind in _NEVER_SUPPORTED:
            self._notes.unsupported(path, f"parts of type {kind} are not supported")
        else:
            self._notes.problem(f"{path}.type", f"unknown part type {clip(kind, 64)!r}")

    def _text(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(TextContent, part, path)
        return TextPart(found.text) if found is not None else None

    def _refusal(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(RefusalContent, part, path)
        return TextPart(found.refusal) if found is not None else None

    def _image(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(ImageContent, part, path)
        if found is None:
            return None
        image = found.image_url
        return self._media.image(image.url, f"{path}.image_url.url", path, image.detail)

    def _file(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(FileContent, part, path)
        if found is None:
            return None
        if found.file is None and found.file_id is None and found.file_data is None:
            self._notes.problem(f"{path}.file", "field required")
            return None
        inner, where = (found.file, f"{path}.file") if found.file else (found, path)
        if inner.file_id is not None and inner.file_data is not None:
            self._notes.problem(f"{where}.file_id", "must not be given beside file_data")
        elif inner.file_id is not None:
            self._notes.unsupported(f"{where}.file_id", "no files are kept here; send file_data")
        elif inner.file_data is None:
            self._notes.problem(f"{where}.file_data", "field required")
        else:
            name = inner.filename or ""
            return self._media.file(inner.file_data, name, f"{where}.file_data", path)
        return None
