"""Grammars on the tensor plane: one ticket a grammar, shared by all requests that use it."""

from __future__ import annotations

from collections import OrderedDict

from rorqual_runtime.errors import StaleTicket
from rorqual_runtime.tensors import TensorPlane

from rorqual_grammar.convert import Ticket

_MAX_TICKETS = 4096


class GrammarShelf:
    """Publishes grammars and keeps the tickets in use alive.

    No request owns a ticket, so none has to release it: a grammar that nobody asks for any more
    leaves when its lease ends.
    """

    def __init__(self, tensors: TensorPlane, *, lease_s: float) -> None:
        self._tensors = tensors
        self._lease_s = lease_s
        self._tickets: OrderedDict[bytes, Ticket] = OrderedDict()

    async def ticket(self, key: bytes, compiled: bytes) -> Ticket:
        """A ticket for `compiled` that stays readable for the lease from now on.

        Raises: NoCapacity when the arena is full.
        """
        known = self._tickets.get(key)
        if known is not None and self._renew(known):
            self._tickets.move_to_end(key)
            return known
        ticket = await self._tensors.publish(compiled, lease_s=self._lease_s, checksum=True)
        self._tickets[key] = ticket
        if len(self._tickets) > _MAX_TICKETS:
            self._tickets.popitem(last=False)
        return ticket

    def _renew(self, ticket: Ticket) -> bool:
        try:
            self._tensors.renew(ticket, self._lease_s)
        except StaleTicket:
            return False
        return True
