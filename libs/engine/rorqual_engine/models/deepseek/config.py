"""What config.json says about a DeepSeek V4 or V4.1 model, checked. Keys: README.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.models.deepseek.dspark_config import DsparkConfig
from rorqual_engine.models.deepseek.fields import Fields
from rorqual_engine.models.deepseek.plan import LayerPlan, plan_v4, plan_v41

V4_ARCHITECTURE = "DeepseekV4ForCausalLM"
V41_ARCHITECTURE = "DeepseekV41ForConditionalGeneration"


@dataclass(frozen=True)
class Yarn:
    """Stretching of low frequencies; frequencies only, no factor on the result."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_tokens: int


@dataclass(frozen=True)
class RopeConfig:
    theta: float
    yarn: Yarn | None = None


@dataclass(frozen=True)
class IndexConfig:
    """How queries choose compressed entries."""

    num_heads: int
    head_dim: int
    top_k: int
    num_blocks: int
    """Candidate blocks that a candidate source passes on."""
    block_entries: int


@dataclass(frozen=True)
class MoeConfig:
    num_experts: int
    top_k: int
    inner: int
    num_shared: int
    clamp: float
    scale: float


@dataclass(frozen=True)
class StreamConfig:
    """The residual streams and how they are mixed."""

    num_streams: int
    iterations: int
    eps: float
    is_lagged: bool
    """A sublayer reads the streams by the weights that the sublayer before it computed."""


@dataclass(frozen=True)
class EngramConfig:
    """Hashed n-grams that add to the streams."""

    layers: tuple[int, ...]
    max_ngram: int
    num_heads: int
    head_dim: int
    table_rows: int
    vocab_size: int
    pad_id: int


@dataclass(frozen=True)
class DeepseekConfig:
    family: Literal["v4", "v4.1"]
    vocab_size: int
    hidden: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    out_groups: int
    out_rank: int
    window: int
    eps: float
    q_head_norm: bool
    max_context_tokens: int
    eos_token_ids: tuple[int, ...]
    rope_main: RopeConfig
    rope_compress: RopeConfig
    layers: tuple[LayerPlan, ...]
    streams: StreamConfig
    index: IndexConfig
    moe: MoeConfig
    kv_quantized: bool
    late_start: int | None
    """First layer that only the last window of a prompt's rows runs through."""
    image_token_id: int | None
    engram: EngramConfig | None
    vision: dict[str, Any] | None
    """vision_config as it stands; read by the vision tower."""
    dspark: DsparkConfig | None
    """A draft module that belongs to the model; None = there is none, or nobody wants it."""
    num_mtp_layers: int

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_encoder_layers(self) -> int:
        """Layers that every row runs through."""
        return self.num_layers if self.late_start is None else self.late_start

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> DeepseekConfig:
        """Raises: CorruptModel naming the key, UnsupportedModel for an unknown variant."""
        is_v41 = V41_ARCHITECTURE in (config.get("architectures") or ())
        fields = Fields(config)
        _check_variant(fields)
        head_dim = fields.whole("head_dim")
        rope_dim = _rope_dim(fields, head_dim)
        engram = _engram(fields) if is_v41 else None
        layers, late_start = (
            plan_v41(fields, engram.layers if engram else ()) if is_v41 else (plan_v4(fields), None)
        )
        heads, groups = fields.whole("num_attention_heads"), fields.whole("o_groups")
        fields.check(heads % groups == 0, "o_groups", f"must divide {heads} heads")
        main, compress = _ropes(fields)
        return cls(
            family="v4.1" if is_v41 else "v4",
            vocab_size=fields.whole("vocab_size"),
            hidden=fields.whole("hidden_size"),
            num_heads=heads,
            head_dim=head_dim,
            rope_dim=rope_dim,
            q_rank=fields.whole("q_lora_rank"),
            out_groups=groups,
            out_rank=fields.whole("o_lora_rank"),
            window=_window(fields),
            eps=fields.number("rms_norm_eps", 1e-6),
            q_head_norm=fields.flag("q_head_norm", not is_v41),
            max_context_tokens=fields.whole("max_position_embeddings"),
            eos_token_ids=fields.ids("eos_token_id"),
            rope_main=main,
            rope_compress=compress,
            layers=layers,
            streams=_streams(fields, is_v41),
            index=_index(fields),
            moe=_moe(fields),
            kv_quantized=fields.flag("kv_quantized", False),
            late_start=late_start,
            image_token_id=fields.optional_whole("image_token_id"),
            engram=engram,
            vision=fields.optional_group("vision_config"),
            dspark=DsparkConfig.find(fields, len(layers), late_start, taps_enter=is_v41),
            num_mtp_layers=fields.whole("num_nextn_predict_layers", 0, least=0),
        )


def _check_variant(fields: Fields) -> None:
    known = {
        "hidden_act": "silu",
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "num_key_value_heads": 1,
    }
    for key, value in known.items():
        found = fields.raw.get(key, value)
        if found != value:
            raise UnsupportedModel(f"{key} is {found!r}; DeepSeek models here need {value!r}")


def _rope_dim(fields: Fields, head_dim: int) -> int:
    factor = fields.raw.get("partial_rotary_factor")
    default = None if factor is None else int(head_dim * fields.number("partial_rotary_factor"))
    rope_dim = fields.whole("qk_rope_head_dim", default)
    is_fit = rope_dim % 2 == 0 and rope_dim <= head_dim
    fields.check(is_fit, "qk_rope_head_dim", f"must be even and at most head_dim {head_dim}")
    return rope_dim


def _window(fields: Fields) -> int:
    window = fields.whole("sliding_window", 128)
    fields.check(window <= 128, "sliding_window", "is more than a page of 128 tokens")
    return window


def _streams(fields: Fields, is_v41: bool) -> StreamConfig:
    return StreamConfig(
        num_streams=fields.whole("hc_mult", 4),
        iterations=fields.whole("hc_sinkhorn_iters", 20),
        eps=fields.number("hc_eps", 1e-6),
        is_lagged=fields.flag("hc_lagged", is_v41),
    )


def _index(fields: Fields) -> IndexConfig:
    return IndexConfig(
        num_heads=fields.whole("index_n_heads"),
        head_dim=fields.whole("index_head_dim"),
        top_k=fields.whole("index_topk"),
        num_blocks=fields.whole("candidate_blocks", 2048),
        block_entries=fields.whole("candidate_block_entries", 8),
    )


def _moe(fields: Fields) -> MoeConfig:
    num_experts, top_k = fields.whole("n_routed_experts"), fields.whole("num_experts_per_tok")
    fields.check(top_k <= num_experts, "num_experts_per_tok", f"is more than {num_experts} experts")
    return MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        inner=fields.whole("moe_intermediate_size"),
        num_shared=fields.whole("n_shared_experts", 1),
        clamp=fields.number("swiglu_limit", 10.0),
        scale=fields.number("routed_scaling_factor", 1.5),
    )


def _engram(fields: Fields) -> EngramConfig | None:
    layers = fields.layer_ids("engram_layers", fields.whole("num_hidden_layers"))
    if not layers:
        return None
    group = fields.group("engram_config")
    return EngramConfig(
        layers=layers,
        max_ngram=group.whole("max_ngram", 4, least=2),
        num_heads=group.whole("num_heads", 8),
        head_dim=group.whole("head_dim", 256),
        table_rows=group.whole("table_rows", 16_000_000, least=2),
        vocab_size=group.whole("vocab_size"),
        pad_id=group.whole("pad_id", 0, least=0),
    )


def _ropes(fields: Fields) -> tuple[RopeConfig, RopeConfig]:
    """(main, compress), from nested rope_parameters or from flat keys with rope_scaling."""
    given = fields.raw.get("rope_parameters") or {}
    if isinstance(given, dict) and isinstance(given.get("compress"), dict):
        nested = fields.group("rope_parameters")
        main, compress = nested.group("main"), nested.group("compress")
        return (
            RopeConfig(main.number("rope_theta", 10000.0)),
            RopeConfig(compress.number("rope_theta"), _yarn(compress)),
        )
    key = "rope_parameters" if given else "rope_scaling"
    yarn = _yarn(fields.group(key)) if fields.raw.get(key) else None
    return (
        RopeConfig(fields.number("rope_theta", 10000.0)),
        RopeConfig(fields.number("compress_rope_theta", 160000.0), yarn),
    )


def _yarn(group: Fields) -> Yarn | None:
    kind = group.raw.get("rope_type") or group.raw.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise UnsupportedModel(f"{group.path}rope_type is {kind!r}; yarn and default are known")
    return Yarn(
        factor=group.number("factor"),
        beta_fast=group.number("beta_fast", 32.0),
        beta_slow=group.number("beta_slow", 1.0),
        original_tokens=group.whole("original_max_position_embeddings"),
    )
