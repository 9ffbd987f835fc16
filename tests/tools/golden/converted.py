"""What llama.cpp's converter writes for the models of `families`: metadata, names and numbers.

Needs the folder `conversion` of llama.cpp and its `gguf-py`, whose folder LLAMA_CPP names; a source
distribution of llama-cpp-python has both in vendor/llama.cpp. A case's folder is written as
`families` describes it and converted to float32 by llama.cpp's own class, without the vocabulary.

A file holds `config`, what was changed in the case's config.json because GGUF has no word for it;
`metadata`; and `tensors` by name: the shape, and the first 16 digits of the SHA-256 of the float32
numbers. Of those that were computed, such as by an exponential, whose last bit differs between
libraries, it holds the numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common

FAMILIES = common.GOLDEN / "families"
_LLAMA4 = {
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "floor_scale": 8192,
    "no_rope_layers": [1, 1, 1, 0],
    "use_qk_norm": True,
}
_FALCON = {
    **dict.fromkeys(
        (
            "attention_in_multiplier",
            "attention_out_multiplier",
            "embedding_multiplier",
            "key_multiplier",
            "lm_head_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        ),
        1.0,
    ),
    "mlp_multipliers": [1.0, 1.0],
    "ssm_multipliers": [1.0] * 5,
}
_NEMOTRON = {"d_head": 8}
# By case of `families`: what its config.json says otherwise.
CASES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "apertus",
            "arcee_biases",
            "cohere",
            "cohere2",
            "cohere2_moe",
            "deepseek_v2_groups",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "ernie4_5_biases",
            "ernie4_5_moe",
            "exaone4_pattern",
            "exaone4_small",
            "exaone_moe",
            "gemma",
            "gemma3n",
            "gemma4",
            "gemma4_experts_keys_as_values",
            "glm",
            "glm4_moe",
            "glm4_yarn",
            "glm_moe_dsa",
            "granite_rope_parameters",
            "granite_swa_biases",
            "granitemoe",
            "granitemoehybrid",
            "hunyuan_biases",
            "hy_v3",
            "hy_v4",
            "kimi_k2",
            "lfm2",
            "llama_llama3_biases",
            "llama_yarn",
            "mamba2",
            "minimax_m2",
            "ministral3",
            "mellum",
            "mixtral",
            "modernbert",
            "olmo2",
            "olmo3_by_kind",
            "olmoe",
            "phi3_longrope_long",
            "qwen2_5_vl",
            "qwen2_moe",
            "qwen2_untied_mqa",
            "qwen3_5",
            "qwen3_5_moe_experts_apart",
            "qwen3_biases",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "seed_oss_biases",
            "smollm3",
            "solar_open",
            "starcoder2_unbiased",
            "youtu",
        )
    },
    "afmoe": {"global_attn_every_n_layers": 4},
    # Experts are float4, in blocks that must divide their columns.
    "deepseek_v4": {"compress_rate_hca": 128, "hidden_size": 64, "moe_intermediate_size": 32},
    "bamba": {},
    "bamba_biases_tied": {"mamba_d_head": 12},  # a number in the published file
    "dots1": {"scoring_func": "sigmoid"},
    # All layers have queries of one rank, and rotate as many numbers.
    "dots3_note_published": {
        "apply_mla_qkv_lora_rescale": True,
        "scoring_func": "sigmoid",
        "swa_head_dim": 20,
        "swa_q_lora_rank": 20,
        "swa_qk_rope_head_dim": 8,
    },
    "falcon_h1": _FALCON,
    "glm4_moe_lite": {"first_k_dense_replace": 1, "scoring_func": "sigmoid"},
    "glm5_next": {
        "text_config": {
            "first_k_dense_replace": 1,
            "linear_attn_config": {
                "gate_lower_bound": -5.0,
                "head_dim": 12,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "mla_use_nope": True,
        }
    },
    "granite_swa": {
        "layer_rope_theta": [0, 10000.0, 10000.0, 10000.0],
        "no_rope_layers": [0, 1, 1, 1],
    },
    "granitemoe_swa": {
        "layer_rope_theta": [0, 10000.0, 10000.0],
        "no_rope_layers": [0, 1, 1],
    },
    "hunyuan_moe": {"rope_scaling": None},
    # A file has no groups of experts, and no cap of their scores.
    "kimi_linear": {"num_expert_group": 1, "topk_group": 1},
    "laguna": {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "moe_router_logit_softcapping": 0.0,
    },
    "laguna_by_elements": {"layer_types": ["full_attention", "sliding_attention"]},
    "hy_v4_biased": {"first_k_dense_replace": 1, "indexer_types": ["full", "full"]},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "llama4": _LLAMA4,
    "llama4_interleaved": _LLAMA4,
    "mamba2_biased_tied": {"time_step_limit": [0.0, float("inf")]},
    "mimo_v2_published": {
        "attention_value_scale": 0.7,
        "norm_topk_prob": True,
        "sliding_window": 8,
    },
    "minimax_m3": {
        "text_config": {
            "moe_layer_freq": [0, 1, 1],
            "n_shared_experts": 1,
            "sparse_attention_config": {
                "sparse_block_size": 4,
                "sparse_index_dim": 12,
                "sparse_local_block": 1,
                "sparse_num_index_heads": 2,
                "sparse_topk_blocks": 2,
            },
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        }
    },
    "minimax_m3_published": {"text_config": {"n_shared_experts": 1}},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"], "router_jitter_noise": 0.01},
    "sarvam_moe": {},
    "step3p7": {
        "text_config": {
            "rope_scaling": {  # as published
                "factor": 2.0,
                "high_freq_factor": 32.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 131072,
                "rope_type": "llama3",
            },
            "rope_theta": [5000000.0, 10000.0, 10000.0, 5000000.0, 10000.0],
            "share_expert_dim": 16,
        }
    },
    "nemotron_h": _NEMOTRON,
    "nemotron_h_dense": _NEMOTRON,
    "nemotron_h_latent": _NEMOTRON,
    # A file holds one table of n-grams.
    "qwen4_exp": {
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "ple_layer_ids": [1],
    },
}
# By case: keys that the converter is not shown. Without a model type, transformers does not replace
# the published keys, which the converter reads, by its own.
_AS_PUBLISHED = (
    *("glm5_next", "mimo_v2_published", "minimax_m3", "minimax_m3_published", "qwen4_exp"),
    *("sarvam_moe", "step3p7"),
)
HIDDEN: dict[str, tuple[str, ...]] = dict.fromkeys(_AS_PUBLISHED, ("model_type",))
# By case: tensors that follow from that to be left out.
LEFT_OUT = {"qwen4_exp": r".*\.layers\.1\.ple\..*"}
# By case: the shapes that follow from that, by what the names of tensors match.
RESHAPED: dict[str, dict[str, tuple[int, ...]]] = {
    "deepseek_v4": {
        r"(embed|head)\.weight": (97, 64),
        r"norm\.weight|.*\.(attn_norm|ffn_norm|enorm)\.weight": (64,),
        r"hc_head_fn": (4, 256),
        r".*\.hc_(attn|ffn)_fn": (24, 256),
        r".*\.wq_a\.weight": (20, 64),
        r".*\.attn\.wkv\.weight": (24, 64),
        r".*\.wo_b\.weight": (64, 28),
        r".*\.(1|3)\.attn\.compressor\.(wkv|wgate)\.weight": (48, 64),
        r".*\.(2\.attn|indexer)\.compressor\.(wkv|wgate)\.weight": (24, 64),
        r".*\.2\.attn\.compressor\.ape": (128, 24),
        r".*\.weights_proj\.weight": (12, 64),
        r".*\.ffn\.gate\.weight": (8, 64),
        r".*experts\..*w[13]\.weight": (32, 64),
        r".*experts\..*w2\.weight": (64, 32),
    },
    "dots3_note_published": {
        r".*\.2\.self_attn\.k_rope_only_layernorm\.weight": (8,),
        r".*\.2\.self_attn\.kv_a_proj_with_mqa\.weight": (30, 48),
        r".*\.2\.self_attn\.q_a_layernorm\.weight": (20,),
        r".*\.2\.self_attn\.q_a_proj\.weight": (20, 48),
        r".*\.2\.self_attn\.q_b_proj\.weight": (160, 20),
    },
}
# Weights that the converter takes as float4 with an exponent per 32 columns only.
_FLOAT4 = re.compile(r"layers\.\d+\.ffn\.experts\.\d+\.w[123]\.weight")
_FLOAT4_NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
# Parts of names that transformers saves otherwise than they are published.
_PUBLISHED = {
    r"\.attn\.norm\.": ".attn.kv_norm.",
    r"\.hc_pre\.(hc_\w+_layer)\.": r".\1.hc_pre.",
    r"\.hc_pre\.hc_head\.": ".hc_head.",
    r"\.(mlp|shared_experts)\.linear_gate\.": r".\1.gate_proj.",
}
_AS_NUMBERS = re.compile(r"rope_f.*|.*\.ssm_a|.*\.(per_dim_scale\.weight|conv_norm_var\..*)")


def make(name: str, into: Path) -> None:
    """Write into/NAME.json."""
    config = config_of(name, CASES[name])
    told = common.how("converted", name, "conversion to float32 by llama.cpp's own converter")
    parts = {"how": told, "config": CASES[name], **parts_of(_converted(name, config))}
    into.mkdir(parents=True, exist_ok=True)
    (into / f"{name}.json").write_text(common.lines(parts))


def config_of(name: str, change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of a case with the change, of which a text_config is one of parts."""
    config = common.read_json(FAMILIES / name / "config.json")
    if text := change.get("text_config"):
        change = {**change, "text_config": config["text_config"] | text}
    return config | change


def parts_of(reader: Any) -> dict[str, Any]:
    """Return the metadata and the tensors of a file."""
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith(("GGUF.", "general.")) or key == "general.architecture"
    }
    tensors = {each.name: _told(each.name, _numbers(each)) for each in reader.tensors}
    return {"metadata": metadata, "tensors": tensors}


def _numbers(tensor: Any) -> np.ndarray:
    if tensor.data.dtype != np.uint8:
        return np.asarray(tensor.data)
    from gguf.quants import dequantize

    return dequantize(tensor.data, tensor.tensor_type)


def _told(name: str, numbers: np.ndarray) -> list[Any]:
    if _AS_NUMBERS.fullmatch(name):
        return [list(numbers.shape), numbers.ravel().tolist()]
    return [list(numbers.shape), digest(numbers)]


def digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, np.float32).tobytes()).hexdigest()[:16]


def _converted(name: str, config: dict[str, Any]) -> Any:
    conversion, gguf, torch = llama_cpp()
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch), Path(scratch) / "made.gguf"
        kept = {key: value for key, value in config.items() if key not in HIDDEN.get(name, ())}
        (folder / "config.json").write_text(json.dumps(kept))
        words = (config | config.get("text_config", {}))["vocab_size"]
        vocabulary = {f"x{each}": each for each in range(words)}
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        stored = _as_published(tensors_of(name))
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with torch.inference_mode():
            settings = conversion.ModelBase.load_hparams(folder, False)
            kind = conversion.get_model_architecture(settings, conversion.ModelType.TEXT)
            converter = conversion.get_model_class(kind)
            converter.set_vocab = lambda self: None
            if name.startswith("qwen3_"):  # these have no layers that draft
                converter.no_mtp = True
            converter(folder, gguf.LlamaFileType.ALL_F32, out, eager=True).write()
        return gguf.GGUFReader(out)


def tensors_of(name: str) -> dict[str, np.ndarray]:
    """Return the weights of a case of `families` by Hugging Face name."""
    shapes = common.read_json(FAMILIES / name / "tensors.json")
    for pattern, shape in RESHAPED.get(name, {}).items():
        shapes |= dict.fromkeys(filter(re.compile(pattern).fullmatch, shapes), shape)
    tensors = {key: random_tensor(key, tuple(shape)) for key, shape in shapes.items()}
    for key in filter(_FLOAT4.fullmatch, tensors):
        codes, exponents = _float4(key, shapes[key])
        signs = np.where(codes < 8, np.float32(1), np.float32(-1))
        scales = np.exp2(exponents.astype(np.float32) - 127).repeat(32, axis=1)
        tensors[key] = _FLOAT4_NUMBERS[codes % 8] * signs * scales
    computed = FAMILIES / name / "computed.npz"
    tensors |= dict(np.load(computed)) if computed.exists() else {}
    unwanted = re.compile(LEFT_OUT.get(name, r"(?!)"))
    return {key: numbers for key, numbers in tensors.items() if not unwanted.fullmatch(key)}


def _float4(name: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes u8[rows, columns], without -0, and exponents u8[rows, columns / 32]."""
    rows, columns = shape
    codes = (uniform(name, rows * columns) * 16).astype(np.uint8).reshape(shape)
    exponents = 122 + np.arange(rows * columns // 32, dtype=np.uint8).reshape(rows, -1) % 4
    return np.where(codes == 8, np.uint8(0), codes), exponents


def _as_published(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors as they are stored for the converter."""
    stored = {_published(key): x for key, x in tensors.items()}
    for key in filter(_FLOAT4.fullmatch, tensors):
        codes, exponents = _float4(key, tensors[key].shape)
        stored[key] = codes[:, ::2] | codes[:, 1::2] << 4
        stored[key.replace(".weight", ".scale")] = exponents
    return stored


def _published(name: str) -> str:
    for pattern, own in _PUBLISHED.items():
        name = re.sub(pattern, own, name)
    return name


def llama_cpp() -> tuple[Any, Any, Any]:
    """Import llama.cpp's modules, whose gguf comes before an installed one."""
    folder = os.environ.get("LLAMA_CPP")
    if not folder:
        sys.exit("LLAMA_CPP must name llama.cpp's folder: see converted --about")
    sys.path[:0] = [folder, f"{folder}/gguf-py"]
    logging.disable(logging.CRITICAL)
    import conversion
    import gguf
    import torch

    return conversion, gguf, torch
