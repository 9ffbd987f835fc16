"""Golden cases of Seed-OSS."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder


def seed_oss(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": True,
        "attention_dropout": 0.1,
        "attention_out_bias": False,
        "head_dim": 10,
        "mlp_bias": False,
        "residual_dropout": 0.1,
        "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0,
    }
    return decoder("SeedOssForCausalLM", "seed_oss", **own | sizes)


CASES = [
    Case(name="seed_oss", config=seed_oss()),
    Case(
        name="seed_oss_biases",
        config=seed_oss(attention_out_bias=True, mlp_bias=True, num_key_value_heads=1, head_dim=12),
    ),
    Case(
        name="seed_oss_linear",
        config=seed_oss(
            attention_bias=False,
            rope_scaling={"factor": 4.0, "rope_type": "linear"},
            tie_word_embeddings=True,
        ),
        without={"linear": {"rope_scaling": None}},
    ),
]
