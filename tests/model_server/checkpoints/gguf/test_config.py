"""GGUF metadata becomes the config.json that the model's makers would have written."""

import contextlib
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from model_server.checkpoints.gguf.architecture import GgufArchitecture
from model_server.checkpoints.gguf.architectures import ARCHITECTURES
from model_server.checkpoints.gguf.config import (
    architecture_for,
    architecture_of,
    config_of,
    metadata_of,
)
from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor
from model_server.checkpoints.gguf.rope import LLAMA3_FACTORS, llama3_factors
from sax.errors import CheckpointError
from tests.each_case import each_case

LLAMA = ARCHITECTURES["llama"]
NO_FILE: Any = None  # configurations are made of headers
SIZES = {
    **{
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "n_embd": 8,
        "n_head": 2,
    },
    **{
        "max_position_embeddings": 16,
        "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 2,
        "v_head_dim": 2,
    },
}
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
    names = {"token_embd.weight": (100, 64), "output_norm.weight": (64,)} | tensors
    header = GgufHeader(
        {**METADATA, **(changes or {})},
        {
            name: GgufTensor(name, shape, GGMLQuantizationType.F32, 0, 0, NO_FILE)
            for name, shape in names.items()
        },
    )
    found = {} if factors is None else {LLAMA3_FACTORS: factors}
    return config_of(header, LLAMA, "float32", found)


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
    embedding = GgufTensor("", (9, 64), GGMLQuantizationType.F32, 0, 0, NO_FILE)
    tensors = dict.fromkeys(["token_embd.weight", "output_norm.weight"], embedding)
    read = config_of(GgufHeader(header, tensors), LLAMA, "float32")
    assert read["num_key_value_heads"] == 8


def test_biases_show_in_the_tensors() -> None:
    read = config(**{"blk.0.attn_q.bias": (64,), "output.weight": (100, 64)})
    assert read["attention_bias"]
    assert not read["mlp_bias"]
    assert not read["tie_word_embeddings"]


@each_case("factor", [8.0, 32.0])
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


def test_other_factors_are_taken_as_they_are() -> None:
    scaling = config(factors=np.array([1, 2, 3, 4.5], np.float32))["rope_scaling"]
    assert scaling["rope_type"] == "longrope"
    assert scaling["long_factor"] == scaling["short_factor"] == [1.0, 2.0, 3.0, 4.5]
    assert scaling["attention_factor"] == 1.0


@each_case(
    "factors", [[1, 2, 3], [1, 2, 0, 4], [1, 2, -3, 4], [1, np.inf, 1, 1], [1, np.nan, 1, 1]]
)
def test_factors_that_are_no_divisors_are_refused(factors: list[float]) -> None:
    with pytest.raises(CheckpointError, match="are not 4 numbers above 0"):
        config(factors=np.array(factors, np.float32))


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


@each_case(
    "key, value",
    [
        ("embedding_length", None),
        ("embedding_length", 0),
        ("embedding_length", -4),
        ("embedding_length", "64"),
        ("block_count", True),
        ("block_count", 2**32 - 1),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", np.array([2, 1])),
        ("attention.head_count_kv", np.array([2] * 99)),
        ("attention.key_length", 7),
        ("rope.dimension_count", 4),
        ("rope.scaling.type", "longrope"),
        ("expert_count", 8),  # without expert_used_count
        ("logit_scale", 0.5),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(CheckpointError):
        config({f"llama.{key}": value, "llama.rope.scaling.factor": 2.0})


def test_a_number_may_be_listed_for_every_layer() -> None:
    layers = METADATA["llama.block_count"]
    for key, wanted in (("attention.head_count", 8), ("attention.head_count_kv", 2)):
        assert config({f"llama.{key}": np.array([wanted] * layers)}) == config({}), key


@each_case(
    "key, value",
    [
        ("logit_scale", 0.0625),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.yarn_ext_factor", 0.5),
        ("rope.local.freq_base", 10000.0),
        ("attention.causal", False),
        ("attention.causal", np.array([True])),
        ("some.key.of.tomorrow", "x" * 999),
    ],
)
def test_metadata_that_nothing_reads_ends_the_load_by_name(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"its metadata has llama\.{key} = ") as caught:
        config({f"llama.{key}": value})
    assert len(caught.value.text) < 400


@each_case("kind, pooling", [(1, "mean"), (2, "cls"), (3, "last")])
def test_a_decoder_that_embeds_says_how_it_pools(kind: int, pooling: str) -> None:
    assert config({"llama.pooling_type": kind})["pooling"] == pooling
    assert "pooling" not in config({"llama.pooling_type": 0})
    with pytest.raises(CheckpointError, match="pooling_type 4"):
        config({"llama.pooling_type": 4})


def test_metadata_that_changes_nothing_is_taken() -> None:
    more = {
        "vocab_size": 100,
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "expert_used_count": 0,
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.finetuned": False,
        "rope.scaling.yarn_ext_factor": 1.0,
        "tensor_data_layout": "Meta AI original pth",
    }
    metadata = {f"llama.{key}": value for key, value in more.items()}
    assert config(metadata | {"other.logit_scale": 2.0}) == config()


@each_case("value", [np.array([1, 2]), ["a", "b"]])
@each_case("architecture", [each for each in ARCHITECTURES.values() if each.more_metadata])
def test_a_list_where_one_value_belongs_does_no_harm(
    architecture: GgufArchitecture, value: object
) -> None:
    """Or ignored, where the family does not look; nothing else may come of it."""
    required = {key.suffix: 1.0 if key.kind is float else 4 for key in architecture.keys}
    required |= {key.suffix: True for key in architecture.keys if key.kind is bool}
    assert architecture.more_metadata
    written = architecture.more_metadata(
        SIZES | {"model_type": next(iter(architecture.model_types))}
    )
    tensor = GgufTensor("", (8, 8), GGMLQuantizationType.F32, 0, 0, NO_FILE)
    names = ["token_embd.weight", "token_types.weight", "a", "b", "c"]
    for suffix in {**required, **written, "rope.scaling.type": "", "attention.sliding_window": 0}:
        metadata = {f"{architecture.name}.{key}": v for key, v in (required | written).items()}
        metadata[f"{architecture.name}.{suffix}"] = value
        with contextlib.suppress(CheckpointError):
            config_of(GgufHeader(metadata, dict.fromkeys(names, tensor)), architecture, "float32")


@each_case("name", ["mamba", None, 5, ["llama"]])
def test_an_unknown_architecture_is_named(name: object) -> None:
    with pytest.raises(CheckpointError, match="supported from GGUF: afmoe, .*bert, .*llama"):
        architecture_of(GgufHeader({"general.architecture": name}, {}))


def test_sizes_that_cannot_be_take_no_memory() -> None:
    with pytest.raises(CheckpointError, match="announces 4294967295 layers, but has only 2"):
        config({"llama.block_count": 2**32 - 1})
    huge = {"llama.attention.key_length": 2**32 - 2, "llama.rope.dimension_count": 2**32 - 2}
    with pytest.raises(CheckpointError, match="numbers above 0"):
        config(huge, np.ones(4, np.float32))


def test_a_window_makes_it_a_mistral() -> None:
    read = config({"llama.attention.sliding_window": 4096})
    assert (read["model_type"], read["sliding_window"]) == ("mistral", 4096)
    assert read["architectures"] == ["MistralForCausalLM"]


def test_experts_make_it_a_mixtral() -> None:
    read = config({"llama.expert_count": 8, "llama.expert_used_count": 2})
    assert (read["num_local_experts"], read["num_experts_per_tok"]) == (8, 2)
    assert read["architectures"] == ["MixtralForCausalLM"]


def test_a_key_that_config_json_lacks_is_named() -> None:
    with pytest.raises(CheckpointError, match="no hidden_size"):
        metadata_of({"model_type": "llama"}, architecture_for({"model_type": "llama"}))
    sizes = {key.name: 8 for key in LLAMA.keys}
    with pytest.raises(CheckpointError, match="no 'vocab_size'"):
        metadata_of({"model_type": "llama", **sizes}, LLAMA)


def test_what_the_family_takes_for_granted_is_checked() -> None:
    with pytest.raises(CheckpointError, match="hidden_act = 'relu'.*assumes 'silu'"):
        metadata_of({"model_type": "llama", "hidden_act": "relu"}, LLAMA)
