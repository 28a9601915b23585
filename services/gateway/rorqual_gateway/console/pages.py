"""The console's files, read once: a page, its scripts and its style, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATIC_DIR = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One file as it is sent."""

    body: bytes
    media_type: str
    etag: str


def load_pages(directory: Path = STATIC_DIR) -> Mapping[str, Page]:
    """Files of the console by their path below it."""
    return {
        path.relative_to(directory).as_posix(): _load(path)
        for path in sorted(directory.rglob("*"))
        if path.suffix in _TYPES
    }


def _load(path: Path) -> Page:
    body = path.read_bytes()
    return Page(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
