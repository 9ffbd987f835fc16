"""What a Llama 4 config.json means beyond the golden cases (see test_families.py)."""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.text_part import text_config
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layer_shapes import decoder_of

CONFIG = config_of("llama4")


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in CONFIG.items() if key not in keys} | changes


def chunks_of(config: dict[str, Any]) -> list[int | None]:
    return [layer.attention.shape.chunk for layer in decoder_of(config).layers]


def test_every_fourth_layer_sees_everything_unless_the_config_says_otherwise() -> None:
    plain = without("no_rope_layers", num_hidden_layers=5)
    assert chunks_of(plain) == [8, 8, 8, None, 8]
    rotates = [bool(rope.frequencies) for rope in decoder_of(plain).ropes]
    assert rotates == [True, True, True, False, True]


def test_an_empty_list_of_layers_is_none() -> None:
    assert chunks_of(without(no_rope_layers=[], no_rope_layer_interval=2)) == [8, None]


def test_layers_without_a_chunk_size_see_everything() -> None:
    assert chunks_of(without(attention_chunk_size=None)) == [None, None]


def test_the_cache_frees_what_lies_before_a_chunk() -> None:
    assert make_recipe("auto", CONFIG, {}).windows == (8, None)


def test_the_text_part_of_a_multimodal_config_is_a_llama_4() -> None:
    outer = {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": 90,
        "eoi_token_index": 91,
        "image_token_index": 92,
        "text_config": CONFIG,
        "tie_word_embeddings": False,
        "vision_config": {"hidden_size": 8},
    }
    overrides = {"IMAGES": "false"}  # a vision_config without its sizes is not even looked at
    assert make_recipe("auto", text_config(outer), overrides).vocab == CONFIG["vocab_size"]
