"""The draft module as it learns: the model frozen, its own answers to guess."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models.llama import LlamaModel
from rorqual_engine.models.llama_draft import LlamaDraftConfig
from rorqual_engine.models.llama_layer import LlamaConfig

from training.optimizer import Optimizer
from training.smollm2_draft.draft import Blocks, DraftModel, Guesses, Weights
from training.smollm2_draft.loss import draft_loss
from training.smollm2_draft.texts import Conversation

_IDS = "token_ids"
_PASS_TEXTS = 2
"""Conversations of one pass: more only take more memory."""


@dataclass
class Measured:
    """Sums over blocks of guesses."""

    loss: float = 0.0
    """Mean of each step, added"""
    num_steps: int = 0
    num_blocks: int = 0
    num_taken: int = 0
    """Guesses in a row that are the text's tokens"""
    num_sure: float = 0.0
    """What the confidences would have num_taken be"""

    def add(self, other: Measured) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def summary(self) -> dict[str, float]:
        blocks = max(1, self.num_blocks)
        return {
            "loss": round(self.loss / max(1, self.num_steps), 4),
            "accepted_length": round(1 + self.num_taken / blocks, 3),
            "expected_length": round(1 + self.num_sure / blocks, 3),
        }


@dataclass(frozen=True)
class _Learned:
    """What is to be guessed of one batch of conversations. N blocks of g guesses."""

    given: list[Blocks]
    previous: torch.Tensor
    """int64 [N, g]"""
    labels: torch.Tensor
    """int64 [N, g]"""
    is_there: torch.Tensor
    """bool [N, g]"""
    last: torch.Tensor
    """[N, g, D]: what the model's head saw where it wrote the labels"""


class DraftLearner:
    """Weights of the draft module, and what changes them."""

    def __init__(
        self,
        model: LlamaModel,
        tables: Mapping[str, torch.Tensor],
        config: LlamaDraftConfig,
        weights: Weights,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """tables: the model's `embed` and `head`, [V, D], which the module shares. state: of the
        optimizer, where this goes on."""
        self._model, self.weights = model, weights
        self._draft = DraftModel(model.config, config, model.max_context_tokens)
        self.token_ids = weights[f"mtp.{config.num_layers - 1}.{_IDS}"].long()
        self._shared = {"embed": tables["embed"], "head": tables["head"][self.token_ids]}
        self._layers = tuple(sorted({*config.taps, model.config.num_layers}))
        learned = {name: value for name, value in weights.items() if not name.endswith(_IDS)}
        self.optimizer = Optimizer(learned, state)
        self._learned = learned

    def grads(self, texts: Sequence[Conversation]) -> tuple[Weights, Measured]:
        """Of one step over these texts, a few at a time."""
        weights = {n: self._for_products(w).requires_grad_() for n, w in self._learned.items()}
        whole, measured = sum(map(_num_blocks, texts)), Measured()
        for first in range(0, len(texts), _PASS_TEXTS):
            learned = self._look(texts[first : first + _PASS_TEXTS])
            guesses = self._draft(weights | self._shared, learned.given, learned.previous)
            loss = draft_loss(guesses, self._wanted(learned), learned.is_there)
            loss = loss * (len(learned.labels) / whole)
            loss.backward()  # type: ignore[no-untyped-call]
            measured.add(self._measured(guesses, learned, float(loss.detach())))
        measured.num_steps = 1
        return {n: w.grad.float() for n, w in weights.items() if w.grad is not None}, measured

    @torch.no_grad()
    def judge(self, texts: Sequence[Conversation]) -> tuple[torch.Tensor, torch.Tensor, Measured]:
        """(confidences before temperature and sigmoid [N, g], guesses taken in a row [N], sums)."""
        weights = {name: self._for_products(w) for name, w in self._learned.items()}
        learned = self._look(texts)
        guesses = self._draft(weights | self._shared, learned.given, learned.previous)
        loss = float(draft_loss(guesses, self._wanted(learned), learned.is_there))
        taken = self._num_taken(guesses, learned)
        return guesses.confidences, taken, self._measured(guesses, learned, loss)

    def _for_products(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy, in the dtype of products."""
        return weight.detach().to(self._shared["embed"].dtype, copy=True)

    def _look(self, texts: Sequence[Conversation]) -> _Learned:
        """The frozen model's pass, and what of it blocks of guesses need."""
        config, width = self._draft.config, self._model.config.hidden
        block, num_taps = config.block, len(config.taps)
        rows = self._seen(texts)
        given, parts = [], []
        for text, seen in zip(texts, rows, strict=True):
            ids = torch.from_numpy(text.token_ids)
            anchors = torch.arange(text.answer_start, len(ids) - 1)
            places = anchors[:, None] + torch.arange(block)
            is_there = places + 1 < len(ids)
            inside = places.clamp_max(len(ids) - 2)
            taps, last = seen[:, : num_taps * width], seen[:, -width:]
            given.append(Blocks(text.answer_start, ids[anchors], taps))
            parts.append((ids[inside], ids[inside + 1], is_there, last[inside]))
        return _Learned(given, *(torch.cat(found) for found in zip(*parts, strict=True)))

    def _seen(self, texts: Sequence[Conversation]) -> list[torch.Tensor]:
        """What the layers see of every text but its last token, [rows, layers * D]."""
        layout = self._model.kv_layout
        counts = [len(text.token_ids) - 1 for text in texts]
        cache = self._model.new_cache(sum(map(layout.num_pages, counts)))
        chunks = []
        for text, count in zip(texts, counts, strict=True):
            pages = cache.allocate(layout.num_pages(count)).pages
            chunks.append(SequenceChunk(text.token_ids[:-1], 0, pages))
        return list(torch.split(self._model.seen(chunks, cache, self._layers), counts))

    def _wanted(self, learned: _Learned) -> torch.Tensor:
        """The model's shares among the tokens that may be guessed."""
        return (learned.last @ self._shared["head"].T).float().softmax(-1)

    def _num_taken(self, guesses: Guesses, learned: _Learned) -> torch.Tensor:
        chosen = self.token_ids[guesses.logits.detach().argmax(-1)]
        return ((chosen == learned.labels) & learned.is_there).cumprod(1).sum(1)

    def _measured(self, guesses: Guesses, learned: _Learned, loss: float) -> Measured:
        sure = torch.sigmoid(guesses.confidences.detach()) * learned.is_there
        taken = int(self._num_taken(guesses, learned).sum())
        return Measured(loss, 1, len(learned.labels), taken, float(sure.cumprod(1).sum()))


def _num_blocks(text: Conversation) -> int:
    return len(text.token_ids) - 1 - text.answer_start


def first_weights(
    model: LlamaConfig, config: LlamaDraftConfig, token_ids: torch.Tensor, norm: torch.Tensor
) -> Weights:
    """Layers add nothing yet; what the head sees is scaled as in the model (norm: its last)."""
    random = torch.Generator().manual_seed(0)
    hidden, shape, last = model.hidden, model.shape, f"mtp.{config.num_layers - 1}"

    def drawn(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn((rows, columns), generator=random)
        return values / math.sqrt(columns)

    found = {
        "mtp.0.main_proj.weight": drawn(hidden, len(config.taps) * hidden),
        "mtp.0.main_norm.weight": torch.ones(hidden),
        "mtp.0.block_embed.weight": 0.02 * drawn(config.block, hidden),
        f"{last}.norm.weight": norm.float().clone(),
        f"{last}.markov_head.embed_proj.weight": 4 * drawn(config.rank, hidden),
        f"{last}.markov_head.head.weight": torch.zeros(config.num_tokens, config.rank),
        f"{last}.confidence_head.proj.weight": torch.zeros(1, hidden + config.rank),
        f"{last}.{_IDS}": token_ids.to(torch.int32),
    }
    for layer in range(config.num_layers):
        found |= {
            f"mtp.{layer}.input_layernorm.weight": torch.ones(hidden),
            f"mtp.{layer}.self_attn.q_proj.weight": drawn(shape.q_dim, hidden),
            f"mtp.{layer}.self_attn.k_proj.weight": drawn(shape.kv_dim, hidden),
            f"mtp.{layer}.self_attn.v_proj.weight": drawn(shape.kv_dim, hidden),
            f"mtp.{layer}.self_attn.o_proj.weight": torch.zeros(hidden, shape.q_dim),
            f"mtp.{layer}.post_attention_layernorm.weight": torch.ones(hidden),
            f"mtp.{layer}.mlp.gate_proj.weight": drawn(model.inner, hidden),
            f"mtp.{layer}.mlp.up_proj.weight": drawn(model.inner, hidden),
            f"mtp.{layer}.mlp.down_proj.weight": torch.zeros(hidden, model.inner),
        }
    return found


def most_written(texts: Iterable[Conversation], num_tokens: int, vocab_size: int) -> torch.Tensor:
    """The tokens that answers have most, int64 [num_tokens], ascending; the lower id first among
    equals."""
    counts = np.zeros(vocab_size, np.int64)
    for text in texts:
        counts += np.bincount(text.token_ids[text.answer_start :], minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")[:num_tokens]
    return torch.from_numpy(np.sort(order))
