"""GGUF metadata becomes the config.json that the model's makers would have written."""

from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from model_server.checkpoints.gguf_architecture import ARCHITECTURES, LLAMA
from model_server.checkpoints.gguf_config import architecture_of, config_of, llama3_factors
from model_server.checkpoints.gguf_header import GgufHeader, GgufTensor
from sax.errors import CheckpointError

METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 512,
    "llama.rope.freq_base": 500000.0,
    "tokenizer.ggml.eos_token_id": 7,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(
    changes: dict[str, Any] | None = None, factors: np.ndarray | None = None, **tensors: Any
):
    names = {"token_embd.weight": (100, 64)} | tensors
    header = GgufHeader(
        {**METADATA, **(changes or {})},
        {
            name: GgufTensor(name, shape, GGMLQuantizationType.F32, 0, 0)
            for name, shape in names.items()
        },
    )
    return config_of(header, LLAMA, "float32", factors)


def test_the_keys_are_hugging_faces() -> None:
    assert config() == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": 100,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": 7,
    }


def test_heads_may_have_a_size_of_their_own() -> None:
    assert config({"llama.attention.key_length": 10})["head_dim"] == 10


def test_without_key_heads_every_query_has_its_own() -> None:
    header = {key: v for key, v in METADATA.items() if not key.endswith("head_count_kv")}
    tensors = {"token_embd.weight": GgufTensor("", (9, 64), GGMLQuantizationType.F32, 0, 0)}
    read = config_of(GgufHeader(header, tensors), LLAMA, "float32", None)
    assert read["num_key_value_heads"] == 8


def test_biases_show_in_the_tensors() -> None:
    read = config(**{"blk.0.attn_q.bias": (64,), "output.weight": (100, 64)})
    assert read["attention_bias"]
    assert not read["mlp_bias"]
    assert not read["tie_word_embeddings"]


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_factors(factor: float) -> None:
    scaling = LLAMA3 | {"factor": factor}
    factors = llama3_factors(500000.0, 64, scaling)
    read = config({"llama.attention.key_length": 64}, factors)
    assert read["rope_scaling"] == scaling


def test_llama3_factors_keep_fast_rotations_and_stretch_slow_ones() -> None:
    factors = llama3_factors(500000.0, 64, LLAMA3)
    assert factors[0] == 1.0
    assert factors[-1] == 32.0
    assert (np.diff(factors) >= 0).all()


def test_other_factors_are_refused() -> None:
    with pytest.raises(CheckpointError, match="not those of Llama 3"):
        config(factors=np.array([1, 2, 3, 4], np.float32))


def test_linear_and_yarn_scaling_are_translated() -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert config(linear)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    yarn = {**linear, "llama.rope.scaling.type": "yarn"}
    yarn["llama.rope.scaling.original_context_length"] = 128
    assert config(yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 128,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", None),
        ("embedding_length", 0),
        ("embedding_length", -4),
        ("embedding_length", "64"),
        ("block_count", True),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", np.array([2, 2])),
        ("attention.key_length", 7),
        ("rope.dimension_count", 4),
        ("rope.scaling.type", "longrope"),
        ("expert_count", 8),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(CheckpointError):
        config({f"llama.{key}": value, "llama.rope.scaling.factor": 2.0})


@pytest.mark.parametrize("name", ["mamba", None, 5, ["llama"]])
def test_an_unknown_architecture_is_named(name: object) -> None:
    with pytest.raises(CheckpointError, match="supported from GGUF: llama"):
        architecture_of(GgufHeader({"general.architecture": name}, {}))


@pytest.mark.parametrize("architecture", ARCHITECTURES.values())
def test_names_translate_both_ways(architecture: Any) -> None:
    stems = [*architecture.tensors, *(f"blk.17.{stem}" for stem in architecture.layer_tensors)]
    for stem in stems:
        for part in ("weight", "bias"):
            name = architecture.hf_name(f"{stem}.{part}")
            assert name is not None
            assert architecture.gguf_name(name) == f"{stem}.{part}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "weight",
        "nothing.weight",
        "blk.0.weight",
        "blk.x.attn_q.weight",
        "blk.01.attn_q.weight",
        "blk.0.attn_q.scale",
    ],
)
def test_names_nobody_gave_are_none(name: str) -> None:
    assert LLAMA.hf_name(name) is None


def test_the_rotated_projections_say_how_many_heads_they_have() -> None:
    heads = {
        name: LLAMA.heads_key(f"model.layers.3.self_attn.{name}_proj.weight") for name in "qkvo"
    }
    assert heads == {
        "q": "num_attention_heads",
        "k": "num_key_value_heads",
        "v": None,
        "o": None,
    }
    assert LLAMA.heads_key("model.norm.weight") is None
