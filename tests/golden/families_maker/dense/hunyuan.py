"""Golden cases of Hunyuan without experts."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder, new_rope


def hunyuan(**sizes: Any) -> dict[str, Any]:
    own = {
        "add_classification_head": False,
        "attention_bias": False,
        "attention_dropout": 0.1,
        "attention_head_dim": 12,
        "class_num": 0,
        "eod_token_id": 3,
        "head_dim": 12,
        "mlp_bias": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": DYNAMIC,
        "tie_word_embeddings": True,
        "use_cla": False,
        "use_qk_norm": True,
    }
    return decoder("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", **own | sizes)


DYNAMIC = {
    "alpha": 1000.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "type": "dynamic",
}

CASES = [
    Case(
        name="hunyuan",
        config=hunyuan(),
        tokens=40,
        without={"alpha": {"rope_scaling": DYNAMIC | {"alpha": 2.0}}},
    ),
    Case(
        name="hunyuan_biases",
        config=hunyuan(
            attention_bias=True,
            head_dim=10,
            num_key_value_heads=1,
            rope_scaling=None,
            tie_word_embeddings=False,
        ),
    ),
    Case(
        name="hunyuan_rope_parameters",
        config=new_rope(
            hunyuan(num_key_value_heads=4),
            **{key: value for key, value in DYNAMIC.items() if key != "type"},
            **{"rope_type": "dynamic"},
        ),
        tokens=40,
    ),
]
