"""Hosts from which the gateway may fetch images: the flag --media_hosts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from http_gateway.images.public_address import Address, held_in, is_public

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
