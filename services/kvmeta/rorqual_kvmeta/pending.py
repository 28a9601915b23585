"""Registrations that Redis could not take yet."""

from collections.abc import Sequence

import numpy as np
from rorqual_policy import KEY_BYTES

from rorqual_kvmeta.records import RECORD, Keys, Records


class PendingRecords:
    """A bounded buffer, newest kept: a lost registration costs a recomputation, nothing more."""

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self._records: dict[bytes, bytes] = {}
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Records) -> None:
        """Keep records for later; over the bound the oldest are dropped and counted."""
        packed = records.tobytes()
        for start in range(0, len(packed), RECORD.itemsize):
            record = packed[start : start + RECORD.itemsize]
            self._records.pop(record[:KEY_BYTES], None)
            self._records[record[:KEY_BYTES]] = record
        while len(self._records) > self._max_records:
            del self._records[next(iter(self._records))]
            self.num_dropped += 1

    def forget(self, keys: Keys) -> None:
        """These blocks are not there after all."""
        packed = np.ascontiguousarray(keys).tobytes()
        for start in range(0, len(packed), KEY_BYTES):
            self._records.pop(packed[start : start + KEY_BYTES], None)

    def clear(self, model: int | None, tenant: int | None) -> None:
        """Nothing of a model, a tenant or both (None = any) is kept."""
        records = self.take(len(self))
        stays = np.zeros(len(records), bool)
        if model is not None:
            stays |= records["model"] != np.uint64(model)
        if tenant is not None:
            stays |= records["tenant"] != np.uint64(tenant)
        self.add(records[stays])

    def take(self, max_records: int) -> Records:
        """Remove some of the oldest."""
        taken: Sequence[bytes] = list(self._records)[:max_records]
        return np.frombuffer(b"".join(self._records.pop(key) for key in taken), RECORD)
