"""Which network addresses an image may be fetched from."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
_UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that is given out to the public; site-local addresses are not in it."""
_ALSO_CLOSED = tuple(
    ip_network(text) for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "3fff::/20")
)
"""Public by number to some, yet a cloud's or a protocol's own services answer there, or nobody."""
_MAX_NESTING = 3


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Raises: ValueError naming what is no network."""
    return tuple(ip_network(text) for text in texts)


def is_allowed(text: str, allowed: Sequence[Network] = ()) -> bool:
    """Whether an address is open to the public, or in a network that settings allow.

    An IPv6 address that stands for an IPv4 one is judged by that; scoped ones are never allowed.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    for _ in range(_MAX_NESTING):
        if any(address.version == net.version and address in net for net in allowed):
            return True
        inner = _inner(address)
        if inner is None:
            return _is_public(address)
        address = inner
    return False


def _inner(address: Address) -> Address | None:
    """The IPv4 address that traffic to this IPv6 address ends at."""
    if isinstance(address, IPv4Address):
        return None
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and _is_public(address) and int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        # Anyone can choose these bits: they close what else is open and never open anything.
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return inner


def _is_public(address: Address) -> bool:
    is_special = (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_loopback
        or address.is_link_local
        or address.is_private
    )
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return False
    is_closed = any(address.version == n.version and address in n for n in _ALSO_CLOSED)
    return address.is_global and not is_special and not is_closed
