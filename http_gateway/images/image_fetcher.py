"""Fetches images from hosts that the operator listed, within limits of time and size.

A name is resolved once and the connection goes to an address that was checked, so that no answer of
a name server leads into the operator's own network. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import cache

import httpx

from http_gateway.images.image_link import ImageLink
from http_gateway.images.media_hosts import MediaHosts, address_of
from sax.chat import Image
from sax.errors import InvalidRequest

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
                return Image(await _body(link, url, address, most), link.name)
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
    headers = {"host": url.netloc.decode(), "accept": "image/*", "accept-encoding": "identity"}
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
