"""Data URLs hold the bytes that they stand for, whole, however long."""

from __future__ import annotations

import base64

import pytest

from http_gateway.images.image_link import ImageLink, decoded
from sax.errors import InvalidRequest
from tests.each_case import each_case

HEAD = "data:image/jpeg;base64,"


@each_case("size", [0, 1, 2, 3, 393_215, 393_216, 393_217, 1_000_000])
def test_an_image_of_any_size_is_decoded(size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    url = HEAD + base64.b64encode(data).decode()
    assert decoded(ImageLink(b"", "x", url)).data == data


@each_case("text", ["A", "AA=A", "A A=", "AAA", "AA==AAAA", "é", "A" * 524_286 + "==AAAA"])
def test_damaged_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="x is damaged base64"):
        decoded(ImageLink(b"", "x", HEAD + text))
