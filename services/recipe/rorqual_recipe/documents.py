"""Text of documents that clients send along: text files, and PDF through a library."""

import json
import mimetypes
import subprocess
import sys
import time
from dataclasses import dataclass, replace

from rorqual_recipe.pdf_text import OPENED_BUT_UNREADABLE

PDF = "application/pdf"
_PDF_IN_BASE64 = b"JVBERi"
_ESCAPED_LETTERS = (b"\\u004", b"\\u005", b"\\u006")
PDF_WEIGHT_BYTES = 1 << 30
_TEXT_TYPES = frozenset(
    f"application/{name}"
    for name in (
        *("json", "ld+json", "xml", "xhtml+xml", "yaml", "x-yaml", "toml", "x-toml", "sql"),
        *("javascript", "x-javascript", "typescript", "x-sh", "x-python", "x-ndjson", "jsonl"),
        *("rtf", "x-tex", "graphql", "x-httpd-php", "x-perl", "x-ruby", "csv"),
    )
)


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Bounds of one document; time and memory are those of the process that reads a PDF.

    max_documents, max_total_s: of all documents in one request.
    """

    max_bytes: int = 32 << 20
    max_pages: int = 300
    max_chars: int = 4_000_000
    max_memory_bytes: int = 1 << 30
    max_s: float = 10.0
    max_documents: int = 100
    max_total_s: float = 20.0


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document's text. note: what of the document is not in it; "" when all is."""

    text: str
    note: str = ""


class UnreadableDocument(Exception):
    """A document that can't be turned into text; the message completes `field: ...`."""


def reading_weight(body: bytes) -> int:
    """What reading a body costs, in bytes of a plain one: a PDF in it makes it heavy.

    Heavy bodies must not be read on the event loop. Letters hidden behind JSON escapes count as
    a PDF, so that nothing slips through.
    """
    is_heavy = _PDF_IN_BASE64 in body or any(escape in body for escape in _ESCAPED_LETTERS)
    return len(body) + (PDF_WEIGHT_BYTES if is_heavy else 0)


def media_type_of(declared: str, name: str, data: bytes) -> str:
    """The declared type, else one that name or content give away, else ""."""
    if declared and declared != "application/octet-stream":
        return declared.partition(";")[0].strip().lower()
    if data.startswith(b"%PDF-"):
        return PDF
    return mimetypes.guess_type(name)[0] or ""


class DocumentReader:
    """Reads the documents of one request: one budget of time and number for all of them."""

    def __init__(self, limits: DocumentLimits = DocumentLimits()) -> None:
        self._limits = limits
        self._num_left = limits.max_documents
        self._time_left_s = limits.max_total_s

    def read(self, data: bytes, media_type: str) -> DocumentText:
        """See read_document. Raises: UnreadableDocument."""
        self._num_left -= 1
        if self._num_left < 0:
            most = self._limits.max_documents
            raise UnreadableDocument(f"at most {most} documents are read in one request")
        max_s = min(self._limits.max_s, max(self._time_left_s, 0.0))
        started_s = time.monotonic()
        try:
            return read_document(data, media_type, replace(self._limits, max_s=max_s))
        finally:
            self._time_left_s -= time.monotonic() - started_s


def read_document(
    data: bytes, media_type: str, limits: DocumentLimits = DocumentLimits()
) -> DocumentText:
    """The document's text; takes up to `max_s`, so call it on a thread.

    media_type: "" when unknown: then it is text if it decodes as text.
    Raises: UnreadableDocument.
    """
    if len(data) > limits.max_bytes:
        raise UnreadableDocument(f"at most {limits.max_bytes} bytes are read")
    if media_type == PDF:
        return _read_pdf(data, limits)
    if media_type and not media_type.startswith("text/") and media_type not in _TEXT_TYPES:
        raise UnreadableDocument(f"documents of type {media_type} are not supported")
    return _read_text(data, limits)


def _read_text(data: bytes, limits: DocumentLimits) -> DocumentText:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as err:
        raise UnreadableDocument("the file is not text in UTF-8") from err
    if "\0" in text:
        raise UnreadableDocument("the file is binary, not text")
    if len(text) > limits.max_chars:
        raise UnreadableDocument(f"at most {limits.max_chars} characters are read")
    return DocumentText(text)


def _read_pdf(data: bytes, limits: DocumentLimits) -> DocumentText:
    if not data.startswith(b"%PDF-"):  # reading_weight counts on it
        raise UnreadableDocument("the file does not begin with %PDF-")
    bounds = (limits.max_pages, limits.max_chars, limits.max_memory_bytes, round(limits.max_s) + 1)
    command = [sys.executable, "-I", "-m", "rorqual_recipe.pdf_text", *map(str, bounds)]
    try:
        done = subprocess.run(  # no environment: there are keys in ours
            command, input=data, capture_output=True, timeout=limits.max_s, check=False, env={}
        )
    except subprocess.TimeoutExpired as err:
        raise UnreadableDocument(f"the PDF could not be read in {limits.max_s:g} s") from err
    if done.returncode == OPENED_BUT_UNREADABLE:
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise UnreadableDocument(f"the PDF can't be read ({reason[:200]})")
    if done.returncode != 0:
        raise UnreadableDocument("the PDF takes more time or memory than a document may use")
    return _pdf_text(json.loads(done.stdout), limits)


def _pdf_text(answer: dict[str, str | int], limits: DocumentLimits) -> DocumentText:
    text, num_pages, num_read = str(answer["text"]), answer["num_pages"], answer["num_read"]
    if not text.strip():
        raise UnreadableDocument("the PDF holds no text; scanned pages are not read")
    note = "only the text of the PDF is read, not its pictures or layout"
    if num_read != num_pages or int(answer["num_chars"]) >= limits.max_chars:
        note += f"; {num_read} of {num_pages} pages"
    return DocumentText(text, note)
