"""Models with image or sound input in an engine: prompts in chunks, answers token by token.

Of Mistral 3 tokens of an image are in rows, of Llama 4 in tiles, of Qwen's they have positions of
three numbers, the Omni models and Gemma 4 have two encoders, and of Gemma 3n the token behind a
sound has a vector of the encoder's, too. Gemma 3 is in test_models_with_images.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import make_loader
from tests.model_server.loading.media.image_folder import GEMMA_3N, GEMMA_4, folder_of
from tests.model_server.loading.media.image_requests import (
    TOKENS,
    answered,
    check,
    request_of,
    whole_of,
)
from tests.model_server.loading.media.test_models_with_images import loaded_of
from tests.tools.golden.media import llama4, omni, pixtral, qwen, towers

ROWS = {pixtral.SOFT: "[IMG]", pixtral.BREAK: "[IMG_BREAK]", pixtral.END: "[IMG_END]"}
TILES = {
    llama4.START: "<|image_start|>",
    llama4.END: "<|image_end|>",
    llama4.IMAGE: "<|image|>",
    llama4.SOFT: "<|patch|>",
    llama4.BESIDE: "<|tile_x_separator|>",
    llama4.BELOW: "<|tile_y_separator|>",
}
TRIPLES = {
    qwen.START: "<|vision_start|>",
    qwen.END: "<|vision_end|>",
    qwen.TOKEN: "<|image_pad|>",
}
MIXED = {
    omni.BEGIN: "<|audio_bos|>",
    omni.FINISH: "<|audio_eos|>",
    omni.START: "<|vision_bos|>",
    omni.END: "<|vision_eos|>",
    omni.SOUND: "<|AUDIO|>",
    omni.IMAGE: "<|IMAGE|>",
    omni.VIDEO: "<|VIDEO|>",
}
MIXED3 = {
    omni.BEGIN: "<|audio_start|>",
    omni.FINISH: "<|audio_end|>",
    omni.START: "<|vision_start|>",
    omni.END: "<|vision_end|>",
    omni.SOUND: "<|audio_pad|>",
    omni.IMAGE: "<|image_pad|>",
    omni.VIDEO: "<|video_pad|>",
}
BY_DAY = "qwen2_5_omni"
KIMI = {towers.TOKEN: "<|media_pad|>", towers.VIDEO: "<|kimi_k25_video_placeholder|>"}
GLM = {towers.TOKEN: "<|image|>"}
MINIMAX = {
    towers.START: "]<]start of image[>[",
    towers.END: "]<]end of image[>[",
    towers.TOKEN: "]<]image[>[",
    towers.VIDEO: "]<]video[>[",
}
STEP = {towers.START: "<patch_start>", towers.END: "<patch_end>", towers.TOKEN: "<im_patch>"}
DOTS = {
    towers.TOKEN: "<|imgpad|>",
    towers.VIDEO: "<|video_pad|>",
    towers.SOUND: "<|audio_comp_pad|>",
}
WATCHED = TRIPLES | {qwen.VIDEO: "<|video_pad|>"}
CONTROL = {
    "exaone4_5": WATCHED,
    "exaone4_5_video": WATCHED,
    "kimi_k25": KIMI,
    "kimi_k25_video": KIMI,
    "glm5_next": GLM,
    "glm5_next_video": GLM,
    "minimax_m3": MINIMAX,
    "minimax_m3_video": MINIMAX,
    "step3p7": STEP,
    "dots3_note": DOTS,
    "dots3_note_video": DOTS,
    "dots3_note_sounds": DOTS,
    BY_DAY: MIXED,
    "qwen2_5_omni_heard": MIXED,
    "qwen3_omni_moe": MIXED3,
    "qwen3_omni_moe_heard": MIXED3,
    "qwen2_vl": TRIPLES,
    "qwen2_5_vl": TRIPLES,
    "qwen3_5": TRIPLES,
    "qwen3_vl": TRIPLES,
    "qwen3_vl_moe": TRIPLES,
    "qwen4_exp": TRIPLES,
    "mistral3": ROWS,
    "mistral3_ministral3": ROWS,
    "mistral_large4": ROWS,
    "llava": {pixtral.SOFT: "<image>"},
    "llama4": TILES,
    "gemma3n": GEMMA_3N,
    "gemma4": GEMMA_4,
    "gemma4_vision": GEMMA_4,
}
CASES = [pytest.param(case, marks=[pytest.mark.nightly] * (case != BY_DAY)) for case in CONTROL]


@pytest.mark.timeout(600)  # programs with delta networks take long to compile
@pytest.mark.parametrize("case", CASES)
def test_answers_about_media_are_those_of_the_whole_model(case: str, tmp_path: Path) -> None:
    """Two requests beside each other; no chunk is as long as the media in it."""
    whole = whole_of(case)
    config = ModelServerConfig(slots=2, page_size=16, prefix_cache="tenant", max_mixed_blocks=1)
    loader = make_loader(config)
    asked = request_of(case, whole.media)
    context = str(128 * ((len(asked.prompt) + TOKENS) // 128 + 1))
    loaded = loaded_of(loader, folder_of(tmp_path, CONTROL[case], case), MAX_CONTEXT=context)
    before = loader.compiles_while_serving()
    for found in answered(loaded.runner, asked, asked):
        check(found, whole.answer)
    assert loader.compiles_while_serving() == before
    loaded.runner.close()
