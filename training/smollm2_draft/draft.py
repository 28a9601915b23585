"""The draft module of `rorqual_engine.models.llama_draft` with gradients: blocks of guesses behind
every token of answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rorqual_engine.models.llama_draft import LlamaDraftConfig
from rorqual_engine.models.llama_layer import LlamaConfig
from rorqual_engine.rope import build_table
from torch.nn import functional

Weights = dict[str, torch.Tensor]
HIDDEN = -1e30


@dataclass(frozen=True)
class Blocks:
    """A block of guesses behind each of N tokens one after the other of one sequence."""

    first: int
    """Position of the first of these tokens; the others follow it"""
    token_ids: torch.Tensor
    """int64 [N]"""
    taps: torch.Tensor
    """[T, taps * D], of the sequence's rows up to the last of these tokens, which is not read"""


@dataclass(frozen=True)
class Guesses:
    """N blocks of g guesses, each told of the right token before it."""

    logits: torch.Tensor
    """fp32 [N, g, V], of the tokens that may be guessed"""
    confidences: torch.Tensor
    """fp32 [N, g], before temperature and sigmoid"""


class DraftModel:
    """Formulas of one configuration; the weights come with every call."""

    def __init__(self, model: LlamaConfig, config: LlamaDraftConfig, max_positions: int) -> None:
        self._model, self.config = model, config
        cpu = torch.device("cpu")
        self._rope = build_table(model.rope, max_positions, torch.float32, cpu)

    def __call__(self, weights: Weights, given: list[Blocks], previous: torch.Tensor) -> Guesses:
        """weights: matrices in the dtype of products, with the model's embedding and the rows of
        its head that may be guessed. previous: int64 [N, g] of all sequences, the token before each
        guess; the first is the anchor."""
        config, eps = self.config, self._model.eps
        last, dtype = f"mtp.{config.num_layers - 1}", weights["embed"].dtype
        main = functional.linear(
            torch.cat([b.taps for b in given]), weights["mtp.0.main_proj.weight"]
        )
        context = _norm(main.float(), weights["mtp.0.main_norm.weight"], eps).to(dtype)
        hidden = functional.embedding(previous[:, 0], weights["embed"]).float()[:, None]
        hidden = (hidden + weights["mtp.0.block_embed.weight"].float()).flatten(0, 1)
        for number in range(config.num_layers):
            own = {n.removeprefix(f"mtp.{number}."): w for n, w in weights.items()}
            hidden = hidden + self._attend(own, hidden, context, given)
            hidden = hidden + self._mlp(own, hidden)
        normed = _norm(hidden, weights[f"{last}.norm.weight"], eps).to(dtype)
        logits = functional.linear(normed, weights["head"])
        told = functional.embedding(previous.flatten(), weights["embed"])
        told = functional.linear(told, weights[f"{last}.markov_head.embed_proj.weight"])
        bias = functional.linear(told, weights[f"{last}.markov_head.head.weight"])
        both = torch.cat([hidden.detach(), told.float().detach()], dim=-1)
        confidences = both @ weights[f"{last}.confidence_head.proj.weight"][0].float()
        shape = previous.shape
        return Guesses((logits.float() + bias.float()).view(*shape, -1), confidences.view(shape))

    def _mlp(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        dtype = weights["mlp.down_proj.weight"].dtype
        normed = _norm(hidden, weights["post_attention_layernorm.weight"], self._model.eps)
        gate, up = (
            functional.linear(normed.to(dtype), weights[f"mlp.{name}.weight"])
            for name in ("gate_proj", "up_proj")
        )
        return functional.linear(
            functional.silu(gate) * up, weights["mlp.down_proj.weight"]
        ).float()

    def _attend(
        self, weights: Weights, hidden: torch.Tensor, context: torch.Tensor, given: list[Blocks]
    ) -> torch.Tensor:
        """hidden: fp32 [N * g, D] of all sequences; context: [sum of T, D]. Returns as hidden."""
        block, dtype = self.config.block, context.dtype
        normed = _norm(hidden, weights["input_layernorm.weight"], self._model.eps).to(dtype)
        query, key, value = (
            functional.linear(normed, weights[f"self_attn.{name}.weight"])
            for name in ("q_proj", "k_proj", "v_proj")
        )
        seen_key, seen_value = (
            functional.linear(context, weights[f"self_attn.{name}.weight"])
            for name in ("k_proj", "v_proj")
        )
        outputs, row, at = [], 0, 0
        for blocks in given:
            rows = slice(row, row + len(blocks.token_ids) * block)
            of = slice(at, at + len(blocks.taps))
            own = query[rows], key[rows], value[rows]
            outputs.append(self._attend_sequence(blocks, own, seen_key[of], seen_value[of]))
            row, at = rows.stop, of.stop
        output = torch.cat(outputs).to(dtype)
        return functional.linear(output, weights["self_attn.o_proj.weight"]).float()

    def _attend_sequence(
        self,
        blocks: Blocks,
        own: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        seen_key: torch.Tensor,
        seen_value: torch.Tensor,
    ) -> torch.Tensor:
        """own: query, key and value of N * g rows; seen: of T rows. Returns [N * g, heads * d]."""
        shape, block = self._model.shape, self.config.block
        count, kv_heads, dim = len(blocks.token_ids), shape.num_kv_heads, shape.head_dim
        places = torch.arange(block)
        positions = blocks.first + torch.arange(count)[:, None] + places
        query = self._turned(own[0].view(count * block, -1, dim), positions.flatten())
        key = self._turned(own[1].view(count * block, -1, dim), positions.flatten())
        context = torch.arange(len(seen_key))
        seen = self._turned(seen_key.view(len(seen_key), -1, dim), context)
        query = query.view(count, block, kv_heads, -1, dim)
        key, value = (v.view(count, block, kv_heads, dim) for v in (key, own[2]))
        far = torch.einsum("nghqd,thd->hqngt", query, seen).float()
        is_far = context < positions[:, :1]  # [N, T]: a block sees what stands before its token
        far = far.masked_fill(~is_far[:, None, :], HIDDEN)
        near = torch.einsum("nghqd,nkhd->hqngk", query, key).float()
        near = near.masked_fill(places[:, None] < places, HIDDEN)
        shares = (torch.cat([far, near], dim=-1) * dim**-0.5).softmax(-1).to(seen.dtype)
        far, near = shares[..., : len(seen)], shares[..., len(seen) :]
        output = torch.einsum("hqngt,thd->nghqd", far, seen_value.view(len(seen), -1, dim))
        output = output + torch.einsum("hqngk,nkhd->nghqd", near, value)
        return output.reshape(count * block, -1)

    def _turned(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """RoPE on halves; rows: [R, heads, d]."""
        cos, sin = self._rope.cos[positions][:, None], self._rope.sin[positions][:, None]
        first, second = rows.float().chunk(2, dim=-1)
        both = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(both, dim=-1).to(rows.dtype)


def _norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.rms_norm(rows, rows.shape[-1:], weight.float(), eps)
