"""Where hosts meet: real sockets on loopback."""

from __future__ import annotations

import threading
import time

import pytest
import zmq

from model_server.multihost.hello import Welcome
from model_server.multihost.meeting import Reception, check_alone, say_hello
from model_server.multihost.primary import Primary
from sax.errors import InvalidRequest, Unavailable
from tests.end_to_end.cell import free_ports
from tests.model_server.multihost.hosts_here import greeting, membership

WELCOME = Welcome("127.0.0.1", 1, 2, 3)


class Meeting:
    """A reception that answers on a thread."""

    def __init__(self, count: int = 2) -> None:
        self.port = free_ports(1)[0]
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        names = tuple(f"node-{each}" for each in range(count))
        self.reception = Reception(self.context, greeting(count, 0), names, "127.0.0.1", self.port)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while not self._ended.is_set():
            self.reception.socket.poll(20)
            self.reception.answer()
            if self.reception.complete:
                self.reception.welcome(WELCOME)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.context.destroy()

    def hello(self, count: int, ordinal: int, within_s: float = 60.0, **changes: str) -> Welcome:
        own = greeting(count, ordinal, **changes)
        return say_hello(self.context, own, "127.0.0.1", self.port, time.monotonic() + within_s)


def test_all_hosts_are_welcomed_once_the_last_is_there() -> None:
    meeting = Meeting(3)
    found: list[Welcome] = []
    first = threading.Thread(target=lambda: found.append(meeting.hello(3, 1)))
    first.start()
    time.sleep(0.2)
    assert not found
    found.append(meeting.hello(3, 2))
    first.join(60)
    meeting.end()
    assert found == [WELCOME, WELCOME]


def test_a_host_that_does_not_fit_hears_why_and_the_others_go_on() -> None:
    meeting = Meeting(2)
    with pytest.raises(InvalidRequest, match="expects 3 hosts"):
        meeting.hello(3, 1)
    assert meeting.hello(2, 1) == WELCOME
    meeting.end()


def test_a_host_that_was_started_again_before_all_were_there_is_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meeting = Meeting(3)
    with pytest.raises(Unavailable, match=r"did not arrive in time: host 2 \(node-2\)"):
        meeting.hello(3, 1, within_s=2.0, nonce="earlier")
    with pytest.raises(InvalidRequest, match="two hosts 1"):
        meeting.hello(3, 1, nonce="later")  # the earlier one may be waiting still
    with monkeypatch.context() as silent:
        silent.setattr("model_server.multihost.meeting._SILENT_S", 0.0)
        time.sleep(0.3)  # what the earlier one sent last is read, too
        while meeting.reception.machines:
            time.sleep(0.01)
    again = threading.Thread(target=lambda: meeting.hello(3, 1, nonce="later"))
    again.start()
    assert meeting.hello(3, 2) == WELCOME
    again.join(60)
    meeting.end()


def test_a_host_that_was_started_again_after_all_were_there_waits_for_the_end() -> None:
    meeting = Meeting(2)
    assert meeting.hello(2, 1) == WELCOME
    with pytest.raises(Unavailable, match="the end of node-1, which is host 1 now"):
        meeting.hello(2, 1, within_s=2.0, nonce="later")
    meeting.end()


def test_nobody_at_the_primarys_address_is_said_in_words() -> None:
    port = free_ports(1)[0]
    with (
        zmq.Context() as context,
        pytest.raises(Unavailable, match=f"127.0.0.1:{port} does not answer"),
    ):
        say_hello(context, greeting(2, 1), "127.0.0.1", port, time.monotonic() + 0.2)


def test_a_second_primary_is_told_who_is_the_first() -> None:
    meeting = Meeting(2)
    with pytest.raises(
        InvalidRequest, match=r"two primaries: this process \(b\) is host 0, and so is node-0"
    ):
        check_alone(
            meeting.context,
            greeting(2, 0, name="b", nonce="another"),
            "127.0.0.1",
            meeting.port,
            lambda: None,
        )
    meeting.end()


def test_two_primaries_on_one_machine_cannot_both_listen() -> None:
    meeting = Meeting(2)
    with pytest.raises(OSError, match="another primary may be running here"):
        Primary(
            membership(2),
            greeting(2, 0),
            bind="127.0.0.1",
            port=meeting.port,
            timeout_s=3,
            bring_up_s=1,
        )
    meeting.end()


def test_a_primary_that_waits_in_vain_names_who_did_not_come() -> None:
    primary = Primary(
        membership(3),
        greeting(3, 0),
        bind="127.0.0.1",
        port=free_ports(1)[0],
        timeout_s=3,
        bring_up_s=0.3,
    )
    with pytest.raises(Unavailable, match=r"host 1 \(node-1\), host 2 \(node-2\)"):
        primary.bring_up(coordinator=1)
    primary.close()


def test_garbage_at_the_port_harms_nobody() -> None:
    meeting = Meeting(2)
    with meeting.context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{meeting.port}")
        for body in (b"", b"\xc1", b"\x80", b"GET / HTTP/1.1\r\n\r\n"):
            socket.send(body)
        socket.send_multipart([b"a", b"b", b"c"])
        assert meeting.hello(2, 1) == WELCOME
    meeting.end()
