"""Slow and oversized requests on real connections, against a gateway process."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from http_gateway.connection import MAX_HEAD_BYTES
from tests.each_case import each_case
from tests.http_gateway.test_main import started

FLAGS = ("--port=0", "--admin=127.0.0.1:1")
HASTY = ("--header_timeout_s=1", "--body_timeout_s=1")
MOST = 8  # connections
LONG_S = 60.0
POST = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
GET = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def hasty_url() -> Iterator[str]:
    """A gateway that waits a second for a head or a body."""
    with started("-m", "http_gateway", *FLAGS, *HASTY) as (_, url):
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway that waits longer than a busy machine takes to send and read a request."""
    limits = (f"--header_timeout_s={LONG_S:g}", f"--body_timeout_s={LONG_S:g}")
    with started("-m", "http_gateway", *FLAGS, *limits, f"--max_connections={MOST}") as (_, url):
        yield url


def connect(url: str, text: str = "") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=LONG_S)
    connection.sendall(text.encode())
    return connection


def rest_of(connection: socket.socket) -> str:
    """All that comes until the gateway closes."""
    with closing(connection):
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def status_of(reply: str) -> int:
    return int(reply.split(" ", 2)[1])


@pytest.mark.extended
def test_headers_that_do_not_end_are_answered_408_and_closed(hasty_url: str) -> None:
    reply = rest_of(connect(hasty_url, POST))
    assert status_of(reply) == 408
    assert "within 1 s" in reply
    assert "connection: close" in reply
    assert "x-request-id: " in reply


@pytest.mark.extended
def test_a_head_that_does_not_end_is_answered_in_the_format_of_its_route(hasty_url: str) -> None:
    head, _, body = rest_of(
        connect(hasty_url, "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n")
    ).partition("\r\n\r\n")
    told = json.loads(body)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert f"request-id: {told['request_id']}" in head
    ollama = rest_of(connect(hasty_url, "POST /api/chat HTTP/1.1\r\nhost: localhost\r\n"))
    assert [*json.loads(ollama.partition("\r\n\r\n")[2])] == ["error"]


@pytest.mark.extended
def test_a_connection_that_asks_nothing_is_closed_without_a_word(hasty_url: str) -> None:
    assert rest_of(connect(hasty_url)) == ""


@pytest.mark.extended
def test_a_body_that_does_not_end_is_answered_in_the_format_of_its_route_and_closed(
    hasty_url: str,
) -> None:
    reply = rest_of(connect(hasty_url, f"{POST}content-length: 100\r\n\r\n" + "{"))
    assert status_of(reply) == 408
    assert '"code":"request_timeout"' in reply
    assert "--body_timeout_s" in reply


@pytest.mark.extended
def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(url: str) -> None:
    reply = rest_of(connect(url, f"{POST}content-length: 999999999\r\n\r\n"))
    assert status_of(reply) == 413


@pytest.mark.extended
@each_case(
    "head",
    [
        f"{GET}x: {'v' * (1 << 20)}\r\n\r\n",
        f"{GET}{'n' * (1 << 20)}: v\r\n\r\n",
        GET + "".join(f"x{i}: v\r\n" for i in range(40_000)) + "\r\n",
        f"GET /{'p' * (1 << 20)} HTTP/1.1\r\n\r\n",
        f"{POST}transfer-encoding: chunked\r\n\r\n0\r\nx: {'v' * (1 << 20)}\r\n\r\n",
        f"{GET}x: {'v' * MAX_HEAD_BYTES}",  # no end yet
    ],
)
def test_a_head_of_more_than_64_kib_is_refused_whatever_fills_it(head: str, url: str) -> None:
    connection = connect(url)
    try:
        connection.sendall(head.encode())
    except (BrokenPipeError, ConnectionResetError):
        pytest.fail("the gateway closed before it took in what was sent")
    reply = rest_of(connection)
    assert len(reply) < 1000
    assert status_of(reply) == 431


@pytest.mark.extended
@pytest.mark.parametrize("words", ["what is this?\r\n\r\n", "\x16\x03\x01\x02 a TLS handshake"])
def test_what_is_no_http_is_answered_400_like_any_wrong_request(url: str, words: str) -> None:
    reply = rest_of(connect(url, words))
    assert status_of(reply) == 400
    assert "x-request-id: " in reply
    assert '{"detail":"this is no HTTP request' in reply


@pytest.mark.extended
def test_a_head_just_below_the_limit_is_read(url: str) -> None:
    reply = rest_of(
        connect(url, f"{GET}connection: close\r\nx: {'v' * (MAX_HEAD_BYTES - 200)}\r\n\r\n")
    )
    assert status_of(reply) == 200


def test_requests_that_follow_each_other_on_one_connection_count_alone(url: str) -> None:
    head = f"{GET}x: {'v' * (MAX_HEAD_BYTES // 2)}\r\n\r\n"
    last = f"{GET}connection: close\r\n\r\n"
    assert rest_of(connect(url, head * 5 + last)).count("HTTP/1.1 200") == 6


def test_a_new_connection_replaces_one_that_has_no_request(url: str) -> None:
    held = [connect(url, GET) for _ in range(2 * MOST)]
    assert httpx.get(f"{url}/healthz", trust_env=False, timeout=LONG_S).status_code == 200
    for connection in held:
        connection.close()


@pytest.mark.extended
def test_a_connection_that_stays_idle_between_requests_is_kept(hasty_url: str) -> None:
    with httpx.Client(base_url=hasty_url, trust_env=False, timeout=LONG_S) as http:
        first = http.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
        rest_of(connect(hasty_url, POST))  # longer than the time limit of a head
        second = http.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
    assert first == second


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/net/tcp is Linux's")
def test_the_system_probes_connections_whose_client_may_have_lost_its_power(url: str) -> None:
    with closing(connect(url, POST)) as connection:
        ends_s = time.monotonic() + LONG_S
        while (timer := timer_of_gateway(connection)) != "02" and time.monotonic() < ends_s:
            time.sleep(0.05)  # the gateway has not taken it up yet
    assert timer == "02"  # that of keepalive


def timer_of_gateway(connection: socket.socket) -> str:
    """Return the kind of timer that runs for the gateway's end of a connection."""
    own, other = connection.getsockname()[1], connection.getpeername()[1]
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    (timer,) = (
        row[5] for row in rows if (row[1][-5:], row[2][-5:]) == (f":{other:04X}", f":{own:04X}")
    )
    return timer.partition(":")[0]
