"""Hugging Face's tensors of a Whisper in CTranslate2's format, which has its own names and joins
the matrices of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.ctranslate2.model_bin import ModelBin

Tensors = Iterator[tuple[str, np.ndarray]]


def whisper_tensors(model: ModelBin) -> dict[str, np.ndarray]:
    """Return the tensors of a `WhisperForConditionalGeneration` by name."""
    embedding = model.tensor("decoder/embeddings/weight")
    assert model.aliases.get("decoder/projection/weight") == "decoder/embeddings/weight"
    return {
        "model.decoder.embed_tokens.weight": embedding,
        **dict(_filters(model)),
        **{name: each for half in ("encoder", "decoder") for name, each in _half(model, half)},
    }


def layers_of(model: ModelBin, half: str) -> int:
    """Return the number of layers of the encoder or decoder."""
    return len(
        {name.split("/")[1] for name in model.variables if name.startswith(f"{half}/layer_")}
        - {"layer_norm"}
    )


def _filters(model: ModelBin) -> Tensors:
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            yield f"model.encoder.{conv}.{part}", model.tensor(f"encoder/{conv}/{part}")


def _half(model: ModelBin, half: str) -> Tensors:
    yield (
        f"model.{half}.embed_positions.weight",
        model.tensor(f"{half}/position_encodings/encodings"),
    )
    yield from _norm(model, f"{half}/layer_norm", f"model.{half}.layer_norm")
    for index in range(layers_of(model, half)):
        yield from _layer(model, f"{half}/layer_{index}", f"model.{half}.layers.{index}")


def _layer(model: ModelBin, source: str, name: str) -> Tensors:
    own = f"{source}/self_attention"
    yield from _norm(model, f"{own}/layer_norm", f"{name}.self_attn_layer_norm")
    yield from _parts(model, f"{own}/linear_0", f"{name}.self_attn", "qkv")
    yield from _linear(model, f"{own}/linear_1", f"{name}.self_attn.out_proj")
    if f"{source}/attention/linear_0/weight" in model.variables:
        yield from _cross(model, f"{source}/attention", name)
    yield from _norm(model, f"{source}/ffn/layer_norm", f"{name}.final_layer_norm")
    yield from _linear(model, f"{source}/ffn/linear_0", f"{name}.fc1")
    yield from _linear(model, f"{source}/ffn/linear_1", f"{name}.fc2")


def _cross(model: ModelBin, source: str, name: str) -> Tensors:
    yield from _norm(model, f"{source}/layer_norm", f"{name}.encoder_attn_layer_norm")
    yield from _parts(model, f"{source}/linear_0", f"{name}.encoder_attn", "q")
    yield from _parts(model, f"{source}/linear_1", f"{name}.encoder_attn", "kv")
    yield from _linear(model, f"{source}/linear_2", f"{name}.encoder_attn.out_proj")


def _parts(model: ModelBin, source: str, name: str, parts: str) -> Tensors:
    for kind in ("weight", "bias"):
        pieces = np.split(model.tensor(f"{source}/{kind}"), len(parts))
        for part, piece in zip(parts, pieces, strict=True):
            if (part, kind) == ("k", "bias"):
                assert not piece.any(), (
                    "Whisper's keys have no bias: the order of the parts is wrong"
                )
            else:
                yield f"{name}.{part}_proj.{kind}", piece


def _linear(model: ModelBin, source: str, name: str) -> Tensors:
    for kind in ("weight", "bias"):
        yield f"{name}.{kind}", model.tensor(f"{source}/{kind}")


def _norm(model: ModelBin, source: str, name: str) -> Tensors:
    for kind, found in (("weight", "gamma"), ("bias", "beta")):
        yield f"{name}.{kind}", model.tensor(f"{source}/{found}")
