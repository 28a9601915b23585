"""Everything the engine refuses, as types that carry their data."""

from __future__ import annotations

from pathlib import Path


class EngineError(Exception):
    """Base of every error this package raises on purpose."""


class ModelNotFound(EngineError):
    """No usable model lies at the given place."""

    def __init__(self, where: Path | str, missing: str) -> None:
        self.where, self.missing = str(where), missing
        super().__init__(f"no model at {where}: {missing}")


class CorruptModel(EngineError):
    """A file of a model directory is not what its manifest or format promises."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = str(path), reason
        super().__init__(f"{path} is damaged: {reason}")


class UnsupportedModel(EngineError):
    """The model is valid, but no plug-in here can run it."""


class PrepareError(EngineError):
    """The model directory could not be made; the message names the remedy."""


class NoPages(EngineError):
    """The cache has fewer free pages than were asked for; nothing was taken."""

    def __init__(self, wanted: int, free: int) -> None:
        self.wanted, self.free = wanted, free
        super().__init__(f"{wanted} KV pages wanted, {free} free")


class BadChunk(EngineError, ValueError):
    """A SequenceChunk contradicts itself, the cache or the model's limits."""


class GrammarMismatch(EngineError):
    """A compiled grammar belongs to another vocabulary or cannot be read."""
