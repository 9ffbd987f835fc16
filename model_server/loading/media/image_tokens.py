"""Checks that the tokenizer of a model knows the tokens that stand for an image or a sound."""

from __future__ import annotations

import numpy as np

from model_server.models.media.media_recipe import MediaRecipe
from model_server.text.tokenizer import Tokenizer
from sax.errors import CheckpointError

_SIDE = 64  # pixels of the image that is tried
_SAMPLES = 8_000  # of the sound, half a second


def check_image_tokens(media: MediaRecipe | None, tokenizer: Tokenizer) -> None:
    """Raise CheckpointError if a prompt with an image or a sound would not have its tokens."""
    if media is None:
        return
    tried = media.prepare(_tried(media))
    one, many = ("a sound", "sounds") if media.kind == "audio" else ("an image", "images")
    found = tokenizer.encode_chat(tried.text).count(media.token)
    if found != tried.rows:
        raise CheckpointError(
            f"the tokenizer makes {found} tokens {media.token} of the text of {one}, which has "
            f"{tried.rows}: its files are not those of this model with {many}; correct them, or "
            f"publish it with {media.override}=false, for text only"
        )


def _tried(media: MediaRecipe) -> np.ndarray:
    if media.form is None:
        return np.zeros(_SAMPLES, np.float32)
    width, height = media.form.fit(_SIDE, _SIDE).size
    return np.zeros((height, width, 3), np.uint8)
