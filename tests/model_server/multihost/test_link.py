"""The link over real sockets on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zmq

from model_server.multihost.link import LinkClosed, StageMessage, ZmqLink
from sax.errors import LoadFailed

LOOPBACK = "127.0.0.1"
HIDDEN = np.random.default_rng(0).standard_normal((256, 2048), np.float32)


@pytest.fixture
def links() -> Iterator[list[ZmqLink]]:
    """A ring of three."""
    made = [ZmqLink(LOOPBACK, bind=LOOPBACK) for _ in range(3)]
    for link, following in zip(made, [*made[1:], made[0]], strict=True):
        link.connect(following.offer)
    yield made
    for link in made:
        link.close()


def test_arrays_come_as_they_were_sent_and_in_order(links: list[ZmqLink]) -> None:
    first, second, third = links
    numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    first.send(StageMessage(0, (HIDDEN,)))
    first.send(StageMessage(1, (numbers, HIDDEN[:2])))
    got = [second.receive(), second.receive()]
    assert [message.number for message in got] == [0, 1]
    np.testing.assert_array_equal(got[0].arrays[0], HIDDEN)
    np.testing.assert_array_equal(got[1].arrays[0], numbers)
    np.testing.assert_array_equal(got[1].arrays[1], HIDDEN[:2])
    third.send(StageMessage(0, ()))
    assert first.receive() == StageMessage(0, ())


def test_an_array_that_does_not_lie_row_after_row_comes_right(links: list[ZmqLink]) -> None:
    links[0].send(StageMessage(0, (HIDDEN.T[:5],)))
    np.testing.assert_array_equal(links[1].receive().arrays[0], HIDDEN.T[:5])


def test_what_strangers_send_is_passed_over(links: list[ZmqLink]) -> None:
    address, _, key = links[1].offer.rpartition("/")
    wrong = ZmqLink(LOOPBACK, bind=LOOPBACK)
    wrong.connect(f"{address}/{'0' * len(key)}")
    wrong.send(StageMessage(0, (HIDDEN,)))
    stranger = zmq.Context.instance().socket(zmq.PUSH)
    stranger.connect(address)
    for noise in (b"", b"\xc1", b"GET / HTTP/1.1", b"\x93\xa0\x00\x90"):
        stranger.send(noise)
    time.sleep(0.2)  # all of it is there before what is meant
    links[0].send(StageMessage(0, (HIDDEN[:1],)))
    assert links[1].receive().arrays[0].shape == (1, 2048)
    stranger.close(0)
    wrong.close()


def test_a_frame_of_another_size_than_its_header_says_gives_no_array(links: list[ZmqLink]) -> None:
    class Lying(np.ndarray):
        shape = (3, 5)  # type: ignore[assignment]

    links[0].send(StageMessage(0, (np.zeros((2, 2), np.float32).view(Lying),)))
    assert links[1].receive().arrays[0].shape == (0,)


@pytest.mark.parametrize("waits", ["receive", "send"])
def test_closing_from_another_thread_ends_a_wait(links: list[ZmqLink], waits: str) -> None:
    link = links[0]
    links[1].close()  # nobody takes anything any more

    def wait() -> None:
        while True:
            link.receive() if waits == "receive" else link.send(StageMessage(0, (HIDDEN,)))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        threading.Timer(0.1, link.close).start()
        with pytest.raises(LinkClosed):
            waiting.result(60)
    with pytest.raises(LinkClosed):
        link.send(StageMessage(0, ()))
    with pytest.raises(LinkClosed):
        link.receive()


@pytest.mark.extended
def test_a_sender_waits_where_the_receiver_is_far_behind(links: list[ZmqLink]) -> None:
    sent: list[int] = []

    def send() -> None:
        for number in range(400):
            links[0].send(StageMessage(number, (HIDDEN,)))
            sent.append(number)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        time.sleep(0.5)
        assert len(sent) < 100  # the two ends' limits and what the kernel holds
        got = [links[1].receive().number for _ in range(400)]
        sending.result(60)
    assert got == list(range(400))


def test_an_offer_names_the_host_and_a_key_of_its_own(links: list[ZmqLink]) -> None:
    assert len({link.offer for link in links}) == 3
    assert all(link.offer.startswith(f"tcp://{LOOPBACK}:") for link in links)


def test_an_interface_that_is_not_here_and_an_address_that_is_none_are_refused() -> None:
    with pytest.raises(LoadFailed, match="cannot listen on 203.0.113.7"):
        ZmqLink("far", bind="203.0.113.7")
    link = ZmqLink(LOOPBACK, bind=LOOPBACK)
    with pytest.raises(LoadFailed, match="offers a bad address, nonsense"):
        link.connect("nonsense/key")
    link.close()
    link.close()
