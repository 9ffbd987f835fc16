"""Random heads for the demo model, and a stub in place of what they would have learnt."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open
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
from model_server.plan.checkpoint.convert import convert
from tests.demo_model import demo_model
from tests.model_server.checkpoints.tiny_folder import write_json

SHARE_RIGHT = 0.7
_MODEL, _ADDED = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
_BIASED = tuple(f"self_attn.{each}_proj.weight" for each in "qkv")
_SHARE = 4  # the head knows one in so many tokens, as those that are published do


def write_head(folder: Path, config: dict[str, Any]) -> Path:
    """Write an EAGLE-3 head for the Llama model of this config.json, with bfloat16 weights."""
    folder.mkdir()
    embed, vocab = config["hidden_size"], config["vocab_size"]
    outputs = vocab // _SHARE
    sizes = ("hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps", "rope_theta")
    sizes += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    named = {key: config[key] for key in sizes}
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": outputs}
    layer = {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
    write_json(folder / "config.json", {**named, **head, **layer})
    shapes = {
        **_layer_shapes("midlayer", config, read=2 * embed),
        "midlayer.hidden_norm": (embed,),
        "fc": (embed, 3 * embed),
        "norm": (embed,),
        "lm_head": (outputs, embed),
    }
    d2t = (_SHARE - 1) * np.arange(outputs)
    save_file({**_random_weights(shapes), "d2t": d2t}, folder / "model.safetensors")
    return folder


def write_draft_layer(folder: Path) -> Path:
    """Write the demo model as MiMo, which computes the same, with a draft layer in it."""
    convert(str(demo_model()), str(folder), dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    drafting = {"model_type": "mimo", "num_nextn_predict_layers": 1}
    write_json(folder / "config.json", {**config, **drafting})
    whole = folder / "model.safetensors"
    with safe_open(whole.rename(folder / _MODEL), "numpy") as file:
        files = dict.fromkeys(file.keys(), _MODEL)
    embed, layer = config["hidden_size"], "model.mtp_layers.0"
    shapes = {
        **_layer_shapes(layer, config, read=embed),
        f"{layer}.input_proj": (embed, 2 * embed),
        **{f"{layer}.{each}_layernorm": (embed,) for each in ("token", "hidden", "final")},
    }
    weights = _random_weights(shapes)
    projections = [name for name in {**files, **weights} if name.endswith(_BIASED)]
    for name in projections:  # MiMo's have biases: zeros
        rows = _projected(config)[name.split(".")[-2]]
        weights[name.replace(".weight", ".bias")] = np.zeros(rows, ml_dtypes.bfloat16)
    save_file(weights, folder / _ADDED)
    named = {"weight_map": {**files, **dict.fromkeys(weights, _ADDED)}}
    write_json(folder / f"{whole.name}.index.json", named)
    return folder


def _projected(config: Mapping[str, Any]) -> dict[str, int]:
    """Rows of the projections to queries, keys and values."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    return {"q_proj": heads * size, "k_proj": kv_heads * size, "v_proj": kv_heads * size}


def _layer_shapes(name: str, config: Mapping[str, Any], *, read: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Llama layer whose attention reads rows of this width."""
    embed, ffw = config["hidden_size"], config["intermediate_size"]
    projected = _projected(config)
    return {
        **{f"{name}.self_attn.{each}": (rows, read) for each, rows in projected.items()},
        f"{name}.self_attn.o_proj": (embed, projected["q_proj"]),
        f"{name}.mlp.gate_proj": (ffw, embed),
        f"{name}.mlp.up_proj": (ffw, embed),
        f"{name}.mlp.down_proj": (embed, ffw),
        f"{name}.input_layernorm": (embed,),
        f"{name}.post_attention_layernorm": (embed,),
    }


def _random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0)
    return {
        f"{name}.weight": drawn.normal(0, 0.02, shape).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }


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
