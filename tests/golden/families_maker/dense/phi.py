"""Golden cases of Phi-1 and Phi-2."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder, new_rope


def phi(**sizes: Any) -> dict[str, Any]:
    own = {
        "embd_pdrop": 0.0,
        "hidden_act": "gelu_new",
        "hidden_size": 64,
        "layer_norm_eps": 1e-05,
        "num_key_value_heads": 4,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
        "resid_pdrop": 0.1,
    }
    config = decoder("PhiForCausalLM", "phi", **own | sizes)
    del config["rms_norm_eps"]
    return config


CASES = [
    Case(name="phi", config=phi(), without={"partial": {"partial_rotary_factor": 1.0}}),
    Case(
        name="phi_normed_heads",
        config=phi(partial_rotary_factor=0.25, num_key_value_heads=1, qk_layernorm=True),
        without={"partial": {"partial_rotary_factor": 1.0}},
    ),
    Case(
        name="phi_rope_parameters",
        config={
            key: value
            for key, value in new_rope(
                phi(num_key_value_heads=2),
                **YARN | {"rope_type": "yarn"},
                partial_rotary_factor=0.5,
            ).items()
            if key != "partial_rotary_factor"
        },
    ),
]
