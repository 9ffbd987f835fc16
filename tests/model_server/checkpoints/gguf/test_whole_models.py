"""A model of any quantised kind computes what the `gguf` package's numbers compute."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from tests.model_server.checkpoints.gguf.test_kinds import blocks
from tests.model_server.tiny import logits_of

PROMPT = np.array([1, 7, 2, 8, 9, 3, 5])
WIDTH = 256
# By day one of a grid with offsets, one of a table and one of float4.
FEW = ("IQ1_S", "IQ4_XS", "NVFP4")
NEW = ("IQ", "TQ", "NV", "MX")
EACH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind.name in FEW else pytest.mark.nightly, id=kind.name)
        for kind in KINDS
        if kind.name.startswith(NEW)
    ],
)


def write(kind: GGMLQuantizationType, place: Path) -> tuple[Path, Path]:
    """A Llama of random blocks, and one of the numbers they stand for."""
    rng = np.random.default_rng(0)
    packed: dict[str, Any] = {"token_embd": rng.standard_normal((16, WIDTH)).astype(np.float32)}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        packed[name] = np.ones(WIDTH, np.float32)
    numbers = dict(packed)
    for seed, name in enumerate(("attn_q", "attn_k", "attn_v", "attn_output")):
        packed[f"blk.0.{name}"] = _matrix(kind, seed)
    for seed, name in enumerate(("ffn_gate", "ffn_up", "ffn_down"), 4):
        packed[f"blk.0.{name}"] = _matrix(kind, seed)
    numbers |= {n: dequantize(raw, kind) for n, raw in packed.items() if n not in numbers}
    return (
        _file(place / "packed.gguf", packed, kind),
        _file(place / "plain.gguf", numbers, kind),
    )


def _matrix(kind: GGMLQuantizationType, seed: int) -> np.ndarray:
    return blocks(kind, seed, WIDTH * WIDTH // KINDS[kind].size).reshape(WIDTH, -1)


def _file(path: Path, tensors: dict[str, Any], kind: GGMLQuantizationType) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"embedding_length": WIDTH, "feed_forward_length": WIDTH, "block_count": 1}
    for key, value in {**sizes, "attention.head_count": 4, "context_length": 32}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, values in tensors.items():
        raw = kind if values.dtype == np.uint8 else None
        writer.add_tensor(f"{name}.weight", values, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def run(path: Path, **overrides: str) -> tuple[np.ndarray, set[Any]]:
    """Logits, and how its matrices are held."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"', **overrides})
        module = recipe.blueprint(checkpoint=checkpoint)
        read = read_weights(module.declarations, checkpoint, lambda _: None)
    leaves = [as_bytes(leaf) for leaf in read]

    def logits(leaves: list[jax.Array]) -> jax.Array:
        return logits_of(module.assemble(leaves), recipe, PROMPT)

    held = {each.packing for each in module.declarations if "attention.out" in each.path}
    return np.asarray(jax.jit(logits)(leaves)), held


@EACH
def test_logits_are_those_of_the_numbers(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    packed, plain = write(kind, tmp_path)
    wanted, _ = run(plain)
    found, held = run(packed)
    assert held == {None}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-5)
    found, held = run(packed, QUANTIZE='"stored"')
    packing = KINDS[kind].packing
    whole = packing.block == WIDTH  # a block of all columns is a row
    assert held == {replace(packing, block=None) if whole else packing}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-5)


@EACH
def test_native_products_lose_no_more_than_bfloat16_does(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    packed, plain = write(kind, tmp_path)
    wanted, _ = run(plain)
    found, _ = run(packed, QUANTIZE='"stored"', DTYPE='"bfloat16"')
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max(), rtol=0)
