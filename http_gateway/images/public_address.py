"""Which addresses are reached over the internet. Pure.

Written out, as what Python calls global depends on its version. Several kinds of IPv6 addresses are
forwarded to an IPv4 address that they hold, and are what that one is.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# From IANA's registries of special addresses: those that are not globally reachable.
_NOT_PUBLIC_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
            "168.63.129.16/32",  # Azure's own services, within every network there
        ),
    )
)
_UNICAST_6 = ipaddress.IPv6Network("2000::/3")  # all that has been given out
_NOT_PUBLIC_6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))

# Networks whose addresses hold an IPv4 address, and how many bits are below it.
_HOLDING = {
    ipaddress.IPv6Network("::/96"): 0,  # compatible, of old
    ipaddress.IPv6Network("::ffff:0:0/96"): 0,  # mapped
    ipaddress.IPv6Network("::ffff:0:0:0/96"): 0,  # translated (SIIT)
    ipaddress.IPv6Network("64:ff9b::/96"): 0,  # NAT64
    ipaddress.IPv6Network("2002::/16"): 80,  # 6to4
}
_TEREDO = ipaddress.IPv6Network("2001::/32")  # server, and the inverted bits of the client


def is_public(address: Address) -> bool:
    """Return True if an address, and each that it holds, is reached over the internet."""
    held = held_in(address)
    if held != (address,):
        return all(map(is_public, held))
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _UNICAST_6 and not any(address in network for network in _NOT_PUBLIC_6)


def held_in(address: Address) -> tuple[Address, ...]:
    """Return the IPv4 addresses that an IPv6 address holds; itself, if it holds none."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    bits = int(address)
    if address in _TEREDO:
        return _word(bits, 64), _word(~bits, 0)
    places = (place for network, place in _HOLDING.items() if address in network)
    return tuple(_word(bits, place) for place in places) or (address,)


def _word(bits: int, place: int) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(bits >> place & 0xFFFFFFFF)
