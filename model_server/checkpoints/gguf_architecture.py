"""How GGUF names things, per architecture, and what Hugging Face calls them.

One declaration per architecture; adding one to ARCHITECTURES is all a new family needs here.
Knows names and numbers only; tensors are read by `gguf`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family as llama.cpp writes it."""

    name: str  # general.architecture and the prefix of its metadata
    model_type: str  # Hugging Face's
    hf_class: str
    config: Mapping[str, str]  # config.json key -> metadata key without the prefix
    fixed: Mapping[str, object]  # config.json keys that GGUF leaves unsaid
    tensors: Mapping[str, str]  # without .weight: GGUF -> Hugging Face, outside the layers
    layer_tensors: Mapping[str, str]  # the same inside a layer
    # Projections whose rows llama.cpp reorders (halves of a head interleaved),
    # and the config.json key with their number of heads.
    interleaved: Mapping[str, str]

    def hf_name(self, gguf_name: str) -> str | None:
        """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None if unknown."""
        stem, _, part = gguf_name.rpartition(".")
        if part not in ("weight", "bias"):
            return None
        if match := _BLOCK.fullmatch(stem):
            name = self.layer_tensors.get(match[2])
            return name and f"model.layers.{match[1]}.{name}.{part}"
        name = self.tensors.get(stem)
        return name and f"{name}.{part}"

    def gguf_name(self, hf_name: str) -> str | None:
        """The inverse of `hf_name`."""
        stem, _, part = hf_name.rpartition(".")
        if match := _LAYER.fullmatch(stem):
            name = _inverse(self.layer_tensors).get(match[2])
            return name and f"blk.{match[1]}.{name}.{part}"
        name = _inverse(self.tensors).get(stem)
        return name and f"{name}.{part}"

    def heads_key(self, hf_name: str) -> str | None:
        """The config.json key with the number of heads, for an interleaved projection."""
        match = _LAYER.fullmatch(hf_name.rpartition(".")[0])
        return self.interleaved.get(match[2]) if match else None


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {hugging_face: gguf for gguf, hugging_face in names.items()}


LLAMA = Architecture(
    name="llama",
    model_type="llama",
    hf_class="LlamaForCausalLM",
    config=MappingProxyType(
        {
            "hidden_size": "embedding_length",
            "intermediate_size": "feed_forward_length",
            "num_hidden_layers": "block_count",
            "num_attention_heads": "attention.head_count",
            "max_position_embeddings": "context_length",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        }
    ),
    fixed=MappingProxyType({"hidden_act": "silu"}),
    tensors=MappingProxyType(
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
    ),
    layer_tensors=MappingProxyType(
        {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }
    ),
    interleaved=MappingProxyType(
        {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    ),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({LLAMA.name: LLAMA})
