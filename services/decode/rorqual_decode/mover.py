"""A running generation as a value, and its way to another instance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.runs import run_after_move
from rorqual_runtime.bus import Bus
from rorqual_runtime.handover import Handover, ask_for_place, offer_generation
from rorqual_runtime.kv_export import KvExport, open_export
from rorqual_runtime.payload import put_payload
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.waiting import uninterrupted

from rorqual_decode import convert
from rorqual_decode.carried_kv import CarriedKv
from rorqual_decode.generation import GenerationSpec, GenerationState, Origin
from rorqual_decode.running import Running

_PLACE_TIMEOUT_S = 2.0
_OFFER_TIMEOUT_S = 5.0
"""More than a handover has as a whole: behind one that is silent there is no time for another."""


def state_of(
    sequence: Running, origin: Origin, prompt_ids: np.ndarray, output_ids: list[int]
) -> GenerationState:
    """Of a sequence that takes part in no step. output_ids: all of it, earlier runs' as well."""
    token_ids = np.concatenate([prompt_ids, np.asarray(output_ids, np.int32)])
    assert sequence.chunk.start == len(token_ids) - 1, "tokens and KV are not in step"
    has_blocks = sequence.chunk.start >= BLOCK_TOKENS
    key = sequence.chain.last_key if has_blocks else b""
    return GenerationState(origin, sequence.spec, token_ids, key)


@dataclass(slots=True)
class MoveFleet:
    """The other decode instances, as one generation sees them. Each offer is a run of its own, so
    that two instances that both believe to have it are told apart."""

    bus: Bus
    mover: Mover
    state: GenerationState
    run: int
    make_offer: Callable[[int], Any] | None = None
    """From the run; set once there are tickets."""

    async def place(self, excluded_ids: Iterable[str]) -> str:
        """See `rorqual_runtime.handover.DecodeFleet`."""
        return await self.mover.place(self.state.spec, len(self.state.token_ids), excluded_ids)

    async def offer(self, decode_id: str) -> None:
        """See `rorqual_runtime.handover.DecodeFleet`."""
        assert self.make_offer is not None, "nothing to offer yet"
        self.run = run_after_move(self.run)
        await offer_generation(self.bus, decode_id, self.make_offer(self.run), _OFFER_TIMEOUT_S)


class Mover:
    """Hands generations over to other instances, KV of both kinds included."""

    def __init__(
        self, bus: Bus, own_id: str, model: CausalModel, tensors: TensorPlane, *, arena_bytes: int
    ) -> None:
        self._bus, self._own_id = bus, own_id
        self._model, self._tensors = model, tensors
        self._arena_bytes = arena_bytes

    async def place(
        self, spec: GenerationSpec, num_tokens: int, excluded_ids: Iterable[str] = ()
    ) -> str:
        """Id of an instance that could go on with it. Raises: ServingError."""
        request = convert.place_to_wire(spec, num_tokens, {*excluded_ids, self._own_id})
        return await ask_for_place(self._bus, request, _PLACE_TIMEOUT_S)

    def fleet(self, state: GenerationState) -> MoveFleet:
        """Where the generation could go."""
        return MoveFleet(self._bus, self, state, state.spec.key.run)

    async def hand_over(
        self, kv: CarriedKv, fleet: MoveFleet, first_id: str, timeout_s: float
    ) -> str:
        """Id of the instance that has it. The KV stays as it is, whatever happens.

        first_id: who is asked first. timeout_s: of the whole, but for the copying.
        Raises: ServingError; nobody has it then, or whoever has it goes by a lower run than
            `run_after_move(fleet.run)`.
        """
        until_s = time.monotonic() + timeout_s
        async with open_export(
            self._tensors,
            range(kv.num_pages),
            read_page=kv.read,
            page_bytes=self._model.kv_layout.page_bytes,
            window_bytes=self._model.kv_layout.snapshot_bytes,
            capacity_bytes=self._arena_bytes,
            timeout_s=timeout_s,
        ) as export:
            parts = await self._parts(kv, fleet.state, export)
            fleet.make_offer = lambda run: convert.move_to_wire(fleet.state, run, parts)
            handover = Handover(fleet, export.keep_alive, waits=False)  # it can go on here
            return await handover.run(_known(first_id), until_s - time.monotonic())

    async def _parts(
        self, kv: CarriedKv, state: GenerationState, export: KvExport
    ) -> convert.MoveParts:
        """Everything the offer refers to, published."""
        # The pages must not come free under the copy, so a cancellation waits for it.
        window = await uninterrupted(asyncio.to_thread(_copy, kv, export))
        prompt = await put_payload(self._tensors, convert.tokens_to_wire(state.token_ids))
        if prompt.HasField("ticket"):
            export.adopt(prompt.ticket)
        return convert.MoveParts(
            prompt,
            export.seal(),
            None if window is None else export.publish_window(window),
            self._model.fingerprint,
        )


def _copy(kv: CarriedKv, export: KvExport) -> np.ndarray | None:
    for index in range(kv.num_pages):
        export.copy_page(index)
    return kv.read_window()


async def _known(instance_id: str) -> str:
    return instance_id
