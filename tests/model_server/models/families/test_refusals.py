"""What no family computes is refused by the name of its key in config.json."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layer_shapes import TINY
from tests.model_server.models.refusals import refused_otherwise

YARN = {
    "factor": 4.0,
    "llama_4_scaling_beta": 0.5,
    "original_max_position_embeddings": 16,
    "rope_theta": 1e6,
    "rope_type": "yarn",
}
# model_type -> what a small config.json of it has beside the sizes.
SMALL: dict[str, dict[str, Any]] = {
    "exaone4": {"sliding_window": 8},
    "gemma": {},
    "gemma2": {},
    "glm": {"head_dim": 12},
    "granite": {},
    "hunyuan_v1_dense": {"head_dim": 8},
    "ministral3": {"head_dim": 8},
    "phi3": {"original_max_position_embeddings": 64},
    "qwen2": {"sliding_window": 8, "max_window_layers": 3},
    "qwen3_vl_text": {"head_dim": 12},
    "smollm3": {"num_hidden_layers": 5},
}
# A model_type above or a golden case -> changes to its config, and words of the refusal.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "axk1": [
        ({"q_lora_rank": None}, "no q_lora_rank"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"mlp_layer_types": ["dense", "none"]}, "mlp_layer_types"),
        ({"scoring_func": "softmax"}, "scoring_func"),
    ],
    "axk2": [
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"topk_group": 2}, "one of n_group and topk_group"),
        ({"q_lora_rank": None}, "q_lora_rank = None"),
        ({"gated_norm_rank": 0}, "gated_norm_rank = 0"),
        ({"rope_interleave": False}, "rope_interleave"),
    ],
    "bamba": [
        *(
            ({"attn_layer_indices": chosen}, "attn_layer_indices = .* of its 2 layers")
            for chosen in ([2], [-1], ["1"], [[1]], 1)
        ),
        ({"attn_rotary_emb": 12}, "attn_rotary_emb = 12"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),  # of its convolutions, too
    ],
    **{
        name: [({"hidden_act": "gelu"}, "hidden_act = 'gelu'")]
        for name in ("bailing_hybrid", "kimi_linear", "qwen3_5", "qwen3_next")
    },
    "cohere2_moe": [
        ({"expert_selection_fn": "argmax"}, "expert_selection_fn"),
        ({"shared_expert_combination_strategy": "first"}, "shared_expert_combination_strategy"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    ],
    "deepseek_v3": [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"n_group": 3}, "n_group"),
        ({"topk_group": 5}, "topk_group"),
        ({"n_group": 8}, "n_group"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
    "deepseek_v32": [
        ({"layer_types": ["full_attention"] * 3}, "full_attention.*indexed_attention"),
        ({"index_head_dim": 6}, "index_head_dim = 6"),
        ({"q_lora_rank": None}, "q_lora_rank = None"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"index_block": 3}, "index_block"),
    ],
    "deepseek_v4": [({"vocab_size": 2**24 + 1}, "vocab_size = 16777217; .* to 16777216")],
    "dots3_note_published": [
        ({"per_layer_config": {"0": {"head_dim": 24}}}, "per_layer_config = .* layers with a win"),
        ({"per_layer_config": {"2": {"heads": 4}}}, "per_layer_config = "),
        ({"per_layer_config": ["heads"]}, "per_layer_config = "),
        ({"swa_head_dim": 20, "swa_qk_rope_head_dim": 6}, "heads of 20 numbers"),
        ({"swa_head_dim": 10}, "swa_qk_rope_head_dim = -2"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters = .*by kind of layer"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types = "),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({"index_head_dim": 6}, "index_head_dim = 6"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
    "exaone4": [({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern = 'LLLG'")],
    "falcon_h1": [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"ssm_multipliers": [1.0]}, r"ssm_multipliers = \[1.0\]; give 5 numbers"),
        ({"mlp_multipliers": [1, None]}, r"mlp_multipliers = \[1, None\]; give 2 numbers"),
        ({"mamba_d_ssm": 70}, "must make up mamba_d_ssm = 70"),
    ],
    "gemma": [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True; the gemma"),
        ({"hidden_activation": "tanhshrink"}, "tanhshrink"),
        ({"hidden_act": "tanhshrink"}, "tanhshrink"),
        (
            {"hidden_act": "gelu", "hidden_activation": "gelu_new"},
            "hidden_act = 'gelu_pytorch_tanh' and hidden_activation = 'gelu_new'",
        ),
    ],
    "gemma2": [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True; the gemma2")
    ],
    "gemma3n": [
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers = 8 of 8 layers"),
        # The first layer has a window, and none is left without.
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers = 7 of 8 layers"),
        (
            {"activation_sparsity_pattern": [0.5]},
            "activation_sparsity_pattern = .*each of its 8",
        ),
        ({"intermediate_size": [40, 0]}, "intermediate_size = .*each of its 8"),
    ],
    "gemma4": [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "needs those of full_attention and sliding",
        ),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
    ],
    "gemma4_experts_keys_as_values": [
        ({"per_layer_config": sizes}, "per_layer_config = .* the same head_dim and num_")
        for sizes in ({"1": {"head_dim": 16}}, {"2": {"heads": 4}}, {"2": 16}, [])
    ],
    "glm": [
        *(
            ({"partial_rotary_factor": part}, "partial_rotary_factor = ")
            for part in (0.0, 1.5, 0.25, "half", True)
        ),
        ({"rope_scaling": ["yarn"]}, "where its rope scaling should be"),
    ],
    "glm5_next_flat": [
        ({"index_topk": 7}, "index_topk = 7 and index_kpool = 4"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail"),
        ({"indexer_types": ["full", "full", "shared", "full"]}, "layer 2 share a choice"),
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim = 8"),
        ({"q_lora_rank": None}, "no q_lora_rank"),
        ({"swiglu_limit": 0}, "swiglu_limit = 0"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"linear_attn_config": {"heads": 4}}, "linear_attn_config = .*gate_lower_bound"),
        ({"linear_attn_config": ["kda"]}, "linear_attn_config = "),
        ({"linear_attn_config": {"kda_layers": [0, 2]}}, r"kda_layers = \[0, 2\].*\[0, 1\]"),
    ],
    "glm_moe_dsa": [
        ({"indexer_types": ["shared", "full", "full"]}, "first layer"),
        ({"indexer_types": ["full", "half", "full"]}, "half.*full or shared"),
        ({"indexer_types": ["full"]}, "for each of 3 layers"),
        ({"index_head_dim": 6}, "index_head_dim = 6"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
    "gpt2": [
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_head": 5}, "width .* does not divide into 5 heads"),
    ],
    "gpt_neox": [({"rotary_pct": share}, "rotary_pct") for share in (0.0, 0.2, 1.5)],
    "gpt_oss": [({"experts_per_token": 3}, r"num_experts_per_tok = 2.*experts_per_token = 3")],
    "gptj": [
        ({"rotary_dim": 7}, "rotary_dim = 7"),
        ({"rotary_dim": 130}, "rotary_dim = 130"),
        ({"rotary_dim": None}, "rotary_dim"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"activation_function": "tanhshrink"}, "tanhshrink"),
    ],
    "granite": [({"logits_scaling": 0.0}, r"logits_scaling = 0\.0, which must be above 0")],
    "granite_swa": [
        ({"layer_rope_theta": bases}, "layer_rope_theta.*for each of 4 layers")
        for bases in ([0, 10000.0], [0, 1, 2, "3"], 10000.0)
    ],
    "granitemoehybrid": [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"layer_types": ["mamba", "moe"]}, r"layer_types = \['mamba', 'moe'\]"),
        ({"layer_types": [["mamba"], 1]}, r"layer_types = \[\['mamba'\], 1\]"),
        ({"layer_types": ["mamba"]}, "for each of 2 layers"),
        ({"mamba_d_head": 16}, r"hidden_size \* mamba_expand = 96"),
        ({"time_step_limit": [0.1]}, r"time_step_limit = \[0\.1\]"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
    ],
    "hunyuan_moe": [
        ({"moe_topk": [3, 2]}, r"moe_topk = \[3, 2\].* the same number in all layers"),
        ({"moe_topk": 9}, "moe_topk = 9 of num_experts = 8"),
        ({"num_shared_expert": [2, 2]}, r"num_shared_expert = \[2, 2\].* needs 1 in all layers"),
        ({"moe_intermediate_size": 32}, "moe_intermediate_size = 32.* needs 64 in all layers"),
    ],
    "hunyuan_v1_dense": [
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope scaling 'dynamic' is not supported",
        ),
        ({"rope_scaling": {"type": "dynamic", "alpha": 0}}, "alpha = 0 among its rope settings"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 2.0}},
            "alpha = 2.0 among its rope settings",
        ),
    ],
    "llama4": [
        ({"no_rope_layers": [1]}, "no_rope_layers"),
        ({"no_rope_layers": [1, 2]}, "no_rope_layers"),
        ({"layer_types": ["chunked_attention", "sliding_attention"]}, "layer_types"),
        ({"moe_layers": "0"}, "moe_layers"),
    ],
    "llama_tied": [
        ({"rope_scaling": {"rope_type": "su", "factor": 4.0}}, "'su'"),
        ({"hidden_act": "tanhshrink"}, "tanhshrink"),
        ({"intermediate_size": None}, "intermediate_size"),
    ],
    "ministral3": [
        ({"rope_parameters": {k: YARN[k] for k in YARN if k != key}}, f"{key} .*= None")
        for key in ("llama_4_scaling_beta", "original_max_position_embeddings")
    ],
    "mistral4": [
        ({"n_group": 2}, "n_group"),
        ({"rope_parameters": {"rope_type": "default"}}, "mistral4 family needs two numbers"),
        (
            {
                "rope_parameters": config_of("mistral4")["rope_parameters"]
                | {"partial_rotary_factor": 1.0}
            },
            "8 of 20 dimensions rotate",
        ),
    ],
    "nemotron_h": [
        *(
            ({"hybrid_override_pattern": pattern}, "hybrid_override_pattern = .* each of 3 layers")
            for pattern in ("ME", "MEX", None)
        ),
        ({"n_groups": 4}, "mamba_num_heads = 6, which n_groups = 4"),
    ],
    "olmo_hybrid": [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads = 4, which .* = 3"),
    ],
    "phi3": [
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "'llama3' is not supported; the phi3 family",
        ),
        *(
            ({"partial_rotary_factor": part}, f"partial_rotary_factor = {part}, which would")
            for part in (0.0, 0.4, 1.5)
        ),
    ],
    "phimoe": [
        (
            {"rope_scaling": config_of("phimoe")["rope_scaling"] | {"long_mscale": 1.3}},
            "short_mscale = 1.24 and long_mscale = 1.3",
        ),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok = 3"),
    ],
    "qwen2": [
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
            "'mrope' is not supported",
        ),
    ],
    "qwen3_vl_text": [
        (
            {"rope_scaling": {"mrope_section": [2, 2, 3]}},
            r"mrope_section = \[2, 2, 3\]; .*the 6 that a head rotates",
        ),
        ({"rope_scaling": {"mrope_section": [6]}}, "mrope_section"),
        (
            {"rope_scaling": {"mrope_section": [2, 2, 2], "mrope_interleaved": False}},
            "supports True",
        ),
        (
            {"rope_scaling": {"mrope_section": [2, 2, 2], "rope_type": "dynamic"}},
            "'dynamic' is not supported",
        ),
    ],
    "qwen4_exp": [
        # Beyond it float32, in which rows tell tokens, does not hold each number.
        ({"vocab_size": 2**24 + 1}, "vocab_size = 16777217; .* to 16777216"),
        ({"image_token_id": 2**24 + 1}, "image_token_id = 16777217; .* to 16777216"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"indexer_budget": None}, "no indexer_budget"),
        ({"indexer_budget": 10}, "indexer_budget = 10, indexer_compress_ratio = 4"),
        ({"indexer_head_dim": 6}, "indexer_head_dim = 6"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads = 2"),
        ({"hc_count": 1}, "hc_count = 1"),
        ({"output_gate_type": "tanh"}, "output_gate_type = 'tanh'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"ple_layer_ids": [3]}, r"ple_layer_ids = \[3\]"),
        ({"ple_layer_ids": [0]}, r"ple_layer_ids = \[0\]"),
        ({"ple_embed_dim": 40}, "ple_embed_dim = 40"),
        ({"eos_token_id": None}, "eos_token_id = None"),
        ({"layer_types": ["sliding_attention"] * 3}, "indexed_attention for each of 3"),
        ({"mtp_scale": 2.0}, "mtp_scale"),
    ],
    "smollm3": [
        (
            {"no_rope_layers": given},
            "no_rope_layers = .* a 0 or a 1 for each of its 5",
        )
        for given in ([1, 1], "1111", [1, 1, 1, 2, 1])
    ],
}


def test_what_is_not_computed_is_refused_by_name() -> None:
    for name, cases in REFUSED.items():
        small = SMALL.get(name)
        config = config_of(name) if small is None else TINY | {"model_type": name} | small
        make_recipe("auto", config, {})

        def make(changes: dict[str, Any], config: dict[str, Any] = config) -> object:
            return make_recipe("auto", config | changes, {})

        assert refused_otherwise(make, cases, CheckpointError) == {}, name
