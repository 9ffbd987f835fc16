"""The index of a msgpack file is what msgpack itself reads, binary data by place; no file hurts."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.orbax.pax.msgpack_index import BadMsgpack, Bytes, index
from tests.each_case import each_case
from tests.model_server.checkpoints.pax_writer import packed

# Where msgpack writes a length in another way.
_SIZES = st.sampled_from((0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65535, 65536))
_BYTES = st.builds(bytes, _SIZES)
_PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.builds("x".__mul__, _SIZES)
    | _BYTES
    | st.builds(msgpack.ExtType, st.integers(0, 127), _BYTES)
)
_TREES = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)


def _seen(value: Any, data: bytes) -> Any:
    """The value with binary data in place of its place."""
    if isinstance(value, Bytes):
        body = data[value.start : value.start + value.size]
        return body if value.code is None else msgpack.ExtType(value.code, body)
    if isinstance(value, dict):
        return {key: _seen(inner, data) for key, inner in value.items()}
    return [_seen(inner, data) for inner in value] if isinstance(value, list) else value


@each_case("size", [15, 16, 65535, 65536])
def test_long_lists_and_objects_are_read(size: int) -> None:
    tree = [list(range(size)), {str(number): number for number in range(size)}]
    data = packed(tree)
    assert index(memoryview(data)) == tree


@given(_TREES)
def test_it_finds_what_msgpack_packed(tree: Any) -> None:
    data = packed(tree)
    assert _seen(index(memoryview(data)), data) == tree


@given(_TREES, st.data())
def test_a_file_that_ends_early_is_refused(tree: Any, data: st.DataObject) -> None:
    whole = packed(tree)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(BadMsgpack):
        index(memoryview(cut))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadMsgpack):
        index(memoryview(data))


@each_case(
    "data, reason",
    [
        (b"\x91" * 100_000, "inside each other"),
        (b"\xdd\xff\xff\xff\xff" + b"\xc0" * 2_000_000, "more than 1000000 values"),
        (b"\xc6\xff\xff\xff\xffxx", "ends within a value of 4294967295 bytes"),
        (b"\xc9\xff\xff\xff\xff\x01xx", "ends within a value of 4294967295 bytes"),
        (b"\xdb\x00\x20\x00\x00" + b"x" * 2**21, "a text at byte 5 has 2097152 bytes"),
        (b"\xa1\xff", "no UTF-8|not UTF-8"),
        (b"\x81\x01\x01", "is no text"),
        (b"\xc1", "begins no value"),
        (b"\xc0\xc0", "1 bytes follow"),
    ],
)
def test_what_would_take_memory_or_make_no_sense_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadMsgpack, match=reason):
        index(memoryview(data))
