"""What blocks have in common, once: model, tenant, store and size, under a small number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rorqual_kvmeta.records import Records

MAX_OWNERS = 1 << 24
OWNER = np.dtype([("model", "<u8"), ("tenant", "<u8"), ("store", "<u4"), ("size_bytes", "<u4")])
_FIELDS = ["model", "tenant", "store", "size_bytes"]

I64 = npt.NDArray[np.int64]


class TooManyOwners(Exception):
    """More combinations of model, tenant, store and size than the index can number."""


class Owners:
    """Numbers of owners, and how many live blocks each has. Nothing is ever renumbered."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._rows = np.zeros(16, OWNER)
        self._models = np.zeros(16, np.uint64)
        """Of _rows; apart, because matches read them."""
        self._num_live = np.zeros(16, np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers_of(self, records: Records) -> I64:
        """Numbers of the owners of records; new ones are given. Raises: TooManyOwners."""
        owners = np.empty(len(records), OWNER)
        for name in _FIELDS:
            owners[name] = records[name]
        kinds, inverse = np.unique(owners, return_inverse=True)
        numbers = np.array([self._number(kind) for kind in kinds], np.int64)
        return numbers[inverse.reshape(-1)]

    def rows(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.void]:
        """What the numbers stand for, of dtype OWNER."""
        chosen: npt.NDArray[np.void] = self._rows[numbers]
        return chosen

    def models(self, numbers: I64) -> npt.NDArray[np.uint64]:
        return self._models.take(numbers)

    def count(self, numbers: npt.NDArray[np.integer], change: int) -> None:
        """Live blocks of these owners came or went."""
        np.add.at(self._num_live, numbers, change)

    @property
    def num_live(self) -> int:
        return int(self._num_live.sum())

    def live_bytes(self) -> dict[int, int]:
        """Bytes of live blocks by tenant."""
        rows = self._rows[: len(self)]
        tenants, inverse = np.unique(rows["tenant"], return_inverse=True)
        held = np.zeros(len(tenants), np.int64)
        np.add.at(held, inverse, self._num_live[: len(self)] * rows["size_bytes"].astype(np.int64))
        return dict(zip(tenants.tolist(), held.tolist(), strict=True))

    def of_tenant(self, tenant: int) -> I64:
        """Numbers of a tenant's owners."""
        return np.flatnonzero(self._rows["tenant"][: len(self)] == np.uint64(tenant))

    def matching(self, model: int | None, tenant: int | None) -> I64:
        """Numbers of the owners of a model, a tenant, or both; None = any."""
        rows = self._rows[: len(self)]
        fits = np.ones(len(rows), bool)
        if model is not None:
            fits &= rows["model"] == np.uint64(model)
        if tenant is not None:
            fits &= rows["tenant"] == np.uint64(tenant)
        return np.flatnonzero(fits)

    def _number(self, owner: np.void) -> int:
        number = self._numbers.get(owner.tobytes())
        if number is not None:
            return number
        number = len(self._numbers)
        if number >= MAX_OWNERS:
            raise TooManyOwners(f"{number} owners are numbered, the most there can be")
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._models = np.concatenate([self._models, np.zeros_like(self._models)])
            self._num_live = np.concatenate([self._num_live, np.zeros_like(self._num_live)])
        self._rows[number] = owner
        self._models[number] = owner["model"]
        self._numbers[owner.tobytes()] = number
        return number
