"""Golden cases of Arcee AFM."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder


def arcee(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "head_dim": 16,
        "hidden_act": "relu2",
        "hidden_size": 64,
        "mlp_bias": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": YARN,
    }
    return decoder("ArceeForCausalLM", "arcee", **own | sizes)


CASES = [
    Case(
        name="arcee",
        config=arcee(),
        without={"yarn": {"rope_scaling": None}, "squared": {"hidden_act": "relu"}},
    ),
    Case(
        name="arcee_biases",
        config=arcee(
            attention_bias=True,
            head_dim=10,
            mlp_bias=True,
            num_key_value_heads=1,
            rope_scaling=None,
            tie_word_embeddings=True,
        ),
    ),
]
