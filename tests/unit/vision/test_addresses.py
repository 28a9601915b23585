"""No address that is not open to the public is asked, however it is written."""

from __future__ import annotations

import pytest
from rorqual_vision.addresses import is_allowed, parse_networks

FORBIDDEN = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.8"),
    *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "198.18.0.1"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2001:db8::1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1"),
    *("fec0::1", "feff::1", "3fff::1", "192.88.99.1", "2606:4700::5efe:10.0.0.1"),
    *("fe80::5efe:8.8.8.8", "fe80::5efe:8.8.8.8%eth0", "fd00::5efe:8.8.8.8", "fec0::5efe:8.8.8.8"),
    *("ff02::5efe:8.8.8.8", "2001:db8::5efe:8.8.8.8", "3fff::5efe:8.8.8.8", "::5efe:8.8.8.8"),
    *("2002:7f00:1::5efe:8.8.8.8", "2001:0:4136:e378:0:5efe:80ff:fffe", "2606:4700::1%eth0"),
    *("64:ff9b::5efe:127.0.0.1", "2606:4700::200:5efe:127.0.0.1"),
    *("2001:0:4136:e378:8000:63bf:80ff:fffe", "localhost", "", "1.2.3", "12345"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_allowed(address)


@pytest.mark.parametrize("address", [*PUBLIC, "64:ff9b::808:808", "2606:4700::5efe:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_allowed(address)


def test_settings_can_allow_networks_and_nothing_beside_them() -> None:
    allowed = parse_networks(["127.0.0.0/8", "fd00::/8"])
    assert is_allowed("127.0.0.1", allowed)
    assert is_allowed("::ffff:127.0.0.1", allowed)
    assert is_allowed("fd12::1", allowed)
    assert not is_allowed("10.0.0.1", allowed)
    assert not is_allowed("::1", allowed)
    with pytest.raises(ValueError, match="not-a-network"):
        parse_networks(["not-a-network"])
