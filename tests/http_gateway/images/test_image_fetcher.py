"""Images are fetched over HTTP from listed hosts only, within limits, and never by a redirect."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from http_gateway.images.image_fetcher import ImageFetcher, MediaHosts, is_public
from http_gateway.images.image_link import ImageLink
from sax.errors import InvalidRequest
from tests.each_case import each_case

NAME = "messages[0].content[1]"
STILL = threading.Event()


class Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/picture":
                self._answer(200, b"picture of " + self.headers["host"].encode())
            case "/redirect":
                self._answer(302, b"", location="/picture")
            case "/slow":
                STILL.wait(30)
            case "/compressed":
                self._answer(200, b"x", **{"content-encoding": "gzip"})
            case _:
                self._answer(404, b"none")

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    STILL.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    STILL.set()
    server.shutdown()
    thread.join()
    server.server_close()


async def fetched(
    url: str, hosts: str = "127.0.0.1", most: int = 1000, limit_s: float = 30
) -> bytes:
    link = ImageLink(b"", NAME, url)
    return (await ImageFetcher(MediaHosts.parse(hosts), limit_s).fetch(link, most)).data


async def refusal(url: str, hosts: str = "127.0.0.1", most: int = 1000, limit_s: float = 30) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetched(url, hosts, most, limit_s)
    assert caught.value.param == NAME
    return caught.value.text


async def test_an_image_comes_from_a_listed_address(port: int) -> None:
    found = await fetched(f"http://127.0.0.1:{port}/picture?size=1#top")
    assert found == f"picture of 127.0.0.1:{port}".encode()


async def test_a_name_is_reached_at_its_listed_address_under_its_own_name(port: int) -> None:
    found = await fetched(f"http://localhost:{port}/picture", "localhost,127.0.0.1,::1")
    assert found == f"picture of localhost:{port}".encode()


async def test_what_is_not_listed_is_not_asked(port: int) -> None:
    url = f"http://127.0.0.1:{port}/picture"
    assert "does not fetch images from 127.0.0.1" in await refusal(url, "")
    assert "does not fetch images from 127.0.0.1" in await refusal(url, "*")


async def test_a_listed_name_does_not_lead_to_a_private_address(port: int) -> None:
    said = await refusal(f"http://localhost:{port}/picture", "localhost")
    assert "which is not public" in said


@pytest.mark.extended
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("redirect", "redirects to another place"),
        ("compressed", "compressed"),
        ("none", "answered 404"),
    ],
)
async def test_what_is_not_the_image_itself_is_refused(port: int, path: str, words: str) -> None:
    assert words in await refusal(f"http://127.0.0.1:{port}/{path}")


async def test_an_image_of_too_many_bytes_is_refused(port: int) -> None:
    assert "more than 5 bytes" in await refusal(f"http://127.0.0.1:{port}/picture", most=5)


async def test_a_host_that_does_not_answer_in_time_is_left(port: int) -> None:
    said = await refusal(f"http://127.0.0.1:{port}/slow", limit_s=0.1)
    assert "did not send it within 0.1 s" in said


@pytest.mark.parametrize("url", ["http://", "http://me:secret@127.0.0.1/x", "http://[::1"])
async def test_a_url_without_a_plain_host_is_refused(url: str) -> None:
    assert "cannot be fetched" in await refusal(url)


@pytest.mark.parametrize(
    ("listed", "host", "allowed"),
    [
        ("", "example.com", False),
        ("example.com", "example.com", True),
        ("Example.com", "EXAMPLE.com.", True),
        ("example.com", "a.example.com", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "example.com", False),
        ("*", "example.com", True),
        ("*", "8.8.8.8", True),
        ("*", "127.0.0.1", False),
        ("*", "[::1]", False),
        ("*", "169.254.169.254", False),
        ("example.com", "8.8.8.8", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("*,127.0.0.1", "127.0.0.1", True),
        ("*,127.0.0.1", "[::ffff:127.0.0.1]", True),
        ("*", "[::ffff:10.0.0.1]", False),
        ("*", "[64:ff9b::a9fe:a9fe]", False),
        ("*", "[64:ff9b::808:808]", True),
        ("*,::1", "[::1]", True),
    ],
)
def test_a_host_is_asked_if_it_is_listed(listed: str, host: str, *, allowed: bool) -> None:
    assert MediaHosts.parse(listed).allow(host) is allowed


@pytest.mark.parametrize(
    ("listed", "address", "reached"),
    [
        ("*", "8.8.8.8", True),
        ("*", "192.168.1.1", False),
        ("example.com,192.168.0.0/16", "192.168.1.1", True),
        ("*", "224.0.0.1", False),
        ("*", "0.0.0.0", False),
        ("*", "fd00::1", False),
        ("example.com,10.0.0.0/8", "64:ff9b::a00:1", True),
        ("example.com,10.0.0.0/8", "2002:7f00:1::", False),
        ("*", "2606:4700::1111", True),
    ],
)
def test_an_address_that_is_not_public_must_be_listed(
    listed: str, address: str, *, reached: bool
) -> None:
    assert MediaHosts.parse(listed).reach(ipaddress.ip_address(address)) is reached


@each_case("listed", ["https://example.com", "a b", "*.*", "example.com:80", "*."])
def test_what_is_no_host_is_refused(listed: str) -> None:
    with pytest.raises(ValueError, match="--media_hosts"):
        MediaHosts.parse(listed)


PUBLIC = ("8.8.8.8", "1.1.1.1", "192.0.1.1", "172.32.0.1", "100.128.0.1", "193.0.0.1")
PRIVATE = (
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
)
OWN = (
    *(("2606:4700::1111", True), ("2a00:1450:4001::200e", True), ("2400::1", True)),
    *((text, False) for text in ("::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "feff::1")),
    *((text, False) for text in ("fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "100::1")),
    *((text, False) for text in ("64:ff9b:1::808:808", "64:ff9b:1:7f00::1", "5f00::1")),
    *((text, False) for text in ("2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "4000::1")),
)


def forms(four: str) -> dict[str, str]:
    """Every address that is forwarded to, or holds, this one."""
    bits = int(ipaddress.IPv4Address(four))
    other = int(ipaddress.IPv4Address("8.8.8.8"))
    words = {
        "compatible": bits,
        "mapped": 0xFFFF << 32 | bits,
        "translated": 0xFFFF << 48 | bits,
        "NAT64": 0x64FF9B << 96 | bits,
        "6to4": 0x2002 << 112 | bits << 80 | 1,
        "Teredo client": 0x20010000 << 96 | other << 64 | (bits ^ 0xFFFFFFFF),
        "Teredo server": 0x20010000 << 96 | bits << 64 | (other ^ 0xFFFFFFFF),
    }
    return {"itself": four} | {name: str(ipaddress.IPv6Address(w)) for name, w in words.items()}


@each_case(
    "text, public, form",
    [
        *((text, public, "itself") for text, public in OWN),
        *((text, True, form) for four in PUBLIC for form, text in forms(four).items()),
        *((text, False, form) for four in PRIVATE for form, text in forms(four).items()),
    ],
)
def test_an_address_is_public_if_it_and_all_that_it_holds_are(
    text: str, public: bool, form: str
) -> None:
    assert is_public(ipaddress.ip_address(text)) is public
