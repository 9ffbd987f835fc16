"""Reading into an array puts there what reading alone returns, in every format."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf_case import write_case
from tests.model_server.checkpoints.orbax_trees import flax_llama, save
from tests.model_server.checkpoints.tiny_folder import (
    CONFIG,
    random_weights,
    tokenizer_json,
    write_json,
    write_tiny,
)

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def flax(room: Path) -> Path:
    save(room / "flax", flax_llama(random_weights(CONFIG | SIZES)))
    write_json(room / "flax" / "config.json", CONFIG | SIZES)
    (room / "flax" / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    return room / "flax"


def converted(name: str, to: str | None = None, dtype: str = "same") -> Callable[[Path], Path]:
    def make(room: Path) -> Path:
        source = write_tiny(room / "folder", **SIZES)
        convert(str(source), str(room / name), to=to, dtype=dtype)
        return room / name

    return make


def family(case: str) -> Callable[[Path], Path]:
    def make(room: Path) -> Path:
        convert(str(write_case(case, room / "folder")), str(room / "x.gguf"))
        return room / "x.gguf"

    return make


FORMATS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda room: write_tiny(room / "folder", **SIZES, vocab_size=9000),  # bands: 2 MB
    "bfloat16": lambda room: write_tiny(room / "folder", dtype="bfloat16", **SIZES),
    "orbax": converted("orbax", to="orbax"),
    "flax": flax,
    "gguf": converted("x.gguf"),
    "q4_0": converted("x.gguf", dtype="q4_0"),
    "gguf of gpt2, transposed": family("gpt2"),
    "gguf of gemma, one added": family("gemma2"),
    "gguf of deepseek, split": family("deepseek_v3"),
}


@pytest.fixture(scope="module", params=FORMATS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    with closing(open_checkpoint(str(FORMATS[request.param](tmp_path_factory.mktemp("x"))))) as it:
        yield it


@each_case("dtype", [np.float32, ml_dtypes.bfloat16])
@each_case("order", ["C", "F", "within a larger one"])
def test_the_same_numbers_arrive(checkpoint: Checkpoint, dtype: type, order: str) -> None:
    rng = np.random.default_rng(3)
    for name in checkpoint.names():
        bounds = [np.sort(rng.integers(0, size + 1, 2)) for size in checkpoint.shape(name)]
        for region in (None, tuple(slice(int(start), int(stop)) for start, stop in bounds)):
            wanted = checkpoint.read(name, region)
            out = room_for(wanted.shape, dtype, order)
            assert checkpoint.read(name, region, out) is not None
            np.testing.assert_array_equal(out, wanted.astype(dtype), err_msg=f"{name} {region}")


def room_for(shape: tuple[int, ...], dtype: type, order: str) -> np.ndarray:
    if order == "C":
        return np.full(shape, 77, dtype)
    if order == "F":
        return np.full(shape, 77, dtype, order="F")
    return np.full([size + 2 for size in shape], 77, dtype)[tuple(slice(1, n + 1) for n in shape)]
