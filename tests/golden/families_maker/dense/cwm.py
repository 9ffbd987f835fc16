"""Golden cases of the Code World Model."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import LLAMA3, decoder


def cwm(**sizes: Any) -> dict[str, Any]:
    own = {
        "head_dim": 10,
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_bias": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
    }
    return decoder("CwmForCausalLM", "cwm", **own | sizes)


CASES = [
    Case(
        name="cwm",
        config=cwm(),
        tokens=21,
        without={"window": {"sliding_window": 21}},
    ),
    Case(
        name="cwm_defaults",
        config={
            key: value
            for key, value in cwm(num_hidden_layers=5, num_key_value_heads=1).items()
            if key not in ("layer_types", "rope_scaling", "rope_theta")
        },
        tokens=21,
    ),
]
