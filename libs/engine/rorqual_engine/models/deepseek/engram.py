"""Engram: what the last tokens are, hashed, brings rows of a table that add to the streams.

A row's n-grams end with its own token. Tokens count by the class of their text (vocabulary.py);
before a sequence's start, and at or behind an image, there is the padding class. Table rows are
read from the mapped file, so a table takes no memory of its own.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from rorqual_engine.errors import BadChunk, CorruptModel
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig, EngramConfig
from rorqual_engine.models.deepseek.step import ChunkRows, Rows
from rorqual_engine.models.deepseek.vocabulary import token_classes
from rorqual_engine.ref.precision import widened

_SEED_STEP = 10007
_NOTHING = -1


class Hashing:
    """Table rows of n-grams, for one Engram layer."""

    def __init__(self, multipliers: list[int], primes: list[list[int]]) -> None:
        """primes: for every n from 2 on, one for each head."""
        self._multipliers, self._primes = multipliers, primes
        sizes = [size for group in primes for size in group]
        self.num_rows = sum(sizes)
        self._moduli = [torch.tensor(group) for group in primes]
        self._offsets = torch.tensor([0, *accumulate(sizes[:-1])])

    def rows(self, grams: torch.Tensor) -> torch.Tensor:
        """grams: int64 [T, n] classes, the row's own first. Returns int64 [T, (n - 1) * heads]."""
        rolling = grams[:, :1] * self._multipliers[0]
        found = []
        for back, moduli in enumerate(self._moduli, start=1):
            rolling = rolling ^ (grams[:, back : back + 1] * self._multipliers[back])
            found.append(rolling % moduli)
        return torch.cat(found, dim=1) + self._offsets


def hashings(config: EngramConfig) -> dict[int, Hashing]:
    """By layer. Odd multipliers so small that no product leaves 63 bits; primes from table_rows on,
    none used twice in a model."""
    bound = max(1, (2**63 - 1) // config.vocab_size // 2)
    used: set[int] = set()
    result = {}
    for layer in sorted(config.layers):
        draws = np.random.default_rng(_SEED_STEP * layer).integers(
            0, bound, config.max_ngram, dtype=np.int64
        )
        primes = [_next_primes(config, used) for _ in range(config.max_ngram - 1)]
        result[layer] = Hashing([2 * int(draw) + 1 for draw in draws], primes)
    return result


def _next_primes(config: EngramConfig, used: set[int]) -> list[int]:
    found: list[int] = []
    candidate = config.table_rows
    while len(found) < config.num_heads:
        if candidate not in used and _is_prime(candidate):
            found.append(candidate)
            used.add(candidate)
        candidate += 1
    return found


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    divisors = np.arange(2, int(number**0.5) + 2)
    return bool((number % divisors[divisors < number]).all())


class EngramGrams:
    """The n-grams of a pass's rows, shared by all Engram layers."""

    def __init__(self, weights: DeepseekWeights, config: DeepseekConfig) -> None:
        """Raises: CorruptModel."""
        assert config.engram is not None
        self._n, self._image_id = config.engram.max_ngram, config.image_token_id
        self._classes = token_classes(weights, config.vocab_size)
        if int(self._classes.max()) >= config.engram.vocab_size:
            found = int(self._classes.max()) + 1
            raise CorruptModel(
                weights.model_dir,
                f"the vocabulary has {found} classes, engram_config.vocab_size says fewer",
            )
        if config.engram.pad_id >= config.vocab_size:
            raise CorruptModel("config.json", "engram_config.pad_id is no token")
        self._pad = self._classes[config.engram.pad_id]

    def of(self, ids: torch.Tensor, rows: Rows) -> torch.Tensor:
        """int64 [T, n] on the CPU; also puts what a replay is told of earlier ids into the rings.

        ids: rings of the slots [slots, ring], as they were before these rows. Raises: BadChunk.
        """
        token_ids = rows.token_ids.cpu()
        parts = []
        for chunk in rows.chunks:
            before = self._before(ids[chunk.slot], chunk)
            parts.append(torch.cat([before, token_ids[chunk.rows]]).unfold(0, self._n, 1).flip(1))
        tokens = torch.cat(parts)
        ends = tokens == _NOTHING
        if self._image_id is not None:
            ends |= tokens == self._image_id
        is_cut = ends.cummax(dim=1).values
        return torch.where(is_cut, self._pad, self._classes[tokens.clamp_min(0)])

    def _before(self, ring: torch.Tensor, chunk: ChunkRows) -> torch.Tensor:
        """The n - 1 ids in front of a chunk."""
        count = self._n - 1
        if chunk.start == chunk.floor and chunk.start > 0:
            given = chunk.previous_ids
            if len(given) < min(count, chunk.start):
                raise BadChunk(
                    f"a replay from {chunk.start} on needs the {count} ids before it; it has "
                    f"{len(given)}"
                )
            last = torch.tensor(given[-count:], dtype=torch.int64, device=ring.device)
            places = torch.arange(chunk.start - len(last), chunk.start, device=ring.device)
            ring[places % len(ring)] = last
        positions = torch.arange(chunk.start - count, chunk.start, device=ring.device)
        found = ring[positions % len(ring)]
        return torch.where(positions < 0, _NOTHING, found).cpu()


class Engram:
    """The memory of one layer."""

    def __init__(self, weights: DeepseekWeights, layer: int, config: DeepseekConfig) -> None:
        """Raises: CorruptModel."""
        assert config.engram is not None
        engram, n, hidden = config.engram, config.streams.num_streams, config.hidden
        prefix = f"layers.{layer}.engram"
        self._hashing = hashings(engram)[layer]
        shape = (self._hashing.num_rows, engram.head_dim)
        self._table = weights.raw(f"{prefix}.embed.weight", shape)
        columns = (engram.max_ngram - 1) * engram.num_heads * engram.head_dim
        weights.check_shape(f"{prefix}.wkv.weight", ((n + 1) * hidden, columns))
        self._wkv = weights.linear(f"{prefix}.wkv.weight")
        q_weight, k_weight = (
            weights.vector(f"{prefix}.{name}", (n, hidden)) for name in ("q_weight", "k_weight")
        )
        self._weight = q_weight * k_weight
        self._num_streams, self._eps = n, config.eps

    def __call__(
        self, streams: torch.Tensor, grams: torch.Tensor, is_image: torch.Tensor | None
    ) -> torch.Tensor:
        """Streams [T, n, D] with what is remembered added; rows of images stay as they are.

        grams: [T, max_ngram] of EngramGrams; is_image: bool [T], None = no row is.
        """
        found = self._table[self._hashing.rows(grams)].flatten(1)
        both = self._wkv(found.to(device=streams.device, dtype=streams.dtype)).float()
        both = both.view(len(streams), self._num_streams + 1, -1)
        keys, value = both[:, :-1], both[:, -1:]
        wide = streams.float()
        gate = self._gate(wide, keys)
        added = (wide + gate.unsqueeze(-1) * value).to(streams.dtype)
        return added if is_image is None else torch.where(is_image[:, None, None], streams, added)

    def _gate(self, streams: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """[T, n] in 0..1; sums in fp64, so that a row's are its own."""
        dot = widened(streams * self._weight * keys).sum(-1)
        sizes = (widened(streams).square().mean(-1) + self._eps) * (
            widened(keys).square().mean(-1) + self._eps
        )
        dot = dot * torch.rsqrt(sizes) * streams.shape[-1] ** -0.5
        return torch.sigmoid(dot.sign() * dot.abs().clamp_min(1e-6).sqrt()).float()
