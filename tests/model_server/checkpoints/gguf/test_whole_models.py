"""A model of any quantised kind computes what the `gguf` package's numbers compute.

A Llama of every kind, and models of experts and of latent attention of one kind of each layout.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from tests.model_server.checkpoints.gguf.test_converted import add
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


# One of each layout: int4 with and without offsets, int8, float4, in blocks of several sizes.
LAYOUTS = ("IQ4_XS", "MXFP4", "NVFP4", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "TQ2_0")


class Structure(NamedTuple):
    """What a model of one layer has, beside what all have."""

    architecture: str
    quantised: dict[str, tuple[int, ...]]  # of the layer
    sizes: dict[str, Any] = {}
    norms: dict[str, int] = {}  # of the layer, of so many numbers
    plain: dict[str, tuple[int, ...]] = {}  # whose numbers are random
    # Columns of some matrices are fewer than a block of 256.
    others: dict[str, GGMLQuantizationType] = {}
    # Parts of the paths of weights that are held as they are stored
    held: tuple[str, ...] = ("attention.out",)


SQUARE, EXPERTS = (WIDTH, WIDTH), 4
ROUTER = {"blk.0.ffn_gate_inp.weight": (EXPERTS, WIDTH)}
OF_EXPERTS = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), (EXPERTS, *SQUARE))
COUNTS = {"expert_count": EXPERTS, "expert_feed_forward_length": WIDTH, "expert_used_count": 2}
LLAMA = Structure(
    "llama",
    dict.fromkeys(
        (*("attn_q", "attn_k", "attn_v", "attn_output"), *("ffn_gate", "ffn_up", "ffn_down")),
        SQUARE,
    ),
)
_EXPERTS = Structure(
    "qwen3moe",
    {**dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), SQUARE), **OF_EXPERTS},
    COUNTS,
    {"attn_q_norm": 64, "attn_k_norm": 64},
    ROUTER,
    held=("attention.out", "attention.qkv", "ffw.experts"),
)
_LATENT, _ROTATED, _HEADS, _KEYS = WIDTH, 32, 4, 64
_DEEPSEEK = Structure(
    "deepseek2",
    {
        "attn_q_a": SQUARE,
        "attn_q_b": (_HEADS * (_KEYS + _ROTATED), WIDTH),
        "attn_kv_a_mqa": (_LATENT + _ROTATED, WIDTH),
        "attn_k_b": (_HEADS, _LATENT, _KEYS),
        "attn_v_b": (_HEADS, 64, _LATENT),
        "attn_output": SQUARE,
        **OF_EXPERTS,
        **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"), SQUARE),
    },
    {
        **COUNTS,
        "attention.key_length": _LATENT + _ROTATED,
        "attention.key_length_mla": _KEYS + _ROTATED,
        "attention.kv_lora_rank": _LATENT,
        "attention.q_lora_rank": WIDTH,
        "attention.value_length": _LATENT,
        "attention.value_length_mla": 64,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "rope.dimension_count": _ROTATED,
    },
    {"attn_q_a_norm": WIDTH, "attn_kv_a_norm": _LATENT},
    ROUTER | {"blk.0.exp_probs_b.bias": (EXPERTS,)},
    {"attn_k_b": GGMLQuantizationType.Q8_0},
    (
        *("attention.down", "attention.out", "attention.queries", "attention.query_down"),
        *("ffw.experts", "ffw.shared"),
    ),
)
_STREAMS = 2
STRUCTURES = {
    "experts": _EXPERTS,
    "latent": _DEEPSEEK,
    # Gates and ups of experts are one tensor of the folder.
    "joined experts": _DEEPSEEK._replace(
        architecture="hy_v4",
        quantised=_DEEPSEEK.quantised
        | {
            "attn_gate": SQUARE,
            "indexer.attn_k": (64, WIDTH),
            "indexer.attn_q_b": SQUARE,
        },
        sizes=_DEEPSEEK.sizes
        | {
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 4,
            "attention.indexer.types": [True],
            "hyper_connection.count": _STREAMS,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 2.0,
            "swiglu_clamp_exp": [10.0],
        },
        norms=_DEEPSEEK.norms | {"indexer.k_norm": 64},
        plain=_DEEPSEEK.plain
        | {
            "blk.0.attn_sinks.weight": (_HEADS,),
            "blk.0.indexer.k_norm.bias": (64,),
            "blk.0.indexer.proj.weight": (4, WIDTH),
            **{
                f"{at}_{part}.weight": shape
                for at, shares in (("output_hc", 1), ("blk.0.hc_attn", 2), ("blk.0.hc_ffn", 2))
                for part, shape in (
                    ("base", (shares * _STREAMS,)),
                    ("fn", (shares * _STREAMS, _STREAMS * WIDTH)),
                    ("scale", (shares,)),
                )
            },
        },
    ),
}


BY_STRUCTURE = [
    pytest.param(name, kind, marks=[] if (name, kind) in by_day else pytest.mark.nightly)
    for by_day in [{("experts", "MXFP4"), ("latent", "Q4_K"), ("joined experts", "Q4_K")}]
    for name in STRUCTURES
    for kind in LAYOUTS
]


def write(
    kind: GGMLQuantizationType, place: Path, structure: Structure = LLAMA
) -> tuple[Path, Path]:
    """A model of random blocks, and one of the numbers they stand for."""
    rng = np.random.default_rng(0)
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH, **structure.norms}
    plain = {
        "token_embd.weight": rng.standard_normal((16, WIDTH)).astype(np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        **{f"blk.0.{name}.weight": np.ones(size, np.float32) for name, size in norms.items()},
        **{
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in structure.plain.items()
        },
    }
    kinds = {
        f"blk.0.{name}.weight": structure.others.get(name, kind) for name in structure.quantised
    }
    packed = {
        f"blk.0.{name}.weight": _matrix(structure.others.get(name, kind), seed, shape)
        for seed, (name, shape) in enumerate(structure.quantised.items())
    }
    numbers = {name: dequantize(raw, kinds[name]) for name, raw in packed.items()}
    return (
        _file(place / "packed.gguf", structure, plain | packed, kinds),
        _file(place / "plain.gguf", structure, plain | numbers, {}),
    )


def _matrix(kind: GGMLQuantizationType, seed: int, shape: tuple[int, ...]) -> np.ndarray:
    *rows, columns = shape
    count = math.prod(rows) * columns // KINDS[kind].size
    return blocks(kind, seed, count).reshape(*rows, -1)


def _file(
    path: Path,
    structure: Structure,
    tensors: dict[str, np.ndarray],
    kinds: dict[str, GGMLQuantizationType],
) -> Path:
    writer = gguf.GGUFWriter(path, structure.architecture)
    sizes = {"embedding_length": WIDTH, "feed_forward_length": WIDTH, "block_count": 1}
    sizes |= {"attention.head_count": 4, "context_length": 32, **structure.sizes}
    metadata = {f"{structure.architecture}.{key}": value for key, value in sizes.items()}
    for key, value in metadata.items():
        add(writer, key, value)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def run(
    path: Path, parts: tuple[str, ...] = LLAMA.held, **overrides: str
) -> tuple[np.ndarray, set[Any]]:
    """Logits, and how matrices are held, of whose paths these are parts."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"', **overrides})
        module = recipe.blueprint(checkpoint=checkpoint)
        read = read_weights(module.declarations, checkpoint, lambda _: None)
    leaves = [as_bytes(leaf) for leaf in read]

    def logits(leaves: list[jax.Array]) -> jax.Array:
        return logits_of(module.assemble(leaves), recipe, PROMPT)

    held = {
        each.packing
        for each in module.declarations
        if len(each.shape) > 1 and any(part in each.path for part in parts)
    }
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


@pytest.mark.parametrize(("name", "kind"), BY_STRUCTURE)
def test_other_structures_compute_the_numbers_and_hold_what_is_stored(
    name: str, kind: str, tmp_path: Path
) -> None:
    structure, stored = STRUCTURES[name], GGMLQuantizationType[kind]
    packed, plain = write(stored, tmp_path, structure)
    wanted, _ = run(plain)
    most = np.abs(wanted).max()
    np.testing.assert_allclose(run(packed)[0], wanted, atol=1e-5 * most, rtol=1e-5)
    found, held = run(packed, structure.held, QUANTIZE='"stored"')
    packing = KINDS[stored].packing
    whole = packing.block == WIDTH  # whose sums are rounded otherwise: once for a row
    assert held == {replace(packing, block=None) if whole else packing}
    loss = 1e-4 if whole else 1e-5
    np.testing.assert_allclose(found, wanted, atol=loss * most, rtol=loss)
