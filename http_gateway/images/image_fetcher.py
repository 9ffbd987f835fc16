"""Fetches images from the hosts of --media_hosts, within limits of time and size.

A name is resolved once and the connection goes to an address that was checked, so that no answer of
a name server leads into the operator's own network. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from functools import cache

import httpx

from http_gateway.images.image_link import ImageLink
from sax.chat import Image
from sax.errors import InvalidRequest

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


_TIMEOUT_S = 10.0
_AT_ONCE = 16  # images of all requests


class ImageFetcher:
    """Runs on the event loop."""

    def __init__(self, hosts: MediaHosts, timeout_s: float = _TIMEOUT_S) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, link: ImageLink, most: int) -> Image:
        """Return the image of an http URL, of at most so many bytes. Raises InvalidRequest."""
        url = self._checked(link)
        try:
            async with self._turns, asyncio.timeout(self._timeout_s):
                address = await self._address(link, url)
                return link.made(await _body(link, url, address, most))
        except TimeoutError as exc:
            raise _failed(link, f"{url.host} did not send it within {self._timeout_s:g} s") from exc
        except httpx.HTTPError as exc:
            raise _failed(link, f"{url.host} did not answer: {exc or type(exc).__name__}") from exc

    def _checked(self, link: ImageLink) -> httpx.URL:
        try:
            url = httpx.URL(link.url)
        except httpx.InvalidURL as exc:
            raise _failed(link, f"its URL is wrong: {exc}") from exc
        if not url.host or url.userinfo:
            raise _failed(link, "its URL has no host, or a name and password: send a plain one")
        if not self._hosts.allow(url.host):
            raise _failed(
                link,
                f"this gateway does not fetch images from {url.host}: send the image itself in a "
                "data URL, or ask the operator to list the host in --media_hosts",
            )
        return url

    async def _address(self, link: ImageLink, url: httpx.URL) -> str:
        """Return an address of the URL's host; all that it has must be allowed."""
        if address_of(url.host) is not None:
            return url.host
        loop = asyncio.get_running_loop()
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await loop.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        except OSError as exc:
            raise _failed(link, f"{url.host} has no address: {exc}") from exc
        addresses = [str(entry[4][0]) for entry in found]
        for each in addresses:
            address = address_of(each)
            if address is None or not self._hosts.reach(address):
                raise _failed(
                    link,
                    f"{url.host} has the address {each}, which is not public: the operator can "
                    "list it in --media_hosts",
                )
        return addresses[0]


async def _body(link: ImageLink, url: httpx.URL, address: str, most: int) -> bytes:
    headers = {"host": url.netloc.decode(), "accept": link.accepted}
    headers["accept-encoding"] = "identity"
    request = httpx.Request(
        "GET",
        url.copy_with(host=address, fragment=None),
        headers=headers,
        extensions={"sni_hostname": url.host},
    )
    async with httpx.AsyncClient(
        verify=_certificates(), trust_env=False, follow_redirects=False
    ) as client:
        reply = await client.send(request, stream=True)
        try:
            _check(link, url, reply)
            return await _read(link, reply, most)
        finally:
            await reply.aclose()


def _check(link: ImageLink, url: httpx.URL, reply: httpx.Response) -> None:
    if reply.is_redirect:
        raise _failed(link, f"{url.host} redirects to another place: send the URL of the image")
    if reply.status_code != 200:
        raise _failed(link, f"{url.host} answered {reply.status_code}")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise _failed(link, f"{url.host} sends it compressed, which is not read")


async def _read(link: ImageLink, reply: httpx.Response, most: int) -> bytes:
    parts, size = list[bytes](), 0
    async for part in reply.aiter_raw():
        size += len(part)
        if size > most:
            raise _failed(link, f"it has more than {most} bytes, the most that are left for it")
        parts.append(part)
    return b"".join(parts)


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _failed(link: ImageLink, why: str) -> InvalidRequest:
    return InvalidRequest(f"{link.name} cannot be fetched: {why}", param=link.name)
