"""Sounds as Granite Speech takes them; vectors and logits are in test_media_families.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.weights.low_rank import AdapterRoom, OwnAdapter
from model_server.sharing.audio.spectrogram import FINE_LEAST
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.model_server.models.media.media_runs import recipe_of
from tests.model_server.models.refusals import refused_otherwise

CASE, PLUS = "granite_speech", "granite_speech_plus"


def media_of(
    name: str = CASE,
    encoder: dict[str, Any] | None = None,
    projector: dict[str, Any] | None = None,
    outer: dict[str, Any] | None = None,
    **own: Any,
) -> MediaRecipe:
    config = media_config_of(name) | (outer or {})
    config["encoder_config"] = config["encoder_config"] | (encoder or {})
    config["projector_config"] = config["projector_config"] | (projector or {})
    return recipe_of(made(config, preprocessor_of(name) | own))


def test_frames_are_pairs_of_the_reference_processors() -> None:
    for name in (CASE, PLUS):
        recipe, golden = media_of(name), golden_media_of(name)
        for number, sound in enumerate(images_of(name)):
            found, wanted = recipe.prepare(sound), golden[f"pieces_{number}"]
            np.testing.assert_allclose(found.pieces, wanted, atol=2e-5)
            assert found.rows == len(golden[f"rows_{number}"])
            assert found.text == "<|audio|>" * found.rows


def test_any_number_of_samples_has_as_many_vectors_as_the_reference_counts() -> None:
    recipe = media_of()
    for samples in [*range(FINE_LEAST, 3_000, 79), 15_999, 16_000, 120 * 16_000]:
        frames = (samples // 160 + 1) // 2
        found = recipe.prepare(np.ones(samples, np.float32))
        assert found.rows == -(-frames // 6) * 3
        assert found.rows <= recipe.rows
        assert len(found.pieces) == frames <= recipe.pieces[-1]


def test_sounds_that_cannot_be_mirrored_or_are_too_long_are_refused() -> None:
    for samples, text in ((256, "at least 17 ms"), (120 * 16_000 + 1, "at most 120 s of each")):
        with pytest.raises(InvalidRequest) as caught:
            media_of().prepare(np.zeros(samples, np.float32))
        assert text in caught.value.text


def test_what_is_not_computed_is_refused_by_its_key() -> None:
    otherwise = refused_otherwise(
        lambda changes: media_of(CASE, *changes[:3], **changes[3]),
        [
            (({"context_size": 17}, {}, {}, {}), "context_size = 17, more than the 16"),
            (({"input_dim": 41}, {}, {}, {}), "input_dim = 41"),
            (({"cat_hidden_layers": [3]}, {}, {}, {}), "numbers of its 3 layers"),
            (({"cat_hidden_layers": [1]}, {}, {}, {}), "encoder's vectors have 48 numbers"),
            (({"rotary": True}, {}, {}, {}), "rotary"),
            (({}, {"num_attention_heads": 3}, {}, {}), "divides"),
            (({}, {"use_qformer_text_input": True}, {}, {}), "use_qformer_text_input"),
            (({}, {}, {"window_size": 7}, {}), "window_size = 7: it must be a multiple"),
            (({}, {}, {"has_lora_adapter": True}, {}), "publish it with SOUNDS=false"),
            (({}, {}, {}, {"n_mels": 80}), "n_mels = 80"),
            (({}, {}, {}, {"melspec_kwargs": {"hop_length": 80}}), "hop_length = 80"),
            (({}, {}, {}, {"projector_window_size": 15}), "projector_window_size = 15"),
        ],
        CheckpointError,
    )
    assert not otherwise


def test_its_own_adapter_has_the_last_place_and_room_for_its_rank() -> None:
    config = media_config_of(CASE) | {"own_adapters": {"": {"r": 3, "rank_pattern": {"v": 30}}}}
    recipe = made(config, preprocessor_of(CASE), MAX_ADAPTERS="2", MAX_ADAPTER_RANK="4")
    room = AdapterRoom(3, 30, (OwnAdapter("audio", ""),))
    assert recipe.adapters == room
    assert room.place_of("audio") == 3
    assert made(config, preprocessor_of(CASE), SOUNDS="false").adapters is None
    config["own_adapters"][""]["r"] = 0
    with pytest.raises(CheckpointError, match="r = 0"):
        made(config, preprocessor_of(CASE))
