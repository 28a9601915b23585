"""Draft modules: DSpark's block of guesses with its Markov head, and V4's single MTP layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.deepseek_reference.attention import (
    attend,
    latent_query,
    window_keys,
    window_mask,
)
from tests.support.deepseek_reference.experts import mixture
from tests.support.deepseek_reference.rotation import rms
from tests.support.deepseek_reference.streams import collapse, head_weights
from tests.support.deepseek_reference.tensors import Tensors
from tests.support.deepseek_reference.text import TextReference, Trace, sublayer_step


@dataclass
class DraftBlock:
    """logits [gamma, V] before the Markov head, hidden [gamma, D] before the final norm."""

    logits: torch.Tensor
    hidden: torch.Tensor


@dataclass
class _BlockRows:
    """ids and positions [gamma] of the block, context [K, D] at the positions `known` [K]."""

    ids: torch.Tensor
    positions: torch.Tensor
    context: torch.Tensor
    known: torch.Tensor


class DraftReference:
    """Stages mtp.0 to mtp.S-1 beside a target, whose embedding and output matrix they share."""

    def __init__(self, target: TextReference) -> None:
        config: dict[str, Any] = target.shape.config["dspark_config"]
        self._target, self._all = target, target.tensors
        self.shape = target.shape.with_experts(
            config.get("num_experts_per_tok", target.shape.top_k)
        )
        self.gamma, self.taps = config["block"], list(config["taps"])
        self._noise, self._num_stages = config["noise_id"], len(self.taps)
        self._last = self._all.at(f"mtp.{self._num_stages - 1}.")

    def context(self, trace: Trace) -> torch.Tensor:
        """h(t) [T, D] of every row of a target's pass."""
        after = 0 if self.shape.is_v41 else 1
        taps = [trace.streams[layer + after].mean(1) for layer in self.taps]
        joined = torch.cat(taps, -1) @ self._all["mtp.0.main_proj.weight"].T
        return rms(joined, self.shape.eps, self._all["mtp.0.main_norm.weight"])

    def block(
        self, context: torch.Tensor, anchor: int, committed: int, valid_from: int = 0
    ) -> DraftBlock:
        """Guesses behind `anchor`, which stands at position `committed`.

        context: h of positions 0 .. committed-1; positions before valid_from are not read.
        """
        known = torch.arange(max(valid_from, committed - self.shape.window, 0), committed)
        ids = torch.tensor([anchor] + [self._noise] * (self.gamma - 1))
        rows = _BlockRows(ids, committed + torch.arange(self.gamma), context[known], known)
        x = self._all["embed.weight"][ids]
        residual = x.unsqueeze(1).expand(-1, self.shape.streams, -1)
        pre = x.new_zeros(len(x), self.shape.streams)
        pre[:, 0] = 1
        for stage in range(self._num_stages):
            residual, pre = self._stage(stage, residual, pre, rows)
        if not self.shape.lagged:
            pre = head_weights(residual, self._last, "", self.shape)
        hidden = collapse(residual, pre)
        return DraftBlock(self._target.logits(hidden, self._last["norm.weight"]), hidden)

    def _stage(
        self, stage: int, residual: torch.Tensor, pre: torch.Tensor, rows: _BlockRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = self._all.at(f"mtp.{stage}.")

        def attention(x: torch.Tensor) -> torch.Tensor:
            return self._attend(x, rows, tensors.at("attn."))

        def experts(x: torch.Tensor) -> torch.Tensor:
            return mixture(x, rows.ids, tensors.at("ffn."), self.shape, hashed=False)[0]

        for name, sublayer in (("attn", attention), ("ffn", experts)):
            residual, pre = sublayer_step(residual, pre, tensors, self.shape, name, sublayer)
        return residual, pre

    def _attend(self, x: torch.Tensor, rows: _BlockRows, attn: Tensors) -> torch.Tensor:
        """Every row of the block sees the same: the context and the whole block."""
        shape = self.shape
        before = window_keys(rows.context, rows.known, attn, shape, shape.main)
        own = window_keys(x, rows.positions, attn, shape, shape.main)
        keys = torch.cat([before, own])
        mask = torch.ones(len(x), len(keys), dtype=torch.bool)
        latent = latent_query(x, attn, shape)
        return attend(latent, rows.positions, keys, mask, attn, shape, shape.main)

    def corrected(self, block: DraftBlock, k: int, previous: int) -> torch.Tensor:
        """Logits [V] of guess k (from 0) once the one before it is known."""
        markov = self._last.at("markov_head.")
        return block.logits[k] + markov["head.weight"] @ markov["embed.weight"][previous]

    def confidence(
        self, block: DraftBlock, k: int, previous: int, temperature: float = 1.0
    ) -> torch.Tensor:
        """Probability that guess k is accepted when all before it are."""
        embedded = self._last["markov_head.embed.weight"][previous]
        joined = torch.cat([block.hidden[k], embedded])
        raw = self._last["confidence_head.proj.weight"].flatten() @ joined
        return torch.sigmoid(raw / temperature)

    def greedy(self, block: DraftBlock, anchor: int) -> list[int]:
        """The most likely guesses from left to right."""
        guesses = [anchor]
        for k in range(self.gamma):
            guesses.append(int(self.corrected(block, k, guesses[-1]).argmax()))
        return guesses[1:]


class MtpReference:
    """V4: one window-only layer that predicts the token after the next one."""

    def __init__(self, target: TextReference) -> None:
        self._target, self.shape = target, target.shape
        self._tensors = target.tensors.at("mtp.0.")

    def __call__(self, trace: Trace, next_ids: Sequence[int]) -> torch.Tensor:
        """Logits [T, V] of every row, each with the token that follows it."""
        shape, tensors = self.shape, self._tensors
        ids = torch.tensor(next_ids, dtype=torch.long)
        embedded = self._target.tensors["embed.weight"][ids]
        embedded = rms(embedded, shape.eps, tensors["enorm.weight"]) @ tensors["e_proj.weight"].T
        main = rms(trace.streams[-1], shape.eps, tensors["hnorm.weight"])
        residual = embedded.unsqueeze(1) + main @ tensors["h_proj.weight"].T
        positions = torch.arange(len(ids))

        def attention(x: torch.Tensor) -> torch.Tensor:
            attn = tensors.at("attn.")
            keys = window_keys(x, positions, attn, shape, shape.main)
            mask = window_mask(len(x), shape.window, 0)
            latent = latent_query(x, attn, shape)
            return attend(latent, positions, keys, mask, attn, shape, shape.main)

        def experts(x: torch.Tensor) -> torch.Tensor:
            return mixture(x, ids, tensors.at("ffn."), shape, hashed=False)[0]

        pre = residual.new_zeros(len(ids), shape.streams)
        for name, sublayer in (("attn", attention), ("ffn", experts)):
            residual, pre = sublayer_step(residual, pre, tensors, shape, name, sublayer)
        weights = head_weights(residual, tensors, "", shape)
        return self._target.logits(collapse(residual, weights), tensors["norm.weight"])
