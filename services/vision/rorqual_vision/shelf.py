"""Embeddings where others can read them: one ticket an image, as long as it is asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from rorqual_runtime.errors import NoCapacity, StaleTicket
from rorqual_runtime.tensors import TensorPlane

from rorqual_vision.cache import Embeddings

MAX_TICKETS = 4096


class Shelf:
    """Tickets by digest, least recently asked for first; those make room when the arena is full.

    A reader whose ticket has gone asks again, and finds the embeddings in the cache.
    """

    def __init__(self, tensors: TensorPlane, lease_s: float) -> None:
        self._tensors, self._lease_s = tensors, lease_s
        self._tickets: OrderedDict[bytes, Any] = OrderedDict()

    async def put(self, digest: bytes, made: Embeddings) -> Any:
        """The image's ticket, with a full lease. Raises: NoCapacity."""
        if (ticket := self._renewed(digest)) is not None:
            return ticket
        shape = (made.num_tokens, made.hidden)
        while True:
            try:
                ticket = await self._tensors.publish(
                    made.data, dtype=made.dtype, shape=shape, lease_s=self._lease_s
                )
                break
            except NoCapacity:
                if not self.make_room():
                    raise
        if (earlier := self._renewed(digest)) is not None:  # another request was faster
            self._tensors.release(ticket)
            return earlier
        self._tickets[digest] = ticket
        while len(self._tickets) > MAX_TICKETS:
            self.make_room()
        return ticket

    def make_room(self) -> bool:
        """Void the ticket that was asked for longest ago; False when there is none."""
        if not self._tickets:
            return False
        _, oldest = self._tickets.popitem(last=False)
        self._tensors.release(oldest)
        return True

    def _renewed(self, digest: bytes) -> Any:
        ticket = self._tickets.get(digest)
        if ticket is None:
            return None
        try:
            self._tensors.renew(ticket, self._lease_s)
        except StaleTicket:
            del self._tickets[digest]
            return None
        self._tickets.move_to_end(digest)
        return ticket
