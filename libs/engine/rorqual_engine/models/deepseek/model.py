"""DeepSeek V4 and V4.1 over pages and window slots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from rorqual_policy.expert_placement import Cards
from torch.nn import functional

from rorqual_engine.batch import Batch, SequenceChunk, lay_out
from rorqual_engine.errors import BadChunk
from rorqual_engine.kv import LAYOUT_VERSION, PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.dspark import DsparkModule
from rorqual_engine.models.deepseek.engram import EngramGrams
from rorqual_engine.models.deepseek.head import FinalHead
from rorqual_engine.models.deepseek.indexer import Selection
from rorqual_engine.models.deepseek.late import gather, late_spans
from rorqual_engine.models.deepseek.layer import Layer, Streams
from rorqual_engine.models.deepseek.layout import kv_layout
from rorqual_engine.models.deepseek.mtp import MtpModule
from rorqual_engine.models.deepseek.rope import RopeTable
from rorqual_engine.models.deepseek.state import KvViews, load_window, save_window
from rorqual_engine.models.deepseek.step import Rows, remember, rows_of
from rorqual_engine.models.device_kernels import kernels_for
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler, greedy
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.weights import Weights
from rorqual_engine.parallel.load import LayerLoad

STATE_VERSION = 2
"""Changes whenever the meaning of a slot's or a page's bytes changes."""


class DeepseekModel(CausalModel):
    """Both families; the configuration says which parts exist."""

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
        self.config = DeepseekConfig.from_hf(config)
        if not options.drafts:
            self.config = replace(self.config, dspark=None)
        self.device, self.dtype = device, dtype
        self.vocab_size = self.config.vocab_size
        self.max_context_tokens = self.config.max_context_tokens
        self.eos_token_ids = self.config.eos_token_ids
        self.kv_layout = kv_layout(self.config, dtype)
        self.fingerprint = _fingerprint(content_id, dtype, self.config)
        found = DeepseekWeights(
            weights.model_dir,
            device,
            dtype,
            keeps_quantized=options.keeps_quantized,
            kernels=kernels_for(device, options.kernels),
        )
        self._load(found, options)
        self.on_layer: Callable[[int, Streams], None] | None = None
        """Called with every layer's number and the streams behind it; for taps and tests."""
        self._views: WeakKeyDictionary[PagedKvCache, KvViews] = WeakKeyDictionary()

    def _load(self, weights: DeepseekWeights, options: LoadOptions) -> None:
        config, device = self.config, self.device
        self._embedding = weights.get("embed.weight", (self.vocab_size, config.hidden))
        main = RopeTable(config.rope_main, config.rope_dim, device)
        compress = RopeTable(config.rope_compress, config.rope_dim, device)
        self._layers = [
            Layer(weights, plan, config, main if plan.kind == "window" else compress, options.group)
            for plan in config.layers
        ]
        self._has_group = options.group is not None
        self._head = FinalHead(weights, config)
        self.mtp: MtpModule | None = None
        """V4's draft, where it was asked for and the checkpoint has it."""
        if options.drafts and config.family == "v4" and MtpModule.is_in(weights, config):
            self.mtp = MtpModule(weights, config, self._embedding, self._head.output)
        self.dspark: DsparkModule | None = None
        """A draft of a block of tokens, where it was asked for and the checkpoint has it."""
        if config.dspark is not None:
            parts = self._embedding, self._head.output, main
            self.dspark = DsparkModule(weights, config, *parts)
            self.num_drafts = config.dspark.block
        self._grams: EngramGrams | None = None
        if config.engram is not None:
            self._grams = EngramGrams(weights, config)
            self.num_previous_ids = config.engram.max_ngram - 1

    @torch.no_grad()
    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        """In a group every rank calls this as often as the others, if need be without chunks; also
        a rank whose chunks are refused has taken part then."""
        if self._has_group and not chunks:
            return self._take_part()
        try:
            batch, rows = self._lay_out(chunks, cache)
        except BadChunk:
            self._take_part()
            raise
        streams, wanted = self._run(chunks, batch, rows, self._views_of(cache))
        if not len(wanted):
            return streams.values.new_empty((0, self.vocab_size), dtype=torch.float32)
        last = streams.of(wanted)
        return self._head(last.values, last.pre)

    def _lay_out(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> tuple[Batch, Rows]:
        """Raises: BadChunk."""
        if cache.layout != self.kv_layout:
            raise BadChunk("the cache was made for another model")
        batch = lay_out(
            chunks, cache, vocab_size=self.vocab_size, max_context_tokens=self.max_context_tokens
        )
        rows = rows_of(
            chunks,
            batch,
            self.device,
            self.config.image_token_id,
            window_slots=cache.num_windows,
            hidden=self.config.hidden,
        )
        if self._grams is not None:
            rows = replace(rows, grams=self._grams.of(self._views_of(cache).ids, rows))
        return batch, rows

    def _take_part(self, first_layer: int = 0) -> torch.Tensor:
        """Runs what other ranks send to the experts here, with no rows of its own."""
        nobody = self._embedding[:0]
        for layer in self._layers[first_layer:]:
            layer.moe.take_part(nobody)
        return nobody.new_empty((0, self.vocab_size), dtype=torch.float32)

    def layer_loads(self) -> list[LayerLoad]:
        """What every layer's experts were asked for from here since the start; on a GPU this waits
        for what it does."""
        return [layer.moe.load_so_far() for layer in self._layers]

    def expert_tables(self) -> list[Cards]:
        """By layer, which rank holds which experts; () without other ranks."""
        return [layer.moe.table for layer in self._layers]

    def move_experts(self, layer: int, table: Cards) -> None:
        """See `RemoteExperts.move`."""
        self._layers[layer].moe.move(table)

    def _run(
        self, chunks: Sequence[SequenceChunk], batch: Batch, rows: Rows, views: KvViews
    ) -> tuple[Streams, torch.Tensor]:
        """The streams of the last layer's rows, and which of them are wanted."""
        streams = self._embed(chunks, rows)
        remember(views.ids, rows, rows.token_ids)
        wanted = torch.from_numpy(batch.logits_rows).to(self.device)
        first_late = self.config.num_encoder_layers
        streams = self._through(self._layers[:first_late], streams, rows, views)
        if self.config.late_start is None:
            return streams, wanted
        remember(views.streams, rows, streams.values)
        remember(views.weights, rows, streams.pre)
        spans = late_spans(chunks, rows, self.config.window)
        late = self._layers[first_late:]
        if spans is None:
            return self._through(late, streams, rows, views), wanted
        late[0].compress(streams, rows, views)
        image_id = -1 if self.config.image_token_id is None else self.config.image_token_id
        late_rows, streams = gather(spans, streams, rows, views, image_id)
        if spans:
            streams = self._through(late, streams, late_rows, views, is_compressed=True)
        else:
            self._take_part(first_late)
        wanted_late = [row for span in spans for row in span.wanted]
        return streams, torch.tensor(wanted_late, dtype=torch.int64, device=self.device)

    def _embed(self, chunks: Sequence[SequenceChunk], rows: Rows) -> Streams:
        embedded = functional.embedding(rows.token_ids, self._embedding)
        for chunk, given in zip(rows.chunks, chunks, strict=True):
            if given.embeddings is not None:
                places = torch.from_numpy(given.embeddings.rows).to(self.device) + chunk.first
                embedded[places] = given.embeddings.values.to(embedded)
        n = self.config.streams.num_streams
        pre = torch.zeros((len(embedded), n), device=self.device)
        pre[:, 0] = 1
        return Streams(embedded[:, None, :].repeat(1, n, 1), pre)

    def _through(
        self, layers: Sequence[Layer], streams: Streams, rows: Rows, views: KvViews,
        *, is_compressed: bool = False,
    ) -> Streams:  # fmt: skip
        """is_compressed: the first of the layers has written these rows' entries already."""
        selections: dict[int, Selection] = {}
        taps = None if self.dspark is None else self.dspark.taps(rows)
        for layer in layers:
            if taps is not None:
                taps.see(layer.plan.index, streams.values)
            streams = layer(streams, rows, views, selections, is_compressed=is_compressed)
            is_compressed = False
            if self.on_layer is not None:
                self.on_layer(layer.plan.index, streams)
        if self.dspark is not None and taps is not None and layers:
            taps.see(layers[-1].plan.index + 1, streams.values)
            self.dspark.keep(taps, views)
        return streams

    def draft(
        self, anchors: Sequence[Anchor], cache: PagedKvCache, sampler: Sampler = greedy
    ) -> Drafts:
        assert self.dspark is not None
        return self.dspark.draft(anchors, self._views_of(cache), sampler)

    def num_replayed(self, num_stored: int) -> int:
        if self.config.family == "v4":
            return num_stored  # its open compressions can't be rebuilt from a window of rows
        return min(num_stored, self.config.window)

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        return save_window(cache, window, num_tokens, self.config, self.dtype)

    def load_window(
        self, cache: PagedKvCache, window: int, num_tokens: int, snapshot: torch.Tensor
    ) -> None:
        load_window(cache, window, num_tokens, snapshot, self.config, self.dtype)

    def _views_of(self, cache: PagedKvCache) -> KvViews:
        views = self._views.get(cache)
        if views is None:
            views = self._views[cache] = KvViews(cache, self.config, self.dtype)
        return views


def _fingerprint(content_id: str, dtype: torch.dtype, config: DeepseekConfig) -> str:
    text = (
        f"deepseek|{content_id}|{dtype}|layout={LAYOUT_VERSION}.{STATE_VERSION}"
        f"|quantized={config.kv_quantized}|drafts={config.dspark is not None}"
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
