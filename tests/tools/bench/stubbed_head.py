"""An EAGLE-3 head of random weights, and a stub in place of what it would have learnt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from model_server.engine.running.ops import (
    Beginning,
    Forwarding,
    Later,
    Op,
    Pending,
    Proposals,
    Propose,
    Runner,
)
from tests.model_server.checkpoints.tiny_folder import write_json

SHARE_RIGHT = 0.7
_SHARE = 4  # the head knows one in so many tokens, as those that are published do


def write_head(folder: Path, config: dict[str, Any]) -> Path:
    """Write a head for the Llama model of this config.json, with bfloat16 weights."""
    folder.mkdir()
    embed, ffw, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size, outputs = embed // heads, vocab // _SHARE
    sizes = ("hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps", "rope_theta")
    sizes += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    named = {key: config[key] for key in sizes}
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": outputs}
    layer = {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
    write_json(folder / "config.json", {**named, **head, **layer})
    shapes = {
        "midlayer.self_attn.q_proj": (embed, 2 * embed),
        "midlayer.self_attn.k_proj": (kv_heads * size, 2 * embed),
        "midlayer.self_attn.v_proj": (kv_heads * size, 2 * embed),
        "midlayer.self_attn.o_proj": (embed, embed),
        "midlayer.mlp.gate_proj": (ffw, embed),
        "midlayer.mlp.up_proj": (ffw, embed),
        "midlayer.mlp.down_proj": (embed, ffw),
        "midlayer.input_layernorm": (embed,),
        "midlayer.hidden_norm": (embed,),
        "midlayer.post_attention_layernorm": (embed,),
        "fc": (embed, 3 * embed),
        "norm": (embed,),
        "lm_head": (outputs, embed),
    }
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.weight": random.normal(0, 0.02, shape).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }
    tensors["d2t"] = (_SHARE - 1) * np.arange(outputs)
    save_file(tensors, folder / "model.safetensors")
    return folder


class Stubbed(Forwarding):
    """Lets a head draft, and gives the tokens of known texts in place of its own.

    Each is right with a chance of SHARE_RIGHT, which its position alone decides.
    """

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._texts: list[tuple[int, ...]] = []

    def learn(self, text: Sequence[int]) -> None:
        """Know one more prompt with its answer. Of several the last one that fits is followed:
        on a device whose steps of other sizes round otherwise, answers to one prompt may part."""
        known = tuple(text)
        self._texts = [known, *(each for each in self._texts if each != known)]

    def do(self, op: Op) -> Pending[Any]:
        pending = self._runner.do(op)
        if not isinstance(op, Propose):
            return pending
        return Later(lambda: self._known(op.beginnings, pending.result()))

    def _known(self, beginnings: Sequence[Beginning], made: Proposals) -> Proposals:
        return Proposals([self._behind(each) for each in beginnings], made.seconds)

    def _behind(self, beginning: Beginning) -> tuple[int, ...]:
        start, count = beginning.start, beginning.count
        last = (beginning.token,)
        text = next((each for each in self._texts if each[start : start + 1] == last), ())
        coming = (*text[start + 1 : start + 1 + count], *(0,) * count)[:count]
        return tuple(
            token if random.Random(place).random() < SHARE_RIGHT else 0
            for place, token in enumerate(coming, start + 1)
        )
