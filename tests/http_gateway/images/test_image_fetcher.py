"""Images are fetched over HTTP from listed hosts only, within limits, and never by a redirect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from http_gateway.images.image_fetcher import ImageFetcher
from http_gateway.images.image_link import ImageLink
from http_gateway.images.media_hosts import MediaHosts
from sax.errors import InvalidRequest

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
