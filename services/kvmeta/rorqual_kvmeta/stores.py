"""Tells those who write to stores which blocks are to make room (what is only forgotten here would
still be found there) and which are to stay for a while."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import ServingError

from rorqual_kvmeta.convert import DropBlocksRequest, HoldBlocksRequest
from rorqual_kvmeta.records import Keys, Records, record_keys, tag

MAX_KEYS = 2048
"""In one message: 32 kB."""
MAX_MODELS = 1024


class StoreNotices:
    """Names models as stores know them. Records have tags only, so it learns names from requests;
    blocks of a model that nobody has asked for since the start stay in the store until they expire.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._fingerprints: OrderedDict[int, str] = OrderedDict()

    def learn(self, fingerprint: str) -> int:
        """The model's tag."""
        model = tag(fingerprint)
        self._fingerprints[model] = fingerprint
        self._fingerprints.move_to_end(model)
        if len(self._fingerprints) > MAX_MODELS:
            self._fingerprints.popitem(last=False)
        return model

    async def drop(self, records: Records) -> None:
        """Have the bytes of these blocks deleted. Best effort: what is not heard expires."""
        for model in np.unique(records["model"]).tolist():
            fingerprint = self._fingerprints.get(model)
            if fingerprint is None:
                continue
            keys = record_keys(records[records["model"] == np.uint64(model)])
            for start in range(0, len(keys), MAX_KEYS):
                request = DropBlocksRequest(
                    model_fingerprint=fingerprint,
                    packed_keys=keys[start : start + MAX_KEYS].tobytes(),
                )
                try:
                    await self._bus.publish(subjects.kvmeta_drop(), request)
                except ServingError:
                    return

    async def hold(self, model: int, keys: Keys, until_unix_s: float) -> None:
        """Have stores keep these blocks until then. Best effort: one that goes is computed anew."""
        fingerprint = self._fingerprints.get(model)
        if fingerprint is None:
            return
        for start in range(0, len(keys), MAX_KEYS):
            request = HoldBlocksRequest(
                model_fingerprint=fingerprint,
                packed_keys=keys[start : start + MAX_KEYS].tobytes(),
                until_unix_s=until_unix_s,
            )
            try:
                await self._bus.publish(subjects.kvmeta_hold(), request)
            except ServingError:
                return
