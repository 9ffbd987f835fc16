"""The whole application over a real port, asked by clients that know nothing of it."""

import json
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest

from tests.http_gateway.fake_cell import FakeCell

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "abc"}]}
WAIT_S = 60.0  # for what must happen, so that a failure is a failure and not a hang


def test_a_get_with_a_body_is_read(live_url: str):
    answer = httpx.request("GET", f"{live_url}/listcell", json={"model": "/sax/test/llama"})
    assert answer.json()["model"] == "/sax/test/llama"


def exchange(url: str, request: bytes) -> bytes:
    """Every byte that answers these bytes."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), WAIT_S) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def test_curls_get_with_a_body_is_answered_to_the_byte(live_url: str):
    body = b'{"sax_cell": "/sax/test"}'
    answer = exchange(
        live_url,
        b"GET /listall HTTP/1.1\r\nHost: localhost\r\nContent-type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
    )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'\r\n\r\n[\n    "/sax/test/smollm2",\n    "/sax/test/llama"\n]')


def test_a_body_that_lies_about_its_length_is_no_harm(live_url: str):
    huge = exchange(
        live_url,
        b"POST /publish HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Length: 99999999999\r\n\r\n{}",
    )
    assert huge.startswith(b"HTTP/1.1 413 ")
    assert httpx.get(f"{live_url}/healthz").status_code == 200


def read_until(sock: socket.socket, word: bytes) -> None:
    seen = b""
    while word not in seen:
        more = sock.recv(65536)
        assert more, seen
        seen += more


def scrape_until(url: str, line: str) -> None:
    """Until the metrics tell this; the test's own time limit ends a vain wait."""
    while line not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.01)


def drop_after(url: str, path: str, body: dict[str, object], started: Callable[[], object]) -> None:
    """Ask, wait until the question is being answered, and go away."""
    where = urlsplit(url)
    raw = json.dumps(body).encode()
    with socket.create_connection((where.hostname or "", where.port or 0), WAIT_S) as sock:
        sock.sendall(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(raw), raw)
        )
        if body.get("stream"):
            read_until(sock, b"assistant")
        started()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("path", "body", "hold_after"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, 2),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 3}, 2),
        ("/v1/chat/completions", dict(CHAT), 2),
        ("/v1/chat/completions", {**CHAT, "n": 3}, 0),
        ("/v1/completions", {"model": "smollm2", "prompt": ["a", "b"]}, 0),
        ("/generate", {"model": "/sax/test/smollm2", "query": "q"}, 0),
    ],
)
def test_a_client_that_goes_away_closes_the_answer(
    cell: FakeCell, live_url: str, path: str, body: dict[str, object], hold_after: int
):
    cell.hold_after = hold_after
    opened = threading.Event()
    cell.on_open = opened.set
    drop_after(live_url, path, body, lambda: opened.wait(WAIT_S))
    assert cell.answer_closed.wait(WAIT_S)
    assert cell.open_answers == 0
    labels = f'model="/sax/test/smollm2",route="{path}"'
    scrape_until(live_url, f"sax_gateway_disconnects_total{{{labels}}} 1.0")


def test_each_token_leaves_as_soon_as_it_is_there(cell: FakeCell, live_url: str):
    """The second token is held back until the first was read."""
    cell.hold_after = 1
    with httpx.stream(
        "POST", f"{live_url}/v1/completions", json={"model": "llama", "prompt": "x", "stream": True}
    ) as answer:
        lines = answer.iter_lines()
        assert '"text":" 1"' in next(lines)
        cell.release()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
