"""Random weights in the shapes of published models, in the files that the peers read.

Speed does not depend on what the numbers are; they are drawn once and cut out anew for each tensor.
The tokenizer is the demo model's. Ids that it lacks get rows so small that no answer has them.
"""

from __future__ import annotations

import math
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.checkpoints.writing import GGUF, HUGGINGFACE, write_checkpoint
from model_server.text.tokenizer import HfTokenizer
from tests.demo_model import demo_model
from tests.tools.bench.peers.dimensions import Dimensions
from tests.tools.bench.peers.weights import FOLDER, Weights

_DRAWN = 2**24 - 3  # numbers; odd, so that no two rows of a matrix are alike
_SPREAD = 0.02
_RARE = 0.25  # factor of rows that no text has


class RandomCheckpoint:
    """A checkpoint that is nowhere: every read makes the same numbers again."""

    format = "safetensors"
    folder: Path | None = None

    def __init__(self, dimensions: Dimensions) -> None:
        with closing(GgufCheckpoint(demo_model())) as demo:
            self._tokenizer = demo.tokenizer()
        numbers = np.random.default_rng(0).standard_normal(_DRAWN, np.float32) * _SPREAD
        self._drawn = numbers.astype(ml_dtypes.bfloat16)
        self._shapes = dimensions.tensors()
        self._dimensions = dimensions

    @property
    def generation_config(self) -> dict[str, Any]:
        return {}

    @property
    def config(self) -> dict[str, Any]:
        return self._dimensions.config | {"eos_token_id": min(self._tokenizer.eos_ids)}

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        return "bfloat16"

    def nbytes(self, name: str) -> int:
        return 2 * math.prod(self.shape(name))

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        assert region is None
        assert out is None
        shape = self.shape(name)
        if len(shape) == 1:
            return np.ones(shape, ml_dtypes.bfloat16)
        made = self._cut(name, math.prod(shape)).reshape(shape)
        if shape[0] == self._dimensions.vocabulary:
            made[self._tokenizer.vocab_size :] *= ml_dtypes.bfloat16(_RARE)
        return made

    def _cut(self, name: str, count: int) -> np.ndarray:
        start = zlib.crc32(name.encode()) % (_DRAWN // 2)
        return np.resize(self._drawn[start:], count)

    def packing(self, name: str) -> Packing | None:
        return None

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        raise NotImplementedError(name)  # `packing` says that none is

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    def chat_template(self) -> None:
        return None

    def close(self) -> None: ...


def random_weights(dimensions: Dimensions) -> list[Weights]:
    """Name the files of both formats; `write_missing` writes those that are read."""
    stem = dimensions.title.replace(", ", "-").replace(" ", "-")
    bf16, f16, q4 = (FOLDER / f"{stem}.{kind}.gguf" for kind in ("BF16", "F16", "Q4_0"))
    experts = dimensions.experts > 0
    return [
        Weights("bfloat16", bf16, f16, FOLDER / stem, experts=experts),
        Weights("4-bit", q4, q4, experts=experts),
    ]


_DTYPES = {".BF16.gguf": "bfloat16", ".F16.gguf": "float16", ".Q4_0.gguf": "q4_0"}


def write_missing(dimensions: Dimensions, path: Path) -> None:
    """Write this file, or folder in Hugging Face's format, unless an earlier race did."""
    if path.exists():
        return
    suffix = next((each for each in _DTYPES if path.name.endswith(each)), "")
    to = GGUF if suffix else HUGGINGFACE
    write_checkpoint(RandomCheckpoint(dimensions), path, to, dtype=_DTYPES.get(suffix, "bfloat16"))
