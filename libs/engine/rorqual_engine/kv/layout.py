"""How one model's KV lies inside a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PAGE_TOKENS = 128
LAYOUT_VERSION = 1
"""Changes whenever the meaning of a page's bytes changes; part of the model fingerprint."""

KvKind = Literal["block", "window"]


@dataclass(frozen=True)
class LayerKv:
    """What one layer keeps."""

    kind: KvKind
    """block: valid for the whole context. window: only the next window needs it."""
    bytes_per_token: int


@dataclass(frozen=True)
class WindowLayout:
    """SWA KV of one sequence: what only the next window needs, in a slot of its own.

    A slot is working memory, rings addressed by absolute position. A snapshot is what of it must
    travel or be kept so that another slot can go on at exactly the same number of tokens.
    """

    window_tokens: int
    slot_bytes: int
    snapshot_bytes: int
    layers: tuple[LayerKv, ...]
    """Kind `window`, one a layer, for the accounting."""


@dataclass(frozen=True)
class KvLayout:
    """A page: the KV of all layers for page_tokens tokens of one sequence, as plain bytes.

    Layers follow each other inside a page; a layer's own arrangement is the model's affair.
    """

    page_tokens: int
    page_bytes: int
    layers: tuple[LayerKv, ...]
    """What pages hold, kind `block`, layer after layer."""
    window: WindowLayout | None = None
    """What a sequence holds besides its pages; None = pages are all."""

    @property
    def bytes_per_token(self) -> int:
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def window_bytes(self) -> int:
        """Bytes of one sequence's window slot; 0 without one."""
        return self.window.slot_bytes if self.window else 0

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of one sequence's window as it travels; 0 without one."""
        return self.window.snapshot_bytes if self.window else 0

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold num_tokens tokens."""
        return -(-num_tokens // self.page_tokens)


def uniform_layout(num_layers: int, bytes_per_token: int, kind: KvKind = "block") -> KvLayout:
    """Layout of a model whose layers all keep the same amount for every token."""
    layers = tuple(LayerKv(kind, bytes_per_token) for _ in range(num_layers))
    return KvLayout(PAGE_TOKENS, num_layers * bytes_per_token * PAGE_TOKENS, layers)
