"""Parts of messages and tool outputs: text, images, files."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from rorqual_recipe.conversation import Part, Role, TextPart
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.media import IMAGE_DETAILS, MediaReader
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.responses.schema import OPEN

MAX_PARTS = 50_000
"""Of one request."""


class TextContent(BaseModel):
    """`input_text`, `output_text`, `text`; annotations and logprobs come back from answers."""

    model_config = OPEN

    type: str
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalContent(BaseModel):
    """`refusal`: what an assistant said instead."""

    model_config = OPEN

    type: str
    refusal: str


class ImageContent(BaseModel):
    """`input_image`."""

    model_config = OPEN

    type: str
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class FileContent(BaseModel):
    """`input_file`. file_data: a data URL, or base64 alone."""

    model_config = OPEN

    type: str
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: str | None = None


class ContentReader:
    """Reads the content of every item of one request."""

    def __init__(self, notes: Notes, *, model: str, has_vision: bool) -> None:
        self._notes = notes
        self._num_left = MAX_PARTS
        self._media = MediaReader(notes, model=model, has_vision=has_vision)
        self._readers: dict[str, Callable[[Any, str], Part | None]] = {
            "input_text": self._text,
            "output_text": self._text,
            "text": self._text,
            "refusal": self._refusal,
            "input_image": self._image,
            "input_file": self._file,
        }

    def read(self, content: Any, path: str, role: Role) -> tuple[Part, ...]:
        """The parts; what is wrong with them is noted."""
        if isinstance(content, str):
            return (TextPart(content),)
        if not isinstance(content, list):
            self._notes.problem(path, "must be a string or a list of parts")
            return ()
        if not content and role is not Role.ASSISTANT:
            self._notes.problem(path, "must hold at least one part")
        self._num_left -= len(content)
        if self._num_left < 0:
            self._notes.problem(path, f"at most {MAX_PARTS} parts in one request")
            return ()
        parts = [self._part(part, f"{path}[{index}]", role) for index, part in enumerate(content)]
        return tuple(part for part in parts if part is not None)

    def _part(self, part: Any, path: str, role: Role) -> Part | None:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            self._notes.problem(f"{path}.type" if isinstance(part, dict) else path, "type required")
            return None
        reader = self._readers.get(kind)
        if reader is None:
            self._unknown_part(kind, f"{path}.type")
            return None
        if kind == "input_image" and role is Role.ASSISTANT:
            self._notes.problem(path, "an assistant's message can't hold images")
            return None
        return reader(part, path)

    def _unknown_part(self, kind: str, path: str) -> None:
        if kind in ("input_audio", "output_audio", "input_video", "computer_screenshot"):
            self._notes.unsupported(path, f"parts of type {kind} are not supported")
        else:
            self._notes.problem(path, f"unknown part type {clip(kind, 64)!r}")

    def _text(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(TextContent, part, path)
        if found is not None and found.annotations:
            self._notes.warn(f"{path}.annotations", "not shown to the model")
        return TextPart(found.text) if found is not None else None

    def _refusal(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(RefusalContent, part, path)
        return TextPart(found.refusal) if found is not None else None

    def _image(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(ImageContent, part, path)
        if found is None:
            return None
        if found.detail not in IMAGE_DETAILS:
            self._notes.problem(f"{path}.detail", "must be auto, low, high or original")
        if found.file_id is not None:
            self._notes.unsupported(f"{path}.file_id", "no files are kept here; send image_url")
            return None
        if found.image_url is None:
            self._notes.problem(f"{path}.image_url", "field required")
            return None
        return self._media.image(found.image_url, f"{path}.image_url", path, found.detail)

    def _file(self, part: Any, path: str) -> Part | None:
        found = self._notes.typed(FileContent, part, path)
        if found is None:
            return None
        if found.file_data is None:
            self._refuse_file(found, path)
            return None
        return self._media.file(found.file_data, found.filename or "", f"{path}.file_data", path)

    def _refuse_file(self, found: FileContent, path: str) -> None:
        if found.file_id is not None:
            self._notes.unsupported(f"{path}.file_id", "no files are kept here; send file_data")
        elif found.file_url is not None:
            self._notes.unsupported(f"{path}.file_url", "files are not fetched; send file_data")
        else:
            self._notes.problem(f"{path}.file_data", "field required")
