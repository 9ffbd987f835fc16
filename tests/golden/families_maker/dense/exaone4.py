"""Golden cases of EXAONE 4."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import LLAMA3, decoder

FULL, SLIDING = "full_attention", "sliding_attention"


def exaone4(**sizes: Any) -> dict[str, Any]:
    own = {
        "head_dim": 10,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "num_hidden_layers": 4,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "sliding_window_pattern": "LLLG",
    }
    return decoder("Exaone4ForCausalLM", "exaone4", **own | sizes)


CASES = [
    Case(
        name="exaone4",
        config=exaone4(),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "the layer without rope": {"layer_types": [SLIDING] * 4, "sliding_window": 21},
        },
    ),
    Case(
        name="exaone4_small",  # as the 1.2B: no windows, all layers rotate, tied, stretched
        config=exaone4(
            head_dim=16,
            layer_types=[FULL] * 2,
            num_hidden_layers=2,
            rope_scaling=LLAMA3,
            sliding_window=None,
            sliding_window_pattern=None,
            tie_word_embeddings=True,
        ),
        without={"llama3": {"rope_scaling": None}},
    ),
    Case(
        name="exaone4_pattern",
        config=exaone4(layer_types=None, sliding_window_pattern=2, num_key_value_heads=1),
        tokens=21,
        without={"pattern": {"sliding_window_pattern": 4}},
    ),
]
