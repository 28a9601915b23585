"""Compressed entries of a whole sequence, their index keys, and who may see which."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.support.deepseek_reference.formats import round_entries, round_index
from tests.support.deepseek_reference.rotation import rms, rotate
from tests.support.deepseek_reference.shape import Role, Shape
from tests.support.deepseek_reference.tensors import Tensors


@dataclass
class Entries:
    """Of one owning layer: keys (which are values too) [E, d], index keys [E, dI] or None."""

    keys: torch.Tensor
    index_keys: torch.Tensor | None

    def with_first(self, stored: Entries) -> Entries:
        """The first entries as they were stored; the others as they are."""
        count = len(stored.keys)
        keys = torch.cat([stored.keys, self.keys[count:]])
        if self.index_keys is None or stored.index_keys is None:
            return Entries(keys, None)
        return Entries(keys, torch.cat([stored.index_keys, self.index_keys[count:]]))


def visible(num_rows: int, num_entries: int, ratio: int) -> torch.Tensor:
    """[T, E]: entry w is seen by row t once all its tokens are there, w < floor((t+1)/ratio)."""
    rows, entries = torch.arange(num_rows), torch.arange(num_entries)
    return entries.unsqueeze(0) < ((rows + 1) // ratio).unsqueeze(1)


def make_entries(x: torch.Tensor, tensors: Tensors, role: Role, shape: Shape) -> Entries:
    """From the attention's normed input of every row; an open window at the end gives nothing."""
    starts = torch.arange(len(x) // role.ratio) * role.ratio
    if role.kind == "latent":
        return _latent_entries(x, tensors, role, shape, starts)
    pool = _pool_overlapping if role.kind == "csa" else _pool_windows
    keys = rotate(pool(x, tensors.at("compressor."), role, shape), starts, shape.compress)
    if role.kind == "hca":
        return Entries(keys, None)
    index_keys = pool(x, tensors.at("indexer.compressor."), role, shape)
    return Entries(keys, rotate(index_keys, starts, shape.compress))


def _latent_entries(
    x: torch.Tensor, tensors: Tensors, role: Role, shape: Shape, starts: torch.Tensor
) -> Entries:
    """V4.1: index keys come from the entries before these are rotated."""
    latent = _pool_windows(x, tensors.at("compressor."), role, shape)
    keys = rotate(latent, starts, shape.compress)
    index_keys = latent @ tensors["indexer.wk.weight"].T
    index_keys = rms(index_keys, shape.eps, tensors["indexer.k_norm.weight"])
    index_keys = rotate(index_keys, starts, shape.compress)
    if shape.quantized:
        keys, index_keys = round_entries(keys), round_index(index_keys)
    return Entries(keys, index_keys)


def _pool_windows(x: torch.Tensor, tensors: Tensors, role: Role, shape: Shape) -> torch.Tensor:
    """Entry w pools window w by a softmax per channel; V4 adds a bias to the gates."""
    kv = (x @ tensors["wkv.weight"].T)[: len(x) // role.ratio * role.ratio]
    if role.ratio > 1:
        gate = (x @ tensors["wgate.weight"].T)[: len(kv)]
        kv, gate = (part.unflatten(0, (-1, role.ratio)) for part in (kv, gate))
        if "ape" in tensors:
            gate = gate + tensors["ape"]
        kv = (torch.softmax(gate, 1) * kv).sum(1)
    return rms(kv, shape.eps, tensors["norm.weight"])


def _pool_overlapping(x: torch.Tensor, tensors: Tensors, role: Role, shape: Shape) -> torch.Tensor:
    """CSA: entry w pools half a of the window before and half b of its own window."""
    count, r = len(x) // role.ratio, role.ratio
    kv, gate = x @ tensors["wkv.weight"].T, x @ tensors["wgate.weight"].T
    pooled = []
    for w in range(count):
        own, before = slice(r * w, r * w + r), slice(r * w - r, r * w)
        biased = gate[own] + tensors["ape"]
        dim = kv.shape[1] // 2
        values, gates = [kv[own, dim:]], [biased[:, dim:]]
        if w > 0:
            values.insert(0, kv[before, :dim])
            gates.insert(0, (gate[before] + tensors["ape"])[:, :dim])
        pooled.append((torch.softmax(torch.cat(gates), 0) * torch.cat(values)).sum(0))
    empty = kv.new_zeros(0, kv.shape[1] // 2)
    stacked = torch.stack(pooled) if pooled else empty
    return rms(stacked, shape.eps, tensors["norm.weight"])
