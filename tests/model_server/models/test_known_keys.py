"""A config.json key that a family does not compute ends the load by name; harmless ones do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.models.known_keys import KnownKeys, all_in, one_of
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import case_names, config_of
from tests.model_server.models.layer_shapes import TINY
from tests.model_server.models.model_types import configs

KNOWN = KnownKeys("llama", ("hidden_size",), {"bias": one_of(False), "kinds": all_in("full")})
LLAMA = TINY | {"model_type": "llama"}


def test_keys_that_are_computed_or_change_nothing_are_taken() -> None:
    KNOWN.check({"hidden_size": 9, "bias": False, "kinds": ["full"], "torch_dtype": "float16"})


@given(st.text(min_size=1), st.none() | st.integers() | st.text() | st.lists(st.text()))
def test_any_other_key_is_refused_unless_it_is_null(key: str, value: Any) -> None:
    key = f"x-{key}"
    if value is None:
        return KNOWN.check({key: value})
    with pytest.raises(CheckpointError, match="which the llama family does not compute"):
        KNOWN.check({key: value})
    return None


def test_a_key_at_a_value_that_changes_something_is_refused() -> None:
    for key, value in (("bias", True), ("kinds", ["x"]), ("kinds", "full")):
        with pytest.raises(CheckpointError, match=f"has {key} = "):
            KNOWN.check({key: value})


def test_a_refusal_names_key_value_type_and_what_to_do_and_stays_short() -> None:
    config = {f"k{i:02}": "v" * 999 for i in range(40)} | {"model_type": "granite"}
    with pytest.raises(CheckpointError) as caught:
        KNOWN.check(config)
    text = caught.value.text
    assert "model_type 'granite'" in text
    assert "k00 = 'vvv" in text
    assert "and 35 more" in text
    assert "remove these keys from config.json" in text
    assert len(text) < 1000


@pytest.mark.parametrize(
    ("model_type", "family", "key"),
    [
        ("granite", "llama", "publish it as auto or granite"),
        ("helium", "llama", "publish it as auto or helium"),
        ("ministral3", "mistral", "publish it as auto or ministral3"),
        ("roberta", "bert", "publish it as auto or roberta"),
        ("camembert", "bert", "positions start after"),
    ],
)
def test_models_that_were_answered_wrongly_are_refused_by_what_differs(
    model_type: str, family: str, key: str
) -> None:
    with pytest.raises(CheckpointError, match=key):
        make_recipe(family, configs()[model_type], {})


def test_scaling_settings_are_known_by_kind() -> None:
    linear = {"type": "linear", "factor": 2.0}
    make_recipe("auto", LLAMA | {"rope_scaling": linear | {"mscale": None}}, {})
    make_recipe("auto", LLAMA | {"rope_scaling": linear | {"attn_factor": 1.0}}, {})
    with pytest.raises(CheckpointError, match="mscale = 2.0 among its rope settings"):
        make_recipe("auto", LLAMA | {"rope_scaling": linear | {"mscale": 2.0}}, {})


def test_every_family_refuses_a_factor_in_a_config_that_it_takes() -> None:
    """Saxml's cases have no config.json; the text part of one with images is taken out before."""
    configs = {name: config_of(name) for name in case_names()}
    plain = {
        n: each for n, each in configs.items() if not {"model_path", "text_config"} & set(each)
    }
    assert len(plain) > 150
    for config in plain.values():
        make_recipe("auto", config, {})
    told = {n: _refusal(each | {"skip_multiplier": 0.22}) for n, each in plain.items()}
    says = "has skip_multiplier = 0.22, which the"
    assert {name: text for name, text in told.items() if says not in text} == {}


def _refusal(config: dict[str, Any]) -> str:
    try:
        make_recipe("auto", config, {})
    except CheckpointError as refused:
        return refused.text
    return "it is taken"


# Keys beside the sizes that published checkpoints carry (read from their config.json).
WILD: dict[str, dict[str, Any]] = {
    "llama": {
        "_name_or_path": "meta-llama/Llama-3.1-8B",
        "rope_interleaved": False,
        "is_llama_config": True,
        "pretraining_tp": 1,
        "max_sequence_length": 2048,
        "unsloth_version": "2024.9",
        "transformers.js_config": {"dtype": {}},
    },
    "mistral": {"attention_bias": False, "attention_dropout": 0.0, "use_cache": True},
    "mixtral": {
        "output_router_logits": False,
        "router_aux_loss_coef": 0.02,
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    },
    "qwen2": {
        "max_window_layers": 28,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * 4,
    },
    "qwen3_moe": {
        "decoder_sparse_step": 1,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    },
    "gemma2": {"cache_implementation": "hybrid", "sliding_window_size": 4096},
    "phi3": {
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "embd_pdrop": 0.0,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "resid_pdrop": 0.0,
    },
    "deepseek_v3": {
        "auto_map": {},
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 1,
        "pretraining_tp": 1,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "topk_group": 1,
        "topk_method": "noaux_tc",
    },
}


def test_what_published_checkpoints_carry_is_taken() -> None:
    for model_type, carried in WILD.items():
        make_recipe("auto", TINY | {"model_type": model_type} | carried, {})


def test_a_config_of_the_first_gpt_2_is_taken() -> None:
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 97}
    old = {
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "n_ctx": 64,
        "output_past": True,
        "summary_first_dropout": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }
    make_recipe("auto", sizes | old | {"model_type": "gpt2"}, {})
