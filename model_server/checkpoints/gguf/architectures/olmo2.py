"""OLMo 2: norms after attention and feed-forward; rows and values are as published."""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    INVERSE_FREQUENCIES,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import DECODER, read_window
from model_server.checkpoints.gguf.rope import (
    read_rotary_heads,
    rope_factors,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if read_window(facts):
        raise CheckpointError("it is an OLMo 3 (it has sliding windows), which is not supported")
    return read_rotary_heads(facts, config)


OLMO2 = GgufArchitecture(
    name="olmo2",
    model_types={"olmo2": "Olmo2ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        **HEAD_NORMS,
        **feed_forward(),
        "post_attention_norm": place("post_attention_layernorm"),
        "post_ffw_norm": place("post_feedforward_layernorm"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=_more_config,
    more_metadata=rotary_heads_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
