"""Tensors in Hugging Face's terms: experts, transposed and split ones, and what does not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.gguf.header import read_header
from model_server.checkpoints.tensor_file import TensorFile
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.gguf_case import weights_of, write_case

KV_B = "model.layers.1.self_attn.kv_b_proj.weight"


def rewritten(
    case: str, tmp_path: Path, change: Any, metadata: Mapping[str, Any] | None = None
) -> Path:
    """A case's file with other tensors: `change` takes and gives {GGUF name: numbers}."""
    convert(str(write_case(case, tmp_path / "folder")), str(tmp_path / "first.gguf"))
    file = TensorFile(tmp_path / "first.gguf")
    header = read_header(file)
    given = {
        name: file.read(t.offset, t.nbytes, name).view(np.float32).reshape(t.shape)
        for name, t in header.tensors.items()
    }
    name = header.metadata["general.architecture"]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", name)
    for key, value in {**header.metadata, **(metadata or {})}.items():
        if key.startswith(f"{name}."):
            kind = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            kind.get(type(value), writer.add_string)(key, value)
    for name, values in change(given).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "x.gguf"


def test_one_expert_is_a_slice_of_the_stack(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten("mixtral", tmp_path, dict))
    for name, values in weights_of("mixtral").items():
        np.testing.assert_array_equal(checkpoint.read(name), values)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    part = (slice(5, 17), slice(3, 40))
    np.testing.assert_array_equal(checkpoint.read(name, part), weights_of("mixtral")[name][part])


@pytest.mark.parametrize("case", ["gpt2", "gpt_neox", "llama_untied_mqa", "gemma3"])
def test_regions_are_of_the_published_layout(case: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten(case, tmp_path, dict))
    for name in checkpoint.names():
        whole = checkpoint.read(name)
        assert whole.shape == checkpoint.shape(name)
        assert whole.nbytes == checkpoint.nbytes(name)
        assert str(whole.dtype) == checkpoint.dtype(name)
        part = tuple(slice(size // 5, size - size // 3) for size in whole.shape)
        np.testing.assert_array_equal(checkpoint.read(name, part), whole[part])
        np.testing.assert_array_equal(checkpoint.read(name, part[:1]), whole[part[0]])


def split_kv_b(config: Mapping[str, Any], *, keep: bool = False) -> Any:
    """What newer converters do to kv_b_proj."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]

    def change(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        for name, values in tensors.items():
            if not name.endswith("attn_kv_b.weight"):
                out[name] = values
                continue
            per_head = values.reshape(heads, -1, values.shape[-1])
            keys, rest = per_head[:, :nope], per_head[:, nope:]
            keys = np.ascontiguousarray(keys.swapaxes(1, 2))
            out[name.replace("kv_b", "k_b")] = keys
            out[name.replace("kv_b", "v_b")] = np.ascontiguousarray(rest)
            out |= {name: values} if keep else {}
        return out

    return change


@pytest.mark.parametrize("keep", [False, True])
def test_deepseeks_split_projection_is_put_together(tmp_path: Path, keep: bool) -> None:
    config = GgufCheckpoint(rewritten("deepseek_v3", tmp_path, dict)).config
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    newer = {  # as if queries met the latent itself
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": latent + rope,
        "deepseek2.attention.value_length": latent,
        "deepseek2.attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "deepseek2.attention.value_length_mla": config["v_head_dim"],
    }
    (tmp_path / "new").mkdir()
    path = rewritten("deepseek_v3", tmp_path / "new", split_kv_b(config, keep=keep), newer)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.config == config
    values = weights_of("deepseek_v3")[KV_B]
    np.testing.assert_array_equal(checkpoint.read(KV_B), values)
    for part in [(slice(3, 11), slice(2, 5)), (slice(0, 0), slice(0, 4)), (slice(7, 31),)]:
        np.testing.assert_array_equal(checkpoint.read(KV_B, part), values[part])
    assert checkpoint.packing(KV_B) is None


def test_half_of_a_split_projection_is_named(tmp_path: Path) -> None:
    config = GgufCheckpoint(rewritten("deepseek_v3", tmp_path, dict)).config

    def lose(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        changed = split_kv_b(config)(tensors)
        del changed["blk.1.attn_v_b.weight"]
        return changed

    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match=r"x\.gguf.*blk\.1\.attn_v_b\.weight.*is missing"):
        GgufCheckpoint(rewritten("deepseek_v3", tmp_path / "new", lose))


def test_a_tensor_of_too_many_dimensions_is_named(tmp_path: Path) -> None:
    def deepen(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {"blk.0.ffn_up.weight": tensors["blk.0.ffn_up.weight"][None]}

    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight has the shape \[1, "):
        GgufCheckpoint(rewritten("llama_tied", tmp_path, deepen))


def test_a_kind_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key in ("embedding_length", "block_count", "attention.head_count", "context_length"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_uint32("llama.feed_forward_length", 4)
    writer.add_uint32("llama.attention.key_length", 2)
    writer.add_layer_norm_rms_eps(1e-5)
    kind = GGMLQuantizationType.Q8_1  # of products only, never of a file
    writer.add_tensor("token_embd.weight", np.zeros((4, 40), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match=r"token_embd\.weight is stored as Q8_1.*Q4_K.*IQ4_XS"
    ):
        GgufCheckpoint(tmp_path / "x.gguf")


def test_what_is_not_stored_in_blocks_of_its_rows_has_no_packing(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten("gpt2", tmp_path, dict))
    name = checkpoint.names()[0]
    assert checkpoint.packing(name) is None
    with pytest.raises(CheckpointError, match=r"x\.gguf.*not stored in blocks"):
        checkpoint.read_packed(name)
