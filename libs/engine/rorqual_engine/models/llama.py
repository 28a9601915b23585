"""The Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from rorqual_engine.batch import SequenceChunk, lay_out
from rorqual_engine.errors import BadChunk, CorruptModel, UnsupportedModel
from rorqual_engine.kernels.ops import KernelOps, supports
from rorqual_engine.kv import LAYOUT_VERSION, PagedKvCache, uniform_layout
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.linear import Linear
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.weights import Weights
from rorqual_engine.ops import AttentionShape, LayerOps
from rorqual_engine.ref import TorchOps
from rorqual_engine.rope import RopeParams, RopeTable, build_table, rope_params


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
    def load(cls, weights: Weights, index: int) -> LlamaLayer:
        prefix = f"model.layers.{index}"

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


class LlamaModel(CausalModel):
    """Llama, SmolLM, Qwen2 and whatever else has this shape."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: Weights,
        *,
        content_id: str,
        device: torch.device,
        dtype: torch.dtype,
        options: LoadOptions,
    ) -> None:
        if options.group is not None:
            raise UnsupportedModel("a model of the Llama family has no experts to share")
        self.config = LlamaConfig.from_hf(config)
        self.device, self.dtype = device, dtype
        self.vocab_size = self.config.vocab_size
        self.max_context_tokens = self.config.max_context_tokens
        self.eos_token_ids = self.config.eos_token_ids
        shape = self.config.shape
        self.kv_layout = uniform_layout(
            self.config.num_layers, 2 * shape.kv_dim * dtype.itemsize, "block"
        )
        self.fingerprint = _fingerprint(content_id, dtype)
        _check_shapes(self.config, weights)
        self._embedding = weights.get("model.embed_tokens.weight")
        self._layers = [LlamaLayer.load(weights, i) for i in range(self.config.num_layers)]
        self._norm = weights.get("model.norm.weight")
        tied = self.config.tied_head or "lm_head.weight" not in weights
        self._head = Linear(self._embedding if tied else weights.get("lm_head.weight"))
        rope = build_table(self.config.rope, self.max_context_tokens, dtype, device)
        self._ops = _choose_ops(self.config, rope, device, dtype)

    @torch.no_grad()
    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        if cache.layout != self.kv_layout:
            raise BadChunk("the cache was made for another model")
        batch = lay_out(
            chunks,
            cache,
            vocab_size=self.vocab_size,
            max_context_tokens=self.max_context_tokens,
        )
        step = self._ops.begin(batch, cache)
        hidden = functional.embedding(
            torch.from_numpy(batch.token_ids).to(self.device), self._embedding
        )
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed = step.add_norm(hidden, delta, layer.attention_norm)
            delta = layer.attention_out(step.attend(index, layer.qkv(normed)))
            normed = step.add_norm(hidden, delta, layer.mlp_norm)
            delta = layer.down(step.gate(layer.gate_up(normed)))
        assert delta is not None
        if not len(batch.logits_rows):
            return hidden.new_empty((0, self.vocab_size))
        wanted = torch.from_numpy(batch.logits_rows).to(self.device)
        last = step.add_norm(hidden[wanted], delta[wanted], self._norm)
        logits = self._head(last)
        return logits if self.device.type == "cpu" else logits.float()


def _check_shapes(config: LlamaConfig, weights: Weights) -> None:
    """The weights are those that config.json speaks of. Raises: CorruptModel."""
    weights.check_shape("model.embed_tokens.weight", (config.vocab_size, config.hidden))
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
    for index in range(config.num_layers):
        for name, shape in shapes.items():
            weights.check_shape(f"model.layers.{index}.{name}.weight", shape)


def _choose_ops(
    config: LlamaConfig, rope: RopeTable, device: torch.device, dtype: torch.dtype
) -> LayerOps:
    """The compiled kernels where they fit device, dtype and sizes, else plain torch."""
    is_cpu_bf16 = device.type == "cpu" and dtype == torch.bfloat16
    if is_cpu_bf16 and supports(config.shape, config.hidden, config.inner):
        return KernelOps(config.shape, rope, config.eps)
    return TorchOps(config.shape, rope, config.eps)


def _fingerprint(content_id: str, dtype: torch.dtype) -> str:
    text = f"llama|{content_id}|{dtype}|layout={LAYOUT_VERSION}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
