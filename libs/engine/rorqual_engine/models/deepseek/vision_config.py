"""Sizes of the vision tower, from config.json, and the tensors they imply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.models.deepseek.fields import Fields
from rorqual_engine.models.deepseek.image_size import ImageRules, first_key

NUM_CHANNELS = 3


@dataclass(frozen=True)
class TowerConfig:
    """Sizes of the tower. Keys: README.md."""

    num_layers: int
    dim: int
    num_heads: int
    inner: int
    eps: float
    theta: float
    hidden: int
    """Of the text model, whose rows the aligner makes."""
    rules: ImageRules

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def patch_dim(self) -> int:
        return NUM_CHANNELS * self.rules.patch**2

    @property
    def cell_dim(self) -> int:
        """What the aligner reads for one token."""
        return self.dim * self.rules.downsample**2

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> TowerConfig:
        """config: the whole config.json. Raises: CorruptModel, UnsupportedModel."""
        top = Fields({**config})
        vision = top.group("vision_config")
        if not vision.raw:
            raise UnsupportedModel("vision_config is empty")

        def whole(*names: str) -> int:
            return vision.whole(first_key(vision.raw, *names))

        found = cls(
            num_layers=whole("num_hidden_layers", "n_layers"),
            dim=whole("hidden_size", "dim"),
            num_heads=whole("num_attention_heads", "n_heads"),
            inner=whole("intermediate_size", "inter_dim"),
            eps=vision.number("rms_norm_eps", 1e-6),
            theta=vision.number("rope_theta", 10000.0),
            hidden=top.whole("hidden_size"),
            rules=ImageRules.from_config(vision.raw),
        )
        is_fit = found.dim % (4 * found.num_heads) == 0
        vision.check(is_fit, "hidden_size", f"must be 4 n times {found.num_heads} heads")
        return found


def tower_shapes(config: TowerConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tower's tensors in a checkpoint."""
    dim, hidden = config.dim, config.hidden
    yield from _with_bias("vision.patch_embed.proj", (dim, config.patch_dim))
    for layer in range(config.num_layers):
        block = f"vision.blocks.{layer}"
        yield f"{block}.norm1.weight", (dim,)
        yield from _with_bias(f"{block}.attn.wqkv", (3 * dim, dim))
        yield from _with_bias(f"{block}.attn.wo", (dim, dim))
        yield f"{block}.norm2.weight", (dim,)
        yield f"{block}.mlp.w1.weight", (2 * config.inner, dim)
        yield f"{block}.mlp.w2.weight", (dim, config.inner)
    yield "vision.norm.weight", (dim,)
    yield from _with_bias("aligner.w1", (hidden, config.cell_dim))
    yield from _with_bias("aligner.w2", (hidden, hidden))
    for mark in ("start", "newline", "end"):
        yield f"image_{mark}", (hidden,)


def _with_bias(
    name: str, shape: tuple[int, int]
) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
    return (f"{name}.weight", shape), (f"{name}.bias", (shape[0],))
