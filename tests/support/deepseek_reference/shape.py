"""Sizes and per-layer roles, taken from the fields of a config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_RATIO_OF_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


@dataclass(frozen=True)
class Role:
    """What one layer does. kind: window, csa, hca or latent."""

    ratio: int
    kind: str
    source: int
    """The layer whose entries it reads; itself where every layer owns its own."""
    index_source: int | None
    """The layer whose choice of entries it uses; None where all are read or there are none."""
    is_late: bool
    hashed: bool
    has_engram: bool


@dataclass(frozen=True)
class Rotation:
    """Frequencies of positions: plain, or blended by YaRN when factor is given."""

    theta: float
    dim: int
    factor: float | None = None
    original: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


class Shape:
    """The numbers of a model; `is_v41` tells the families apart."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.is_v41 = "V41" in config["architectures"][0]
        self.vocab, self.hidden = config["vocab_size"], config["hidden_size"]
        self.num_layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.dim, self.groups = config["head_dim"], config["o_groups"]
        self.window = config["sliding_window"]
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.streams = config.get("hc_mult", 4)
        self.sinkhorn = config.get("hc_sinkhorn_iters", 20)
        self.hc_eps = config.get("hc_eps", 1e-6)
        self.lagged = config.get("hc_lagged", self.is_v41)
        self.q_head_norm = config.get("q_head_norm", not self.is_v41)
        self.quantized = config.get("kv_quantized", False)
        self.index_heads, self.index_dim = config["index_n_heads"], config["index_head_dim"]
        self.index_topk = config["index_topk"]
        self.top_k = config["num_experts_per_tok"]
        self.clamp = config.get("swiglu_limit", 10.0)
        self.scale = config.get("routed_scaling_factor", 1.5)
        self.image_id: int | None = config.get("image_token_id")
        self.main, self.compress = self._rotations()
        self.roles = [self._role(layer) for layer in range(self.num_layers)]

    def with_experts(self, top_k: int) -> Shape:
        """The same with another number of experts a token, as draft stages have."""
        return Shape({**self.config, "num_experts_per_tok": top_k})

    def _rotations(self) -> tuple[Rotation, Rotation]:
        config = self.config
        dim = config.get("qk_rope_head_dim")
        nested = config.get("rope_parameters") or {}
        if dim is None:
            dim = int(self.dim * nested["main"]["partial_rotary_factor"])
        yarn = nested.get("compress") or nested or config.get("rope_scaling") or {}
        main_theta = nested.get("main", {}).get("rope_theta", config.get("rope_theta", 10000.0))
        theta = yarn.get("rope_theta", config.get("compress_rope_theta", 160000.0))
        if "compress" not in nested:
            theta = config.get("compress_rope_theta", 160000.0)
        if "factor" not in yarn:
            return Rotation(main_theta, dim), Rotation(theta, dim)
        compress = Rotation(
            theta,
            dim,
            float(yarn["factor"]),
            yarn["original_max_position_embeddings"],
            float(yarn.get("beta_fast", 32)),
            float(yarn.get("beta_slow", 1)),
        )
        return Rotation(main_theta, dim), compress

    def _role(self, layer: int) -> Role:
        return self._v41_role(layer) if self.is_v41 else self._v4_role(layer)

    def _v4_role(self, layer: int) -> Role:
        config = self.config
        if "layer_types" in config:
            nominal = _RATIO_OF_TYPE[config["layer_types"][layer]]
        else:
            nominal = config["compress_ratios"][layer]
        kind = {0: "window", 4: "csa", 128: "hca"}[nominal]
        rates = config.get("compress_rates") or {}
        names = {4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
        ratio = rates.get(names.get(nominal, ""), nominal)
        if "mlp_layer_types" in config:
            hashed = config["mlp_layer_types"][layer].startswith("hash")
        else:
            hashed = layer < config.get("num_hash_layers", 0)
        chosen_by = layer if kind == "csa" else None
        return Role(ratio, kind, layer, chosen_by, False, hashed, False)

    def _v41_role(self, layer: int) -> Role:
        config, ratios = self.config, self.config["compress_ratios"]
        ratio = ratios[layer]
        late = config.get("late_start_layer")
        is_late = late is not None and layer >= late
        has_engram = layer in config.get("engram_layers", ())

        def nearest(key: str) -> int:
            return max(s for s in config[key] if s <= layer and ratios[s] == ratio)

        if ratio == 0:
            return Role(0, "window", layer, None, is_late, False, has_engram)
        source, chosen_by = nearest("kv_source_layers"), nearest("index_source_layers")
        return Role(ratio, "latent", source, chosen_by, is_late, False, has_engram)
