"""Golden cases of Apertus."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import LLAMA3, decoder, new_rope


def apertus(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "hidden_act": "xielu",
        "hidden_dropout": 0.0,
        "mlp_bias": False,
        "pad_token_id": 3,
        "post_norm": False,
        "qk_norm": True,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3,
        "rope_theta": 12000000.0,
    }
    return decoder("ApertusForCausalLM", "apertus", **own | sizes)


CASES = [
    Case(name="apertus", config=apertus(), without={"llama3": {"rope_scaling": None}}),
    Case(
        name="apertus_tied",
        config=new_rope(apertus(num_key_value_heads=1, hidden_size=40, tie_word_embeddings=True)),
    ),
]
