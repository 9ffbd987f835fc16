"""Sizes of published models whose shapes are raced with random weights, and the work they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

BITS = {"bfloat16": 16.0, "4-bit": 4.5}  # Q4_0: blocks of 32 with a float16 scale


@dataclass(frozen=True, slots=True)
class Dimensions:
    """A decoder of the Qwen 3 family, dense or with experts in every layer."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int  # width of a feed-forward, or of one expert's
    tied: bool = True
    experts: int = 0
    experts_per_token: int = 0
    head_dim: int = 128
    vocabulary: int = 151_936
    whole: int = 0  # layers of the published model; 0: as many as here

    def cut(self, layers: int) -> Dimensions:
        """Return it with fewer layers, to fit memory or for a try."""
        layers = min(layers, self.layers)
        return replace(self, layers=layers, whole=self.whole or self.layers)

    @property
    def title(self) -> str:
        cut = self.whole and self.whole != self.layers
        return f"{self.name}, {self.layers} of {self.whole} layers" if cut else self.name

    @property
    def config(self) -> dict[str, Any]:
        """Return what its config.json says."""
        kind = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
        experts: dict[str, Any] = {"intermediate_size": self.inner}
        if self.experts:
            kind = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
            experts = {
                "intermediate_size": self.inner * self.experts_per_token,
                "moe_intermediate_size": self.inner,
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return kind | experts | {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "hidden_act": "silu",
            "attention_bias": False,
        }  # fmt: skip

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by its name in Hugging Face's files."""
        table = (self.vocabulary, self.width)
        made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
        for layer in range(self.layers):
            made |= {f"model.layers.{layer}.{k}.weight": v for k, v in self._layer().items()}
        made["model.norm.weight"] = (self.width,)
        return made if self.tied else made | {"lm_head.weight": table}

    def _layer(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        made: dict[str, tuple[int, ...]] = {
            "input_layernorm": (self.width,),
            "self_attn.q_proj": (queries, self.width),
            "self_attn.k_proj": (keys, self.width),
            "self_attn.v_proj": (keys, self.width),
            "self_attn.q_norm": (self.head_dim,),
            "self_attn.k_norm": (self.head_dim,),
            "self_attn.o_proj": (self.width, queries),
            "post_attention_layernorm": (self.width,),
        }
        if self.experts:
            made["mlp.gate"] = (self.experts, self.width)
        places = [f"mlp.experts.{e}" for e in range(self.experts)] or ["mlp"]
        for place in places:
            made |= {
                f"{place}.gate_proj": (self.inner, self.width),
                f"{place}.up_proj": (self.inner, self.width),
                f"{place}.down_proj": (self.width, self.inner),
            }
        return made

    # --- The work that a token means

    @property
    def parameters(self) -> int:
        """Numbers in all matrices; the embeddings count once where they are the head, too."""
        embeddings = self._head if self.tied else 2 * self._head
        return self.layers * (self._shared + max(1, self.experts) * self._feed_forward) + embeddings

    def prompt_flop(self, tokens: int) -> float:
        """Operations of the products with weights; the head computes the last token alone.

        Scores and sums of attention are not counted.
        """
        used = self._shared + max(1, self.experts_per_token) * self._feed_forward
        return 2.0 * (tokens * self.layers * used + self._head)

    def step_bytes(self, streams: int, weights: str) -> float:
        """Bytes of the file's weights that a step of one token per stream reads at least once.

        The experts that several tokens choose are as many as if each chose at random.
        """
        read = self.layers * (self._shared + self.experts_read(streams) * self._feed_forward)
        return (read + self._head) * BITS[weights] / 8

    def experts_read(self, tokens: int) -> float:
        """Expected number of a layer's experts that are chosen at all; 1 if there are none."""
        if not self.experts:
            return 1.0
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)

    @property
    def _head(self) -> int:
        return self.vocabulary * self.width

    @property
    def _shared(self) -> int:
        """Numbers of a layer's matrices that every token is multiplied with."""
        attention = self.width * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + self.experts * self.width

    @property
    def _feed_forward(self) -> int:
        return 3 * self.width * self.inner


QWEN3_0_6B = Dimensions("Qwen3-0.6B", 28, 1024, heads=16, kv_heads=8, inner=3072)
QWEN3_4B = Dimensions("Qwen3-4B", 36, 2560, heads=32, kv_heads=8, inner=9728)
QWEN3_30B_A3B = Dimensions(
    "Qwen3-30B-A3B", 48, 2048, heads=32, kv_heads=4, inner=768,
    tied=False, experts=128, experts_per_token=8,
)  # fmt: skip
LARGE = {
    "qwen3-0.6b": QWEN3_0_6B,
    "qwen3-4b": QWEN3_4B,
    "qwen3-30b-a3b": QWEN3_30B_A3B.cut(4),
}
