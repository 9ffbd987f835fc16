"""Quantisation schemes, and quantising weights at load.

Either a scheme is applied to any checkpoint, or the checkpoint's own quantisation is kept. Numpy
only; the products are in `quantized.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from model_server.checkpoints.packed import FLOAT4, FLOAT8, PackedBlocks, Packing
from model_server.models.weights.source import Transposed, WeightSource
from sax.errors import InvalidRequest

STORED = "stored"
_SCHEME = re.compile(r"(int8|int4|float8)(?::([1-9]\d*))?")
_HIGHEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0}


class Quantization(Protocol):
    """Decides how each weight is held."""

    def packing_of(
        self, source: WeightSource, shape: tuple[int, ...], *, table: bool
    ) -> Packing | None:
        """Packing of one weight; None: unquantised. table: rows are vocabulary entries."""
        ...

    def check(self, packings: Iterable[Packing]) -> None:
        """Raises InvalidRequest if no weight of the model ended up as requested."""
        ...


@dataclass(frozen=True, slots=True)
class Scheme:
    """Quantises every matrix of any checkpoint to one kind at load."""

    kind: str
    block: int | None  # columns per scale; None: the whole row

    def packing_of(
        self, source: WeightSource, shape: tuple[int, ...], *, table: bool
    ) -> Packing | None:
        if table:
            # Every logit goes through the table: eight bits cost little there and preserve the
            # text.
            return Packing("int8" if self.kind == "int4" else self.kind, None, False)
        whole_blocks = shape[-1] % (self.block or 1) == 0
        if not whole_blocks or (self.kind == "int4" and shape[-1] % 2):  # two to a byte
            return None
        # int4 has only sixteen steps: with an offset none are wasted where a small block is
        # one-sided.
        return Packing(self.kind, self.block, self.kind == "int4" and self.block is not None)

    def check(self, packings: Iterable[Packing]) -> None:
        if not any((each.kind, each.block) == (self.kind, self.block) for each in packings):
            columns = f"a multiple of {self.block}" if self.block else "even"
            raise InvalidRequest(
                f"QUANTIZE fits no matrix of this model: no column count is {columns}; give "
                "another block, or none for a scale per row",
                param="overrides.QUANTIZE",
            )


@dataclass(frozen=True, slots=True)
class AsStored:
    """Keeps what the checkpoint stores quantised; parts of one weight share the wider form."""

    packing: Callable[[str], Packing | None]  # by tensor name

    def packing_of(
        self, source: WeightSource, shape: tuple[int, ...], *, table: bool
    ) -> Packing | None:
        found = [self.packing(name) for name in source.names]
        if not found or None in found or has_transposed(source):
            return None
        return common([packing for packing in found if packing is not None], shape[-1])

    def check(self, packings: Iterable[Packing]) -> None:
        if not any(packings):
            raise InvalidRequest(
                'QUANTIZE "stored" keeps a checkpoint\'s own quantisation, and this one has none '
                'that can be kept: leave it out, or give a scheme such as "int8"',
                param="overrides.QUANTIZE",
            )


def common(packings: list[Packing], inputs: int) -> Packing | None:
    """Return a packing that holds all of them exactly, or None."""
    kinds = {packing.kind for packing in packings}
    if kinds & {FLOAT8.name, FLOAT4} and len(kinds) > 1:
        return None
    blocks = {packing.block or inputs for packing in packings}
    least = min(blocks)
    if any(block % least for block in blocks):
        return None
    return Packing(
        kind="int8" if "int8" in kinds else kinds.pop(),
        block=None if least == inputs else least,
        offset=any(packing.offset for packing in packings),
    )


def parse_quantize(text: str | None) -> Scheme | str | None:
    """Parse the QUANTIZE override: null, "stored" or a scheme. Raises InvalidRequest."""
    if text is None or text == STORED:
        return text
    match = _SCHEME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidRequest(
            f'QUANTIZE must be "int8", "int4" or "float8", alone (a scale per row) or with '
            f'the columns per scale ("int4:32"), "stored" (the checkpoint\'s own quantisation) or '
            f"null, not {text!r}",
            param="overrides.QUANTIZE",
        )
    kind = "float8_e4m3fn" if match[1] == "float8" else match[1]
    return Scheme(kind, int(match[2]) if match[2] else None)


def quantize(numbers: np.ndarray, packing: Packing) -> PackedBlocks:
    """Quantise f32[..., out, in].

    Symmetric: the largest magnitude of a block maps to the largest value; with offsets the minimum
    and maximum of a block map to the ends of the range.
    """
    *outer, inputs = numbers.shape
    blocked = np.asarray(numbers, np.float32).reshape(*outer, -1, packing.block or inputs)
    if packing.offset:
        return _between_ends(blocked, packing, numbers.shape)
    highest = np.abs(blocked).max(-1, keepdims=True)
    scales = np.where(highest > 0, highest, 1.0) / _HIGHEST[packing.kind]
    # No clipping: scales of least square error made the text of SmolLM2 in int4 worse (KL 2.7
    # instead of 1.2), because its few large weights matter most.
    scaled = blocked / scales
    values = scaled.astype(FLOAT8) if packing.kind == FLOAT8.name else _rounded(scaled)
    return PackedBlocks(values.reshape(numbers.shape), scales[..., 0].astype(np.float32), None)


def _between_ends(blocked: np.ndarray, packing: Packing, shape: tuple[int, ...]) -> PackedBlocks:
    least, most = blocked.min(-1, keepdims=True), blocked.max(-1, keepdims=True)
    steps = 2 * _HIGHEST[packing.kind] + 1
    scales = np.where(most > least, most - least, 1.0) / steps
    lowest = -_HIGHEST[packing.kind] - 1
    values = _rounded((blocked - least) / scales + lowest)
    offsets = least - lowest * scales
    return PackedBlocks(
        values.reshape(shape),
        scales[..., 0].astype(np.float32),
        offsets[..., 0].astype(np.float32),
    )


def _rounded(scaled: np.ndarray) -> np.ndarray:
    return np.rint(scaled).astype(np.int8)


def fits(stored: Packing, wanted: Packing, inputs: int) -> bool:
    """Return True if `refined` can express rows of so many inputs in the wanted form."""
    narrower = stored.kind == "int4" and wanted.kind == "int8"
    whole = not (stored.block or inputs) % (wanted.block or inputs)
    return (stored.kind == wanted.kind or narrower) and wanted.offset >= stored.offset and whole


def refined(blocks: PackedBlocks, stored: Packing, wanted: Packing) -> PackedBlocks:
    """Re-express the same numbers in the wider form: smaller blocks, offsets of zero."""
    inputs = blocks.values.shape[-1]
    times = (stored.block or inputs) // (wanted.block or inputs)
    scales = np.repeat(blocks.scales, times, axis=-1)
    offsets = None if blocks.offsets is None else np.repeat(blocks.offsets, times, axis=-1)
    if wanted.offset and offsets is None:
        offsets = np.zeros_like(scales)
    return replace(blocks, scales=scales, offsets=offsets)


def has_transposed(source: WeightSource) -> bool:
    parts = getattr(source, "parts", None) or (getattr(source, "part", None),)
    return isinstance(source, Transposed) or any(has_transposed(p) for p in parts if p)


def quantization_of(
    quantize: Scheme | str | None, stored: Callable[[str], Packing | None] | None
) -> Quantization | None:
    """Return how QUANTIZE holds weights. Raises InvalidRequest for "stored" without checkpoint.

    stored: how the checkpoint stores a tensor, by name; None: there is none.
    """
    if isinstance(quantize, Scheme) or quantize is None:
        return quantize
    if stored is None:
        raise InvalidRequest(
            'QUANTIZE "stored" keeps a checkpoint\'s own quantisation, but there is no '
            'checkpoint: publish one, or give a scheme such as "int8"',
            param="overrides.QUANTIZE",
        )
    return AsStored(stored)
