"""Golden cases of OLMo 3."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder

FULL, SLIDING = "full_attention", "sliding_attention"
STRETCHED = {key: value for key, value in YARN.items() if key != "type"} | {"rope_type": "yarn"}


def olmo3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "rope_theta": 500000.0,
        "sliding_window": 8,
    }
    return decoder("Olmo3ForCausalLM", "olmo3", **own | sizes)


def by_kind() -> dict[str, Any]:
    """As transformers 5 writes it: positions per kind of layer."""
    config = olmo3(num_key_value_heads=1, hidden_size=64, dtype="bfloat16")
    for key in ("rope_theta", "rope_scaling", "torch_dtype"):
        del config[key]
    return config | {"rope_parameters": _ropes(1000000.0, 100.0)}


def _ropes(whole: float, local: float) -> dict[str, Any]:
    return {
        FULL: {"rope_theta": whole, **STRETCHED},
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


CASES = [
    Case(
        name="olmo3",  # stretched positions, in the last layer only
        config=olmo3(rope_scaling=STRETCHED, hidden_size=64),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "yarn": {"rope_scaling": None},
            "kinds": {"layer_types": [SLIDING, FULL, SLIDING, FULL]},
        },
    ),
    Case(
        name="olmo3_usual_layers",  # grouped heads; three of four layers slide
        config=olmo3(layer_types=None, num_key_value_heads=2, tie_word_embeddings=True),
        tokens=21,
        without={"layers": {"layer_types": [SLIDING] * 4}},
    ),
    Case(
        name="olmo3_by_kind",
        config=by_kind(),
        tokens=21,
        without={"bases": {"rope_parameters": _ropes(1000000.0, 1000000.0)}},
    ),
]
