"""A line carries both ways, waits for who comes late, and says nothing when the far end dies."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from model_server.process.gang import hold_line
from tests.end_to_end.cell import free_ports


def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def line_to(there: socket.socket) -> str:
    return hold_line("127.0.0.1", there.getsockname()[1], 60)


def call(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_what_is_said_arrives_and_so_does_the_answer() -> None:
    with server() as there, call(line_to(there)) as near:
        near.sendall(b"hello")
        far, _ = there.accept()
        with far:
            assert far.recv(100) == b"hello"
            far.sendall(b"welcome")
            assert near.recv(100) == b"welcome"
            near.close()
            assert far.recv(100) == b""


@pytest.mark.extended
def test_a_far_end_that_dies_is_silent() -> None:
    with server() as there, call(line_to(there)) as near:
        far, _ = there.accept()
        far.close()
        near.settimeout(0.2)
        for _ in range(3):
            near.sendall(b"are you there?")
            with pytest.raises(TimeoutError):
                near.recv(100)


def test_a_far_end_that_comes_late_is_waited_for() -> None:
    (port,) = free_ports(1)
    with call(hold_line("127.0.0.1", port, 60)) as near:
        near.sendall(b"hello")
        heard: list[bytes] = []

        def come_late() -> None:
            time.sleep(0.3)
            with socket.create_server(("127.0.0.1", port)) as there:
                far, _ = there.accept()
                with far:
                    heard.append(far.recv(100))
                    far.sendall(b"sorry")

        late = threading.Thread(target=come_late)
        late.start()
        assert near.recv(100) == b"sorry"
        late.join()
        assert heard == [b"hello"]


def test_who_never_comes_ends_the_line() -> None:
    (port,) = free_ports(1)
    with call(hold_line("127.0.0.1", port, 0.2)) as near:
        assert near.recv(100) == b""
