"""Keys of config.json that every model with a vision encoder has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.models.config_keys import ConfigKeys
from sax.errors import CheckpointError

TOKEN = ("image_token_id", "image_token_index")
VISION_KEYS = (VISION, PREPROCESSOR, *TOKEN)
# OpenAI's CLIP, whose scaling most towers have kept.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def vision_config_of(keys: ConfigKeys) -> Mapping[str, Any] | None:
    """Return the sizes of the vision encoder; None: there is none. Raises CheckpointError."""
    given = keys.get(VISION)
    if given is None or isinstance(given, Mapping):
        return cast("Mapping[str, Any] | None", given)
    raise CheckpointError(f"config.json has vision_config = {given!r}; it must be an object")


def image_token_of(keys: ConfigKeys, default: int) -> int:
    """Return the token whose places the vectors take. Raises CheckpointError."""
    name = next((key for key in TOKEN if keys.get(key) is not None), TOKEN[0])
    return keys.whole(name, default, least=0)
