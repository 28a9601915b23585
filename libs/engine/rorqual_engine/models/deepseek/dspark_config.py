"""The keys of dspark_config: a draft module that guesses a block of tokens at once."""

from __future__ import annotations

from dataclasses import dataclass

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.models.deepseek.fields import Fields

MOST_DRAFTS = 16
"""Rows that a slot's rings can take back."""


@dataclass(frozen=True)
class DsparkConfig:
    block: int
    """Tokens guessed at once."""
    taps: tuple[int, ...]
    """Streams of the model that the draft reads, by the layer they enter; one stage each."""
    noise_id: int
    """Stands for every token of a block that is not known yet."""
    rank: int
    """Width of what the token before a guess says about it."""
    num_experts: int
    top_k: int
    temperatures: tuple[float, ...]
    """By position in the block: what the confidence is divided by."""

    @property
    def num_stages(self) -> int:
        return len(self.taps)

    @classmethod
    def find(
        cls, fields: Fields, num_layers: int, late_start: int | None, *, taps_enter: bool
    ) -> DsparkConfig | None:
        """taps_enter: taps name the layer that the streams enter, else the one they leave.

        Raises: CorruptModel, UnsupportedModel.
        """
        if fields.optional_group("dspark_config") is None:
            return None
        group = fields.group("dspark_config")
        block = group.whole("block")
        group.check(block <= MOST_DRAFTS, "block", f"is more than {MOST_DRAFTS}")
        layers = group.layer_ids("taps", num_layers)
        group.check(bool(layers), "taps", "names no layer")
        if layers[0] < (late_start or 0):
            raise UnsupportedModel(f"dspark_config.taps has {layers[0]}, before the late layers")
        noise_id = group.whole("noise_id", least=0)
        group.check(noise_id < fields.whole("vocab_size"), "noise_id", "is no token")
        num_experts = group.whole("num_experts", fields.whole("n_routed_experts"))
        top_k = group.whole("num_experts_per_tok", fields.whole("num_experts_per_tok"))
        group.check(top_k <= num_experts, "num_experts_per_tok", f"is more than {num_experts}")
        taps = layers if taps_enter else tuple(layer + 1 for layer in layers)
        scales = confidence_temperatures(group, block)
        return cls(block, taps, noise_id, group.whole("rank"), num_experts, top_k, scales)


def confidence_temperatures(fields: Fields, block: int) -> tuple[float, ...]:
    """Those of dspark_config; 1 where it has none. Raises: CorruptModel."""
    key = "confidence_temperatures"
    given = fields.raw.get(key)
    if given is None:
        return (1.0,) * block
    is_list = isinstance(given, list) and len(given) == block
    is_right = is_list and all(type(t) in (int, float) and 0 < t < float("inf") for t in given)
    fields.check(is_right, key, f"must be {block} numbers > 0")
    return tuple(float(t) for t in given)
