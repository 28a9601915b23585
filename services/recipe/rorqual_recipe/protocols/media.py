"""Images and documents inside messages, however a protocol wraps them."""

import base64
import binascii

from rorqual_recipe.conversation import ImagePart, Part, TextPart
from rorqual_recipe.documents import DocumentReader, UnreadableDocument, media_type_of
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.notes import Notes

MAX_URL_CHARS = 8192
MAX_FILE_NAME_CHARS = 256
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
IMAGE_DETAILS = (None, "auto", "low", "high", "original")


class MediaReader:
    """Reads what is no plain text; what is wrong with it is noted."""

    def __init__(self, notes: Notes, *, model: str, has_vision: bool) -> None:
        self._notes = notes
        self._model = model
        self._has_vision = has_vision
        self._documents = DocumentReader()

    def image(self, url: str, url_path: str, path: str, detail: str | None) -> Part | None:
        """An image by http(s) URL or base64 data URL. path: the part, url_path: its URL."""
        if not self._has_vision:
            reason = f"model {clip(self._model, 128)} has no vision tower; send text parts only"
            self._notes.unsupported(path, reason)
            return None
        detail = detail or "high"
        if url.startswith(("http://", "https://")):
            if len(url) > MAX_URL_CHARS:
                self._notes.problem(url_path, f"at most {MAX_URL_CHARS} characters")
            return ImagePart(param=path, url=url, detail=detail)
        media_type, data = split_data_url(url)
        if media_type not in IMAGE_TYPES:
            wanted = "an http(s) URL, or a base64 data URL of a png, jpeg, gif or webp image"
            self._notes.problem(url_path, f"must be {wanted}")
            return None
        if decoded(data) is None:
            self._notes.problem(url_path, "is not valid base64")
            return None
        return ImagePart(param=path, media_type=media_type, data_base64=data, detail=detail)

    def file(self, file_data: str, name: str, data_path: str, path: str) -> Part | None:
        """A file as data URL or base64 alone: an image, or a document that becomes text."""
        media_type, data = split_data_url(file_data)
        if media_type in IMAGE_TYPES:
            return self.image(file_data, data_path, path, None)
        content = decoded(data)
        if content is None:
            self._notes.problem(data_path, "is not valid base64")
            return None
        try:
            document = self._documents.read(content, media_type_of(media_type, name, content))
        except UnreadableDocument as err:
            self._notes.unsupported(data_path, str(err))
            return None
        if document.note:
            self._notes.warn(path, document.note)
        title = clip(name, MAX_FILE_NAME_CHARS)
        return TextPart(f"{title}\n\n{document.text}" if title else document.text)


def split_data_url(text: str) -> tuple[str, str]:
    """Media type and base64; without a `data:` head the type is unknown."""
    if not text.startswith("data:"):
        return "", text
    head, _, data = text[5:].partition(",")
    media_type = head.partition(";")[0].lower()
    return media_type, data if head.endswith(";base64") else "!"


def decoded(data: str) -> bytes | None:
    """The bytes, or None when it is no base64."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
