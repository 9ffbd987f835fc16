from __future__ import annotations

from contextlib import suppress

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.http2 import frames
from model_server.pathways.http2.frames import (
    CHEAP,
    FULL,
    ConnectionFault,
    Frame,
    Http2Reader,
    Patience,
)
from tests.model_server.examples import examples

Taken = list[tuple[int, int, int, bytes]]
PIECES = st.lists(st.integers(1, 40000), max_size=30)
SENT = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 99), st.binary(max_size=99)),
    max_size=20,
)


def read(data: bytes, pieces: list[int]) -> Taken:
    """Return what a reader takes of bytes that come in such pieces."""
    taken: Taken = []

    def take(frame: Frame) -> None:
        taken.append((frame.kind, frame.flags, frame.stream, bytes(frame.payload)))

    reader = Http2Reader(take)
    for size in [*pieces, len(data)]:
        while size and data:
            space = reader.space()
            piece, data = data[: min(size, len(space))], data[min(size, len(space)) :]
            space[: len(piece)] = piece
            size -= len(piece)
            reader.read(len(piece))
    return taken


def written(sent: Taken) -> bytes:
    return frames.PREFACE + b"".join(
        frames.frame_head(kind, flags, stream, len(payload)) + payload
        for kind, flags, stream, payload in sent
    )


@examples(SENT, PIECES, few=25, many=100)
def test_frames_are_read_however_they_are_cut(sent: Taken, pieces: list[int]) -> None:
    assert read(written(sent), pieces) == sent


def test_a_large_frame_is_read_whole() -> None:
    sent = [(frames.DATA, 0, 1, bytes(frames.MAX_FRAME)), (frames.PING, 0, 0, bytes(8))]
    assert read(written(sent), [1000, 1 << 20]) == sent


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not begin as HTTP/2"),
        (frames.PREFACE + b"\xff" * 9, "a frame of"),
    ],
)
def test_what_is_not_http2_ends_the_connection(data: bytes, why: str) -> None:
    with pytest.raises(ConnectionFault, match=why):
        read(data, [3])


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=9000))))
def test_header_blocks_are_what_a_decoder_reads(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=1 << 24)
    assert list(decoder.decode(frames.header_block(headers), raw=True)) == headers


def test_padding_and_priority_are_cut_off() -> None:
    payload = memoryview(b"\x02" + bytes(5) + b"abc" + bytes(2))
    flags = frames.PADDED | frames.WITH_PRIORITY
    assert bytes(frames.unpadded(Frame(frames.HEADERS, flags, 1, payload))) == b"abc"
    with pytest.raises(ConnectionFault, match="more padding"):
        frames.unpadded(Frame(frames.DATA, frames.PADDED, 1, memoryview(b"\x09a")))
    with pytest.raises(ConnectionFault, match="more padding"):
        frames.unpadded(Frame(frames.DATA, frames.PADDED, 1, memoryview(b"")))


def spent(patience: Patience) -> int:
    """Return how many cheap frames pass before the fault."""
    count = 0
    with suppress(ConnectionFault):
        while True:
            patience.spend(CHEAP, "pings")
            count += 1
    return count


def test_a_budget_grows_with_time_and_answers_but_not_while_the_peer_does_not_read() -> None:
    now_s = [0.0]
    patience = Patience(lambda: now_s[0])
    assert spent(patience) == FULL
    now_s[0] += 2
    assert spent(patience) == 2000
    patience.earn(30)
    assert spent(patience) == 30
    now_s[0] += 1e6
    assert spent(patience) == FULL
    patience.reading = False
    now_s[0] += 2
    assert spent(patience) == 0
