"""Calls from pages of other origins, for the origins that an operator names."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

ANY_ORIGIN = "*"
_METHODS = ("GET", "HEAD", "POST", "DELETE")
_EXPOSED = (
    *("X-Request-Id", "Request-Id", "X-Trace-Id", "X-Rorqual-Warnings", "Retry-After"),
    *(
        f"{family}-{part}"
        for family in ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
        for part in ("Requests", "Tokens")
    ),
    *(
        f"Anthropic-RateLimit-{kind}-{part}"
        for kind in ("Requests", "Tokens")
        for part in ("Limit", "Remaining", "Reset")
    ),
)


def parse_cors_origins(text: str) -> tuple[str, ...]:
    """Origins of a comma-separated list. Raises: ValueError for what no browser sends."""
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != ANY_ORIGIN and not _is_origin(origin):
            raise ValueError(f"{origin!r} is not an origin such as https://app.example.com, or *")
    return origins


def _is_origin(text: str) -> bool:
    parts = urlsplit(text)
    is_whole = text == f"{parts.scheme}://{parts.netloc}"
    return is_whole and parts.scheme in ("http", "https") and bool(parts.hostname)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Lets pages of these origins call every route and read what its headers say."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=list(_METHODS),
        allow_headers=["*"],
        expose_headers=list(_EXPOSED),
    )
