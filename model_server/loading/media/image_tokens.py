"""Checks that the tokenizer of a model knows the tokens that stand for an image."""

from __future__ import annotations

import numpy as np

from model_server.models.media.media_recipe import MediaRecipe
from model_server.text.tokenizer import Tokenizer
from sax.errors import CheckpointError

_SIDE = 64  # pixels of the image that is tried


def check_image_tokens(media: MediaRecipe | None, tokenizer: Tokenizer) -> None:
    """Raise CheckpointError if a prompt with an image would not have its tokens."""
    if media is None or media.form is None:
        return
    width, height = media.form.fit(_SIDE, _SIDE).size
    tried = media.prepare(np.zeros((height, width, 3), np.uint8))
    found = tokenizer.encode_chat(tried.text).count(media.token)
    if found != tried.rows:
        raise CheckpointError(
            f"the tokenizer makes {found} tokens {media.token} of the text of an image, which has "
            f"{tried.rows}: its files are not those of this model with images; correct them, or "
            "publish it with IMAGES=false, for text only"
        )
