"""What is written in fewer bits, and what cannot be written."""

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.gguf.writer import QUANTISED, write_gguf
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.gguf_case import config_of, weights_of, write_case
from tests.model_server.checkpoints.tiny_folder import random_weights, write_json, write_tiny

KINDS = {"q8_0": GGMLQuantizationType.Q8_0, "q4_0": GGMLQuantizationType.Q4_0}


def as_gguf(folder: Path, path: Path, dtype: str) -> GgufCheckpoint:
    with closing(open_checkpoint(str(folder))) as source:
        write_gguf(source, path, dict.fromkeys(source.names(), dtype), lambda progress: None)
    return GgufCheckpoint(path)


def write_wide(folder: Path) -> Path:
    """A folder whose matrices have whole blocks."""
    return write_tiny(folder, hidden_size=64, intermediate_size=96, head_dim=32)


def both(case: str, tmp_path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A case's tensors by GGUF's names as the file holds them, and as they are published."""
    convert(str(write_case(case, tmp_path / "a")), str(tmp_path / "x.gguf"))
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    return {tensor.name: tensor.data for tensor in reader.tensors}, weights_of(case)


def test_gpt_2s_products_are_stored_the_other_way_round(tmp_path: Path) -> None:
    stored, published = both("gpt2", tmp_path)
    for there, here in [("attn_qkv", "attn.c_attn"), ("ffn_down", "mlp.c_proj")]:
        wanted = published[f"h.1.{here}.weight"].T
        np.testing.assert_array_equal(stored[f"blk.1.{there}.weight"], wanted)
    np.testing.assert_array_equal(stored["position_embd.weight"], published["wpe.weight"])


def test_gpt_neox_has_all_queries_then_all_keys_then_all_values(tmp_path: Path) -> None:
    stored, published = both("gpt_neox", tmp_path)
    heads = config_of("gpt_neox")["num_attention_heads"]
    for part in ("weight", "bias"):
        fused = published[f"gpt_neox.layers.1.attention.query_key_value.{part}"]
        per_head = np.split(fused, heads)
        wanted = [np.split(head, 3)[index] for index in range(3) for head in per_head]
        np.testing.assert_array_equal(stored[f"blk.1.attn_qkv.{part}"], np.concatenate(wanted))


def test_gemmas_norms_are_stored_as_what_they_multiply_by(tmp_path: Path) -> None:
    stored, published = both("gemma3", tmp_path)
    for there, here in [
        ("output_norm", "model.norm"),
        ("blk.0.attn_q_norm", "model.layers.0.self_attn.q_norm"),
        ("blk.2.ffn_norm", "model.layers.2.pre_feedforward_layernorm"),
    ]:
        np.testing.assert_array_equal(stored[f"{there}.weight"], published[f"{here}.weight"] + 1)


def test_experts_are_stacked_in_order(tmp_path: Path) -> None:
    stored, published = both("mixtral", tmp_path)
    for there, here in [("gate", "w1"), ("down", "w2"), ("up", "w3")]:
        stack = stored[f"blk.1.ffn_{there}_exps.weight"]
        for expert, values in enumerate(stack):
            name = f"model.layers.1.block_sparse_moe.experts.{expert}.{here}.weight"
            np.testing.assert_array_equal(values, published[name])


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", 0), ("float16", 1), ("bfloat16", 32), ("q8_0", 7), ("q4_0", 2)]
)
def test_the_file_says_which_format_most_matrices_have(
    tmp_path: Path, dtype: str, kind: int
) -> None:
    as_gguf(write_wide(tmp_path / "a"), tmp_path / "x.gguf", dtype).close()
    field = gguf.GGUFReader(tmp_path / "x.gguf").fields["general.file_type"]
    assert int(field.parts[field.data[0]][0]) == kind


@pytest.mark.parametrize("dtype", QUANTISED)
def test_matrices_are_quantised_and_stay_so(tmp_path: Path, dtype: str) -> None:
    checkpoint = as_gguf(write_wide(tmp_path / "a"), tmp_path / "x.gguf", dtype)
    weights = random_weights(checkpoint.config)
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"):
        wanted = dequantize(quantize(weights[name], KINDS[dtype]), KINDS[dtype])
        np.testing.assert_array_equal(checkpoint.read(name), wanted)
        np.testing.assert_array_equal(checkpoint.read_packed(name).dequantized(), wanted)
    for name in weights:
        packing = checkpoint.packing(name)
        assert (packing is None) == (weights[name].ndim == 1), name
        assert packing is None or packing.kind == {"q8_0": "int8", "q4_0": "int4"}[dtype]


@pytest.mark.parametrize("dtype", QUANTISED)
def test_rotated_rows_are_quantised_rows(tmp_path: Path, dtype: str) -> None:
    """Of a region of whole blocks, in Hugging Face's order of rows."""
    checkpoint = as_gguf(write_wide(tmp_path / "a"), tmp_path / "x.gguf", dtype)
    name = "model.layers.1.self_attn.q_proj.weight"
    part = (slice(10, 50), slice(32, 64))
    packed = checkpoint.read_packed(name, part).dequantized()
    np.testing.assert_array_equal(packed, checkpoint.read(name)[part])
    np.testing.assert_array_equal(packed, checkpoint.read(name, part))


def test_a_transposed_tensor_is_read_as_numbers(tmp_path: Path) -> None:
    """Only this one's rows in the file are whole blocks; here they are its columns."""
    checkpoint = as_gguf(write_case("gpt2", tmp_path / "a"), tmp_path / "x.gguf", "q8_0")
    name, kind = "transformer.h.0.mlp.c_proj.weight", KINDS["q8_0"]
    published = weights_of("gpt2")["h.0.mlp.c_proj.weight"]
    wanted = dequantize(quantize(np.ascontiguousarray(published.T), kind), kind).T
    np.testing.assert_array_equal(checkpoint.read(name), wanted)
    part = (slice(5, 40), slice(2, 9))
    np.testing.assert_array_equal(checkpoint.read(name, part), wanted[part])
    assert checkpoint.packing(name) is None


def test_rows_without_whole_blocks_stay_half_precision(tmp_path: Path) -> None:
    checkpoint = as_gguf(write_tiny(tmp_path / "a"), tmp_path / "x.gguf", "q8_0")
    assert checkpoint.dtype("model.embed_tokens.weight") == "float16"


def test_experts_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    folder = write_case("mixtral", tmp_path / "a")
    weights = weights_of("mixtral")
    del weights["model.layers.0.block_sparse_moe.experts.1.w1.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts of model\.layers\.0.*not numbered from 0"):
        convert(str(folder), str(tmp_path / "x.gguf"))


def test_a_tensor_that_gguf_has_no_name_for_is_refused(tmp_path: Path) -> None:
    folder = write_case("llama_tied", tmp_path / "a")
    extra = {"model.layers.0.extra.weight": np.zeros(3, np.float32)}
    save_file(weights_of("llama_tied") | extra, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"no name for llama's tensor model\.layers\.0\.extra"
    ):
        convert(str(folder), str(tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "yarn", "factor": 4.0, "attention_factor": 1.0},
        {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 4.0},
        {"type": "dynamic", "factor": 2.0},
    ],
)
def test_a_rope_scaling_that_would_be_lost_is_refused(
    tmp_path: Path, scaling: dict[str, object]
) -> None:
    folder = write_tiny(tmp_path / "a", rope_scaling=scaling)
    with pytest.raises(CheckpointError, match="cannot be written as GGUF"):
        convert(str(folder), str(tmp_path / "x.gguf"))


def test_gemma_2_without_its_caps_is_refused(tmp_path: Path) -> None:
    folder = write_case("gemma2", tmp_path / "a")
    config = open_checkpoint(str(folder)).config
    write_json(folder / "config.json", config | {"final_logit_softcapping": None})
    with pytest.raises(CheckpointError, match="without final_logit_softcapping"):
        convert(str(folder), str(tmp_path / "x.gguf"))
