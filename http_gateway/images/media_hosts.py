"""Hosts from which the gateway may fetch images: the flag --media_hosts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# Which addresses are reached over the internet. Pure.
#
# Written out, as what Python calls global depends on its version. Several kinds of IPv6 addresses
# are forwarded to an IPv4 address that they hold, and are what that one is.

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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ANY = "*"


@dataclass(frozen=True, slots=True)
class MediaHosts:
    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()  # of *.example.com: .example.com
    networks: tuple[Network, ...] = ()
    any: bool = False  # every host with a public address

    @classmethod
    def parse(cls, text: str) -> MediaHosts:
        """Parse names, *.names, addresses and networks, separated by commas. Raises ValueError."""
        entries = [entry.strip().lower() for entry in text.split(",") if entry.strip()]
        networks = [network for entry in entries if (network := _network(entry)) is not None]
        names = [entry for entry in entries if entry != _ANY and _network(entry) is None]
        suffixes = [name[1:] for name in names if name.startswith("*.")]
        plain = [name for name in names if not name.startswith("*.")]
        for name in (*plain, *suffixes):
            if not name.strip(".") or any(sign in name for sign in "*/:@ "):
                raise ValueError(
                    f"--media_hosts {text}: give names such as images.example.com, "
                    f"*.example.com, addresses and networks, or * for any public host; {name} is "
                    "none of them"
                )
        return cls(frozenset(plain), tuple(suffixes), tuple(networks), _ANY in entries)

    def allow(self, host: str) -> bool:
        """Return True if images of this host may be asked for."""
        host = host.lower().rstrip(".")
        if (address := address_of(host)) is not None:
            return self.reach(address) and (self.any or self._listed(address))
        return self.any or host in self.names or host.endswith(self.suffixes)

    def reach(self, address: Address) -> bool:
        """Return True for an address that a host may have: a public one, or one that is listed."""
        return self._listed(address) or all(
            is_public(held) or self._listed(held) for held in held_in(address)
        )

    def _listed(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def address_of(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None
