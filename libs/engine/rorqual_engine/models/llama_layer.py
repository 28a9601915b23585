"""One decoder layer of the Llama family, and the sizes that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rorqual_engine.errors import CorruptModel, UnsupportedModel
from rorqual_engine.models.linear import Linear
from rorqual_engine.models.weights import Weights
from rorqual_engine.ops import AttentionShape, StepOps
from rorqual_engine.rope import RopeParams, rope_params


@dataclass(frozen=True)
class LlamaConfig:
    """The part of config.json that matters, checked."""

    hidden: int
    inner: int
    num_layers: int
    shape: AttentionShape
    eps: float
    vocab_size: int
    max_context_tokens: int
    tied_head: bool
    eos_token_ids: tuple[int, ...]
    rope: RopeParams

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> LlamaConfig:
        """Raises: CorruptModel for a missing key, UnsupportedModel for an unknown variant."""
        try:
            heads = int(config["num_attention_heads"])
            head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
            kv_heads = int(config.get("num_key_value_heads") or heads)
            checked = cls(
                hidden=int(config["hidden_size"]),
                inner=int(config["intermediate_size"]),
                num_layers=int(config["num_hidden_layers"]),
                shape=AttentionShape(heads, kv_heads, head_dim),
                eps=float(config["rms_norm_eps"]),
                vocab_size=int(config["vocab_size"]),
                max_context_tokens=int(config["max_position_embeddings"]),
                tied_head=bool(config.get("tie_word_embeddings", False)),
                eos_token_ids=_as_ids(config.get("eos_token_id")),
                rope=rope_params(config, head_dim),
            )
        except KeyError as err:
            raise CorruptModel("config.json", f"{err} is missing") from err
        except (TypeError, ValueError) as err:
            raise CorruptModel("config.json", str(err)) from err
        if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window"):
            raise UnsupportedModel("only silu and full attention are known in the Llama family")
        if heads % kv_heads or head_dim % 2:
            raise CorruptModel("config.json", f"{heads} heads, {kv_heads} kv heads, dim {head_dim}")
        return checked


@dataclass(frozen=True)
class LlamaLayer:
    """Weights of one layer; q, k, v and gate, up are fused."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: LlamaConfig) -> LlamaLayer:
        """prefix: such as model.layers.0. Raises: CorruptModel."""
        _check_shapes(weights, prefix, config)

        def linear(*names: str) -> Linear:
            return Linear(
                weights.stacked([f"{prefix}.{name}.weight" for name in names]),
                weights.optional_stacked([f"{prefix}.{name}.bias" for name in names]),
            )

        return cls(
            attention_norm=weights.get(f"{prefix}.input_layernorm.weight"),
            qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            attention_out=linear("self_attn.o_proj"),
            mlp_norm=weights.get(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
            down=linear("mlp.down_proj"),
        )

    def __call__(
        self, step: StepOps, index: int, hidden: torch.Tensor, delta: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(what attention saw, what is to be added to hidden next); delta: of the layer before.

        hidden: [T, D], changed in place; index: of its KV in a page.
        """
        seen = step.add_norm(hidden, delta, self.attention_norm)
        delta = self.attention_out(step.attend(index, self.qkv(seen)))
        normed = step.add_norm(hidden, delta, self.mlp_norm)
        return seen, self.down(step.gate(self.gate_up(normed)))


def _check_shapes(weights: Weights, prefix: str, config: LlamaConfig) -> None:
    """The weights are those that config.json speaks of. Raises: CorruptModel."""
    q_dim, kv_dim = config.shape.q_dim, config.shape.kv_dim
    shapes = {
        "self_attn.q_proj": (q_dim, config.hidden),
        "self_attn.k_proj": (kv_dim, config.hidden),
        "self_attn.v_proj": (kv_dim, config.hidden),
        "self_attn.o_proj": (config.hidden, q_dim),
        "mlp.gate_proj": (config.inner, config.hidden),
        "mlp.up_proj": (config.inner, config.hidden),
        "mlp.down_proj": (config.hidden, config.inner),
    }
    for name, shape in shapes.items():
        weights.check_shape(f"{prefix}.{name}.weight", shape)


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
