"""Golden cases of GLM-4 and GLM-4-0414."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder, new_rope


def glm(model_type: str = "glm", name: str = "Glm", **sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": True,
        "head_dim": 12,
        "pad_token_id": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07,
    }
    return decoder(f"{name}ForCausalLM", model_type, **own | sizes)


def glm4(**sizes: Any) -> dict[str, Any]:
    return glm("glm4", "Glm4", **sizes)


PARTIAL = {"partial": {"partial_rotary_factor": 1.0}}

CASES = [
    Case(name="glm", config=glm(), without=PARTIAL),
    Case(
        name="glm_edge",  # all of a head rotates, and the head is tied
        config=glm(
            attention_bias=False,
            head_dim=10,
            num_key_value_heads=1,
            partial_rotary_factor=1.0,
            tie_word_embeddings=True,
        ),
        without={"all": {"partial_rotary_factor": 0.6}},
    ),
    Case(
        name="glm_rope_parameters",
        config={
            key: value
            for key, value in new_rope(glm(), partial_rotary_factor=0.5).items()
            if key != "partial_rotary_factor"
        },
    ),
    Case(name="glm4", config=glm4(), without=PARTIAL),
    Case(
        name="glm4_yarn",
        config=glm4(attention_bias=False, head_dim=16, rope_scaling=YARN, num_key_value_heads=1),
        without={"yarn": {"rope_scaling": None}},
    ),
]
