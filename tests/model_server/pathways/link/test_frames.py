from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.link.frames import SMALL, FrameReader, framed
from sax.errors import InvalidRequest

Frames = list[tuple[bytes, bytes]]


def read(stream: bytes, sizes: list[int]) -> Frames:
    """Feed a stream in pieces of these sizes, over and over."""
    found: Frames = []
    reader = FrameReader(lambda head, body: found.append((bytes(head), bytes(body))))
    at = turn = 0
    while at < len(stream):
        space = reader.space()
        assert len(space)
        count = min(len(space), sizes[turn % len(sizes)], len(stream) - at)
        space[:count] = stream[at : at + count]
        reader.read(count)
        at += count
        turn += 1
    return found


def joined(frames: Frames) -> bytes:
    return b"".join(bytes(part) for head, body in frames for part in framed(head, [body]))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=90)), max_size=12),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_frames_are_read_however_they_are_cut(frames: Frames, sizes: list[int]) -> None:
    assert read(joined(frames), sizes) == frames


def test_large_bodies_are_read_between_small_ones() -> None:
    for size in (0, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL):
        frames = [(b"first", b"x"), (b"large", bytes(size)), (b"last", b"y")] * 2
        for piece in (1000, SMALL, 10 * SMALL):
            assert read(joined(frames), [piece]) == frames, (size, piece)


def test_parts_of_a_body_are_not_joined_before_they_are_written() -> None:
    data = bytes(100)
    parts = framed(b"head", [b"", data])
    assert parts[1] is data
    assert len(parts) == 2


def test_a_head_has_a_limit() -> None:
    with pytest.raises(InvalidRequest, match="fewer buffers"):
        framed(bytes(SMALL))


def test_what_are_no_frames_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no frames"):
        read(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", [100])
