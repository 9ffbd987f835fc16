"""The experts that each token of a prompt and its answer was sent to, as replies have them."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from typing import Literal, TypedDict

import msgspec


class ExpertsOfTokens(TypedDict):
    """The same in JSON."""

    dtype: Literal["uint8", "uint16"]
    shape: list[int]  # tokens, layers, experts
    data: str  # base64


class RoutedExpertIds(msgspec.Struct, frozen=True, gc=False):
    """Ids of experts: u8 or u16[tokens, layers, experts].

    tokens: all of the prompt and all of the answer but its last one, which the model did not read.
    layers: those with experts, in their order. experts: those that one layer gives each token.
    """

    data: bytes  # little-endian, the experts of one layer side by side
    tokens: int
    layers: int
    experts: int
    width: int  # bytes of an id: 1, or 2 of models with more than 256 experts

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.tokens, self.layers, self.experts

    @property
    def ids(self) -> memoryview:
        """The ids as a view of `shape`, which numpy.asarray takes as it is."""
        if self.width == 1:
            return memoryview(self.data).cast("B", self.shape)
        numbers = array("H", self.data)
        if sys.byteorder == "big":
            numbers.byteswap()
        return memoryview(numbers).cast("B").cast("H", self.shape)

    def as_json(self) -> ExpertsOfTokens:
        """Return what an HTTP reply has."""
        return {
            "dtype": "uint8" if self.width == 1 else "uint16",
            "shape": [*self.shape],
            "data": b64encode(self.data).decode(),
        }
