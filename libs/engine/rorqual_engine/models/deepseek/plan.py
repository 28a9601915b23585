"""What every layer does: its compression, where it reads from, its router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.fields import Fields

LayerKind = Literal["window", "csa", "hca", "latent"]
_KIND_OF_TYPE: dict[str, LayerKind] = {
    "sliding_attention": "window",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}


@dataclass(frozen=True)
class LayerPlan:
    index: int
    ratio: int
    """Tokens of one compressed entry; 0 = window only."""
    kind: LayerKind
    kv_source: int | None
    """Layer whose compressed entries this one reads; itself for an owner."""
    index_source: int | None
    """Layer whose selection of entries this one uses; None = every visible entry."""
    candidate_source: int | None
    """Layer whose candidate blocks bound this index source's selection; itself: it makes them."""
    is_late: bool
    router: Literal["hash", "topk"]
    has_engram: bool

    @property
    def owns_entries(self) -> bool:
        return self.kv_source == self.index

    @property
    def owns_index_keys(self) -> bool:
        """Owners of entries own the keys to choose among them, where anything is chosen."""
        return self.owns_entries and self.kind in ("csa", "latent")

    @property
    def selects(self) -> bool:
        return self.index_source == self.index


def plan_v4(fields: Fields) -> tuple[LayerPlan, ...]:
    """Every compressing layer is its own source. Raises: CorruptModel."""
    num_layers = fields.whole("num_hidden_layers")
    rates = _rates(fields)
    kinds = _kinds(fields, num_layers, rates)
    hashed = _hashed(fields, num_layers)
    return tuple(
        LayerPlan(
            index=i,
            ratio=rates.get(kind, 0),
            kind=kind,
            kv_source=None if kind == "window" else i,
            index_source=i if kind == "csa" else None,
            candidate_source=None,
            is_late=False,
            router="hash" if hashed[i] else "topk",
            has_engram=False,
        )
        for i, kind in enumerate(kinds)
    )


def plan_v41(
    fields: Fields, engram_layers: Sequence[int]
) -> tuple[tuple[LayerPlan, ...], int | None]:
    """The layers and the first late one. Raises: CorruptModel, UnsupportedModel."""
    num_layers = fields.whole("num_hidden_layers")
    ratios = _ratios(fields, num_layers)
    kv_sources = fields.layer_ids("kv_source_layers", num_layers)
    index_sources = fields.layer_ids("index_source_layers", num_layers)
    candidate = fields.optional_whole("candidate_source_layer")
    late_start = fields.optional_whole("late_start_layer")
    fields.check(set(kv_sources) <= set(index_sources), "kv_source_layers", "must choose as well")
    fields.check(all(ratios[i] for i in index_sources), "index_source_layers", "has a ratio of 0")
    if late_start is not None:
        _check_late(fields, late_start, ratios, kv_sources, candidate, engram_layers)
    layers = tuple(
        LayerPlan(
            index=i,
            ratio=ratio,
            kind="latent" if ratio else "window",
            kv_source=_nearest(fields, "kv_source_layers", kv_sources, i, ratios),
            index_source=_nearest(fields, "index_source_layers", index_sources, i, ratios),
            candidate_source=_candidate(i, candidate, index_sources, ratios),
            is_late=late_start is not None and i >= late_start,
            router="topk",
            has_engram=i in engram_layers,
        )
        for i, ratio in enumerate(ratios)
    )
    return layers, late_start


def _rates(fields: Fields) -> dict[str, int]:
    """Ratio of each kind of V4 layer."""
    given = Fields(fields.optional_group("compress_rates") or {}, f"{fields.path}compress_rates.")
    rates = {
        "csa": given.whole("compressed_sparse_attention", 4),
        "hca": given.whole("heavily_compressed_attention", PAGE_TOKENS),
    }
    for ratio in rates.values():
        fields.check(PAGE_TOKENS % ratio == 0, "compress_rates", "must divide a page of 128 tokens")
    return rates


def _kinds(fields: Fields, num_layers: int, rates: dict[str, int]) -> list[LayerKind]:
    types = fields.words("layer_types")
    if types is not None:
        fields.check(len(types) >= num_layers, "layer_types", f"names fewer than {num_layers}")
        fields.check(set(types) <= set(_KIND_OF_TYPE), "layer_types", f"knows {[*_KIND_OF_TYPE]}")
        return [_KIND_OF_TYPE[name] for name in types[:num_layers]]
    by_ratio: dict[int, LayerKind] = {0: "window", rates["csa"]: "csa", rates["hca"]: "hca"}
    ratios = fields.wholes("compress_ratios")
    fields.check(len(ratios) >= num_layers, "compress_ratios", f"names fewer than {num_layers}")
    fields.check(set(ratios) <= set(by_ratio), "compress_ratios", f"may be {sorted(by_ratio)}")
    return [by_ratio[ratio] for ratio in ratios[:num_layers]]


def _hashed(fields: Fields, num_layers: int) -> list[bool]:
    types = fields.words("mlp_layer_types")
    if types is None:
        num_hashed = fields.whole("num_hash_layers", 3, least=0)
        return [i < num_hashed for i in range(num_layers)]
    fields.check(len(types) >= num_layers, "mlp_layer_types", f"names fewer than {num_layers}")
    fields.check(set(types) <= {"hash_moe", "moe"}, "mlp_layer_types", "may be hash_moe or moe")
    return [name == "hash_moe" for name in types[:num_layers]]


def _ratios(fields: Fields, num_layers: int) -> list[int]:
    """One a layer; entries behind the last layer belong to draft stages."""
    ratios = fields.wholes("compress_ratios")
    fields.check(len(ratios) >= num_layers, "compress_ratios", f"names fewer than {num_layers}")
    fields.check(set(ratios) <= {0, 1, 2}, "compress_ratios", "may be 0, 1 or 2")
    return ratios[:num_layers]


def _nearest(
    fields: Fields, key: str, sources: Sequence[int], layer: int, ratios: Sequence[int]
) -> int | None:
    """The last source up to this layer that has its ratio."""
    if not ratios[layer]:
        return None
    fit = [s for s in sources if s <= layer and ratios[s] == ratios[layer]]
    fields.check(bool(fit), key, f"has none of ratio {ratios[layer]} up to layer {layer}")
    return fit[-1]


def _candidate(
    layer: int, candidate: int | None, index_sources: Sequence[int], ratios: Sequence[int]
) -> int | None:
    if candidate is None or layer not in index_sources or layer < candidate:
        return None
    return candidate if ratios[layer] == ratios[candidate] else None


def _check_late(
    fields: Fields,
    late_start: int,
    ratios: Sequence[int],
    kv_sources: Sequence[int],
    candidate: int | None,
    engram_layers: Sequence[int],
) -> None:
    """Late rows may need nothing of a layer before, but its entries, the streams and their ids."""
    last = kv_sources[-1] if kv_sources else None
    if late_start != last:
        raise UnsupportedModel(f"late_start_layer {late_start} is not the last KV source {last}")
    if candidate is not None and candidate > late_start:
        raise UnsupportedModel(f"candidate_source_layer {candidate} lies behind the last KV source")
    if not set(ratios[late_start:]) <= {0, ratios[late_start]}:
        raise UnsupportedModel("late layers may have ratio 0 or that of the last KV source only")
    fields.check(all(i < late_start for i in engram_layers), "engram_layers", "has a late layer")
