"""Engram: what follows what, looked up by hashes of the last tokens and written to the streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tests.support.deepseek_reference.rotation import rms
from tests.support.deepseek_reference.shape import Shape
from tests.support.deepseek_reference.tensors import Tensors


class EngramReference:
    """token_map: compressed id of every token id.

    Multipliers of layer l are the first draws of numpy's default generator seeded 10007 l: odd, and
    small enough that no product leaves 63 bits. Prime sizes are never used twice in a model.
    """

    def __init__(self, shape: Shape, token_map: Sequence[int]) -> None:
        config = shape.config["engram_config"]
        self._shape, self._map = shape, list(token_map)
        self._n, self._heads = config["max_ngram"], config["num_heads"]
        self._pad = self._map[config.get("pad_id", 0)]
        self._primes, used = {}, set[int]()
        for layer in sorted(shape.config["engram_layers"]):
            self._primes[layer] = [
                self._next_primes(config["table_rows"], used) for _ in range(self._n - 1)
            ]
        bound = max(1, (2**63 - 1) // config["vocab_size"] // 2)
        self._multipliers = {
            layer: [
                2 * int(v) + 1
                for v in np.random.default_rng(10007 * layer).integers(
                    0, bound, self._n, dtype=np.int64
                )
            ]
            for layer in self._primes
        }

    def _next_primes(self, start: int, used: set[int]) -> list[int]:
        found: list[int] = []
        candidate = start
        while len(found) < self._heads:
            is_prime = candidate > 1 and all(candidate % d for d in range(2, candidate))
            if is_prime and candidate not in used:
                found.append(candidate)
                used.add(candidate)
            candidate += 1
        return found

    def num_rows(self, layer: int) -> int:
        """Rows of a layer's table."""
        return sum(sum(primes) for primes in self._primes[layer])

    def rows(self, layer: int, ids: Sequence[int], t: int) -> list[int]:
        """The table's rows for position t: 2-grams first, each with all its heads."""
        found, offset, rolling, is_cut = [], 0, 0, False
        for back, multiplier in enumerate(self._multipliers[layer]):
            is_cut = is_cut or t - back < 0 or ids[t - back] == self._shape.image_id
            value = self._pad if is_cut else self._map[ids[t - back]]
            rolling ^= value * multiplier
            if back > 0:
                for prime in self._primes[layer][back - 1]:
                    found.append(offset + rolling % prime)
                    offset += prime
        return found

    def apply(
        self, residual: torch.Tensor, ids: Sequence[int], layer: int, tensors: Tensors
    ) -> torch.Tensor:
        """Streams [T, n, D] with the memory of every row added, but for rows of images."""
        shape, eps = self._shape, self._shape.eps
        rows = torch.tensor([self.rows(layer, ids, t) for t in range(len(ids))])
        found = tensors["embed.weight"][rows].flatten(1)
        parts = (found @ tensors["wkv.weight"].T).unflatten(1, (-1, shape.hidden))
        keys, value = parts[:, :-1], parts[:, -1:]
        weight = tensors["q_weight"] * tensors["k_weight"]
        dot = (rms(residual, eps) * weight * rms(keys, eps)).sum(-1) * shape.hidden**-0.5
        gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
        is_text = torch.tensor([token != shape.image_id for token in ids])
        return residual + torch.where(is_text, 1.0, 0.0).view(-1, 1, 1).to(residual) * (
            gate.unsqueeze(-1) * value
        )
