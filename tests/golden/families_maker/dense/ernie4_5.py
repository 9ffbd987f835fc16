"""Golden cases of ERNIE 4.5 without experts."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder, new_rope


def ernie4_5(**sizes: Any) -> dict[str, Any]:
    own = {
        "head_dim": 10,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
    }
    return decoder("Ernie4_5ForCausalLM", "ernie4_5", **own | sizes)


CASES = [
    Case(name="ernie4_5", config=ernie4_5(), without={"theta": {"rope_theta": 100.0}}),
    Case(
        name="ernie4_5_biases",
        config=ernie4_5(
            head_dim=12, num_key_value_heads=1, tie_word_embeddings=False, use_bias=True
        ),
    ),
    Case(name="ernie4_5_rope_parameters", config=new_rope(ernie4_5(hidden_size=40))),
]
