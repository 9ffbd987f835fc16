"""Golden cases of Helium."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder


def helium(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "head_dim": 12,
        "mlp_bias": False,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-08,
        "rope_theta": 20000.0,
    }
    return decoder("HeliumForCausalLM", "helium", **own | sizes)


CASES = [
    Case(name="helium", config=helium()),
    Case(
        name="helium_biases",
        config=helium(attention_bias=True, num_key_value_heads=1, tie_word_embeddings=True),
    ),
]
