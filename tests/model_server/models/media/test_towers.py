"""How Kimi K2.5, GLM-5.3, MiniMax-M3 and Step 3.7 prepare images and videos; vectors and logits are
in test_media_families.py."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.media.media_recipe import DecodedVideo, MediaRecipe, VideoRecipe
from model_server.models.weights.weight import WeightForm, blueprint
from model_server.sharing.images.forms import CanvasForm, PaddedForm, WindowsForm
from model_server.sharing.videos.process import RefusedVideo
from sax.errors import InvalidRequest
from tests.model_server.models.media.media_cases import (
    MEDIA,
    golden_media_of,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made, media_of, seen_otherwise
from tests.model_server.models.media.media_runs import recipe_of
from tests.tools.golden.media.qwen import LENGTHS
from tests.tools.golden.media.towers import SIZES

VIDEO = "video_preprocessor_config"


def with_videos(name: str, **own: Any) -> MediaRecipe:
    """The recipe of a case, with changes to its video_preprocessor_config.json."""
    given = json.loads((MEDIA / name / f"{VIDEO}.json").read_text())
    return recipe_of(made(media_config_of(name) | {VIDEO: given | own}, preprocessor_of(name)))


def video_of(name: str, **own: Any) -> VideoRecipe:
    video = with_videos(name, **own).video
    assert video is not None
    return video


@pytest.mark.parametrize("name", ["kimi_k25", "glm5_next"])
def test_images_become_as_many_patches_as_the_reference_says(name: str) -> None:
    form = media_of(name).form
    assert isinstance(form, PaddedForm | CanvasForm)
    for size, wanted in zip(SIZES, golden_media_of(name)["sizes"].tolist(), strict=True):
        wide, high = form.fit(*size).size
        assert wide * high // 4**2 == wanted, size


def test_what_lies_beside_a_padded_image_is_black() -> None:
    form = media_of("kimi_k25").form
    assert isinstance(form, PaddedForm)
    assert form.fit(30, 44) == ((30, 44), (0, 0, 32, 48), None)
    assert form.fit(512, 16).resized == (256, 8), "no side has more than 64 patches"


def test_every_image_fits_the_patches_that_a_model_was_loaded_for() -> None:
    """Also those whose sides differ much, which padding enlarges most."""
    for name in ("kimi_k25", "glm5_next"):
        media = media_of(name)
        assert media.form is not None
        for width, height in [(n, m) for n in (1, 9, 33, 250, 700) for m in (1, 7, 60, 255, 1000)]:
            wide, high = media.form.fit(width, height).size
            assert wide * high // 4**2 <= media.pieces[-1]


def test_windows_over_an_image_are_those_of_the_reference() -> None:
    form = WindowsForm(728, 504, 96)
    for size, wanted in zip(SIZES, golden_media_of("step3p7")["sizes"].tolist(), strict=True):
        fit = form.fit(*size)
        found = [*fit.whole, *fit.cut, fit.window, *fit.grid, int(fit.square is not None)]
        assert found == wanted, size
        assert form.grid_of(*fit.size) == fit.grid


def test_a_step_image_is_its_windows_in_rows_and_then_the_whole() -> None:
    media = media_of("step3p7")
    assert isinstance(media.form, WindowsForm)
    width, height = media.form.fit(32, 48).size
    parts = media.prepare(np.zeros((height, width, 3), np.uint8)).parts
    window, end = "<patch_start><im_patch><patch_end>", "<patch_newline>"
    row = window + window
    whole = "<im_start>" + "<im_patch>" * 4 + "<im_end>"
    assert "".join(part.text for part in parts) == row + end + row + end + row + whole
    assert [part.rows for part in parts] == [1] * 6 + [4]


@pytest.mark.parametrize("name", ["kimi_k25_video", "glm5_next_video"])
def test_frames_are_those_that_the_reference_takes(name: str) -> None:
    form = video_of(name).form
    for (total, rate), wanted in zip(LENGTHS, golden_media_of(name)["chosen"], strict=False):
        chosen = np.unique(wanted[wanted >= 0]).tolist()
        if chosen:
            assert form.indices(total, rate) == chosen, (total, rate)
            continue
        with pytest.raises(RefusedVideo, match="send an image"):  # the reference fails later
            form.indices(total, rate)


def texts_of(name: str, frames: int, indices: tuple[int, ...], rate: float) -> list[str]:
    video = DecodedVideo(np.zeros((frames, 16, 16, 3), np.uint8), indices, rate, indices[-1] + 1)
    return [part.text for part in video_of(name).prepare(video).parts]


def test_texts_tell_when_frames_of_a_video_are() -> None:
    pads = "<|media_pad|>" * 4
    assert texts_of("kimi_k25_video", 5, (0, 1, 2, 3, 7450), 2.0) == [
        f"{time}<|media_begin|>video<|media_content|>{pads}<|media_end|>"
        for time in ("00:00:00.000", "01:02:05.000")
    ]
    image = "<|begin_of_image|>" + "<|image|>" * 4 + "<|end_of_image|>"
    assert texts_of("glm5_next_video", 4, (0, 1, 3, 4), 2.0) == [
        f"{image}0.0 seconds",
        f"{image}1.5 seconds",
    ]
    image = "]<]start of image[>[" + "]<]video[>[" * 4 + "]<]end of image[>["
    first, last = texts_of("minimax_m3_video", 5, (0, 1, 2, 3, 8), 2.0)
    assert first == f"]<]0.0 seconds[>[{image}]<]1.0 seconds[>[{image}"
    assert last == f"]<]4.0 seconds[>[{image}"


def test_more_frames_of_a_canvas_are_smaller_ones() -> None:
    form = video_of("glm5_next_video").form
    few, many = form.fit(200, 100, 4).size, form.fit(200, 100, 60).size
    assert few[0] * few[1] > many[0] * many[1]
    assert many[0] * many[1] * 60 <= 400 * 2 * 8**2


def test_videos_that_cannot_be_taken_are_refused() -> None:
    kimi = video_of("kimi_k25_video", fps=50).form
    with pytest.raises(RefusedVideo, match="has 25 frames a second, and this model takes 50"):
        kimi.indices(100, 25.0)
    with pytest.raises(RefusedVideo, match="has 2000 frames at 50 a second, and 768 are taken"):
        kimi.indices(2000, 50.0)
    with pytest.raises(RefusedVideo, match="lasts 0.08 s"):
        video_of("glm5_next_video").form.indices(2, 25.0)
    segments = video_of("minimax_m3_video", vision_segment_max_frames=2)
    wide = DecodedVideo(np.zeros((4, 256, 256, 3), np.uint8), (0, 1, 2, 3), 2.0, 4)
    with pytest.raises(InvalidRequest, match="the video becomes 8192 patches"):
        segments.prepare(wide)


def test_other_settings_of_towers_are_refused_by_name() -> None:
    kimi: list[Any] = [
        ({}, {"merge_kernel_size": [2, 1]}, {}, "merge_kernel_size"),
        ({}, {"pos_emb_width": 5}, {}, "pos_emb_width"),
        ({}, {"video_attn_type": "spatial"}, {}, "video_attn_type"),
        ({"projection_hidden_size": 8}, {}, {}, "projection_hidden_size"),
        ({}, {}, {"size": {"max_height": 64, "max_width": 32}}, "size"),
        ({}, {}, {"patch_size": 7}, "patch_size"),
    ]
    assert seen_otherwise("kimi_k25", kimi) == {}
    glm: list[Any] = [
        ({}, {"attention_bias": False}, {}, "attention_bias"),
        ({}, {"swiglu_limit": 0.0}, {}, "swiglu_limit"),
        ({}, {"out_hidden_size": 40}, {}, "vectors of 40 numbers"),
        ({}, {}, {"patch_expand_factor": 2}, "patch_expand_factor"),
        ({}, {}, {"min_image_tokens": 99}, "min_image_tokens"),
    ]
    assert seen_otherwise("glm5_next", glm) == {}
    step: list[Any] = [
        ({}, {"use_ln_post": True}, {}, "use_ln_post"),
        ({}, {}, {"patch_size": 20}, "patch_size"),
    ]
    assert seen_otherwise("step3p7", step) == {}
    shared: list[Any] = [({}, {"num_key_value_heads": 3}, {}, "4 heads of queries and 3 of keys")]
    assert seen_otherwise("exaone4_5", shared) == {}


def test_published_files_of_kimi_name_the_towers_sizes_otherwise() -> None:
    names = {
        "hidden_size": "vt_hidden_size",
        "intermediate_size": "vt_intermediate_size",
        "num_attention_heads": "vt_num_attention_heads",
        "num_hidden_layers": "vt_num_hidden_layers",
        "pos_emb_height": "init_pos_emb_height",
        "pos_emb_time": "init_pos_emb_time",
        "pos_emb_width": "init_pos_emb_width",
    }
    config = media_config_of("kimi_k25")
    config["vision_config"] = {
        names.get(key, key): value for key, value in config["vision_config"].items()
    }
    found = recipe_of(made(config, preprocessor_of("kimi_k25")))
    assert (found.pieces, found.width) == (media_of("kimi_k25").pieces, 48)


def test_the_reference_ignores_a_published_size_of_minimax_and_so_do_we() -> None:
    found = media_of("minimax_m3", size=[672, 672])
    assert found.form == media_of("minimax_m3", size=None).form


def test_layers_of_dots_have_as_many_experts_as_either_file_says() -> None:
    """Published files list them, transformers writes what differs from layer to layer."""
    saved = {
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "per_layer_config": {
            "1": {"num_local_experts": 1, "num_experts_per_tok": 1},
            "2": {"num_local_experts": 4, "num_experts_per_tok": 2},
        },
        "pyramid_num_routed": None,
    }
    counts = [recipe_weights(media_of("dots3_note", vision=each)) for each in ({}, saved)]
    assert counts[0] == counts[1]
    wrong: list[Any] = [
        ({}, {"pyramid_num_routed": [1, 2]}, {}, "pyramid_num_routed"),
        ({}, {"adapter_merge_size": 3}, {}, "adapter_merge_size"),
        ({}, {"mlp_bias": True}, {}, "mlp_bias"),
    ]
    assert seen_otherwise("dots3_note", wrong) == {}


def recipe_weights(media: MediaRecipe) -> list[tuple[int, ...]]:
    """The shapes of the encoder's weights."""
    made = blueprint(lambda: media.build(WeightForm(dtype=jnp.float32)))
    return [each.shape for each in made.declarations]
