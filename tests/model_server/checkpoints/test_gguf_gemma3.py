"""The real Gemma 3 270M: four quantised kinds, as their own package and its makers have them."""

from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.gguf.header import read_header
from model_server.checkpoints.tensor_file import TensorFile
from tests.real_models import gemma3_270m

PUBLISHED = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


@pytest.fixture(scope="module")
def path() -> Path:
    return gemma3_270m()


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> GgufCheckpoint:
    return GgufCheckpoint(path)


def test_the_configuration_is_the_published_one(checkpoint: GgufCheckpoint) -> None:
    assert PUBLISHED.items() <= checkpoint.config.items()


def test_every_layers_numbers_are_the_gguf_packages(path: Path, checkpoint: GgufCheckpoint) -> None:
    """Of norms one less: the file holds what they multiply by."""
    places = {
        "attn_output": "self_attn.o_proj",
        "attn_q": "self_attn.q_proj",
        "attn_v": "self_attn.v_proj",
        "ffn_down": "mlp.down_proj",
        "attn_q_norm": "self_attn.q_norm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    seen, file = set(), TensorFile(path)
    for tensor in read_header(file).tensors.values():
        _, layer, stem, _ = f"{tensor.name}...".split(".", 3)
        if stem not in places or layer not in ("0", "2", "17"):
            continue
        raw = file.read(tensor.offset, tensor.nbytes, tensor.name).reshape(tensor.shape[0], -1)
        wanted = dequantize(raw, tensor.kind).reshape(tensor.shape) - stem.endswith("norm")
        name = f"model.layers.{layer}.{places[stem]}.weight"
        np.testing.assert_array_equal(checkpoint.read(name), wanted)
        if checkpoint.packing(name) is not None:
            packed = checkpoint.read_packed(name).dequantized()
            np.testing.assert_array_equal(packed, wanted)
        seen.add(tensor.kind.name)
    assert seen == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}


def test_rows_of_the_large_embedding_can_be_read_alone(
    path: Path, checkpoint: GgufCheckpoint
) -> None:
    name, file = "model.embed_tokens.weight", TensorFile(path)
    assert checkpoint.shape(name) == (262144, 640)
    tensor = read_header(file).tensors["token_embd.weight"]
    row = tensor.nbytes // 262144
    raw = file.read(tensor.offset + 262000 * row, 144 * row, name).reshape(144, row)
    found = checkpoint.read(name, (slice(262000, 262144), slice(100, 300)))
    np.testing.assert_array_equal(found, dequantize(raw, tensor.kind)[:, 100:300])
