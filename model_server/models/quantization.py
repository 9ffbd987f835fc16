"""Which weights are quantised, how, and the arithmetic of doing so while loading.

Two ways: a scheme that any checkpoint is brought into, or what the checkpoint stores already, kept.
Numpy only; the products are in `quantized.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model_server.checkpoints.packed import FLOAT8, PackedBlocks, Packing
from model_server.models.source import Source, Transposed
from sax.errors import InvalidRequest

STORED = "stored"
_SCHEME = re.compile(r"(int8|int4|float8)(?::([1-9]\d*))?")
_HIGHEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0}


class Quantization(Protocol):
    """Decides how one weight is held."""

    def packing_of(self, source: Source, shape: tuple[int, ...], *, table: bool) -> Packing | None:
        """`table`: rows are vocabulary entries. None: the weight stays in plain numbers."""
        ...

    def check(self, packings: Iterable[Packing]) -> None:
        """Raises InvalidRequest if none of a model's quantised weights is as was asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Scheme:
    """Every matrix of every checkpoint in the same kind, quantised while it is loaded."""

    kind: str
    block: int | None  # columns that share a scale; None: the whole row

    def packing_of(self, source: Source, shape: tuple[int, ...], *, table: bool) -> Packing | None:
        if table:
            # Every logit goes through the table: eight bits there cost little and keep the text.
            return Packing("int8" if self.kind == "int4" else self.kind, None, False)
        whole_blocks = shape[-1] % (self.block or 1) == 0
        if not whole_blocks or (self.kind == "int4" and shape[-1] % 2):  # two to a byte
            return None
        # Sixteen steps are too few to waste on the side of zero where a small block has nothing.
        return Packing(self.kind, self.block, self.kind == "int4" and self.block is not None)

    def check(self, packings: Iterable[Packing]) -> None:
        if not any((each.kind, each.block) == (self.kind, self.block) for each in packings):
            columns = f"multiples of {self.block}" if self.block else "even numbers"
            raise InvalidRequest(
                f"QUANTIZE fits no matrix of this model: none has {columns} of columns; give "
                "another block, or none for a scale per row",
                param="overrides.QUANTIZE",
            )


@dataclass(frozen=True, slots=True)
class Stored:
    """What the checkpoint stores quantised stays so; parts of one weight share the wider form."""

    packing: Callable[[str], Packing | None]  # of a tensor, by its name

    def packing_of(self, source: Source, shape: tuple[int, ...], *, table: bool) -> Packing | None:
        found = [self.packing(name) for name in source.names]
        if not found or None in found or _has_transposed(source):
            return None
        return common([packing for packing in found if packing is not None], shape[-1])

    def check(self, packings: Iterable[Packing]) -> None:
        if not any(packings):
            raise InvalidRequest(
                'QUANTIZE "stored" keeps what a checkpoint has quantised, and this one has nothing '
                'that can be kept so: leave it out, or give a scheme such as "int8"',
                param="overrides.QUANTIZE",
            )


def common(packings: list[Packing], inputs: int) -> Packing | None:
    """One form that holds all of them exactly; None if there is none."""
    kinds = {packing.kind for packing in packings}
    if "float8_e4m3fn" in kinds and len(kinds) > 1:
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
    """The QUANTIZE override: null, "stored", or a scheme. Raises InvalidRequest."""
    if text is None or text == STORED:
        return text
    match = _SCHEME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidRequest(
            f'QUANTIZE is "int8", "int4" or "float8", alone (a scale per row) or with the columns '
            f'that share a scale ("int4:32"), or "stored" to keep what the checkpoint stores '
            f"quantised, or null; not {text!r}",
            param="overrides.QUANTIZE",
        )
    kind = "float8_e4m3fn" if match[1] == "float8" else match[1]
    return Scheme(kind, int(match[2]) if match[2] else None)


def quantize(numbers: np.ndarray, packing: Packing) -> PackedBlocks:
    """f32[..., out, in] to small numbers.

    Symmetric, the largest of a block becoming the largest there is; with offsets the least of a
    block becomes the least.
    """
    *outer, inputs = numbers.shape
    blocked = np.asarray(numbers, np.float32).reshape(*outer, -1, packing.block or inputs)
    if packing.offset:
        return _between_ends(blocked, packing, numbers.shape)
    highest = np.abs(blocked).max(-1, keepdims=True)
    scales = np.where(highest > 0, highest, 1.0) / _HIGHEST[packing.kind]
    # No clipping: with the scales of least square error the text of SmolLM2 in int4 became worse
    # (KL 2.7 instead of 1.2), because its few large weights carry the most.
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


def refined(blocks: PackedBlocks, stored: Packing, wanted: Packing) -> PackedBlocks:
    """The same numbers in the wider form: smaller blocks, offsets of zero."""
    inputs = blocks.values.shape[-1]
    times = (stored.block or inputs) // (wanted.block or inputs)
    scales = np.repeat(blocks.scales, times, axis=-1)
    offsets = None if blocks.offsets is None else np.repeat(blocks.offsets, times, axis=-1)
    if wanted.offset and offsets is None:
        offsets = np.zeros_like(scales)
    return PackedBlocks(blocks.values, scales, offsets)


def _has_transposed(source: Source) -> bool:
    parts = getattr(source, "parts", None) or (getattr(source, "part", None),)
    return isinstance(source, Transposed) or any(_has_transposed(p) for p in parts if p)
