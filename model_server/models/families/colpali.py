"""ColPali: PaliGemma, whose tokens all see each other, with a vector for each token.

The tokens of an image come first, then what is asked of it.
Source: Faysse et al. 2024 (arXiv:2407.01449), Beyer et al. 2024 (arXiv:2407.07726); names and
config keys are those of Hugging Face's `ColPaliForRetrieval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.families import gemma
from model_server.models.families.around import Configure, around
from model_server.models.families.paligemma import FULL, GEMMA_SIZES, NOTES, paligemma_vision
from model_server.models.media.vision_keys import VISION_KEYS
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {
    "gemma": (gemma.configure, GEMMA_SIZES)
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {key: value for key, value in (config or {}).items() if key != FULL}
    # null and true are one here
    if (config or {}).get(FULL, True) is not True:
        raise CheckpointError(
            f"config.json has {FULL} = false: the colpali family supports models whose tokens all "
            "see each other"
        )
    made = around("colpali", given, values, _TEXTS, VISION_KEYS, paligemma_vision, NOTES)
    return replace(made, causal=False)


FAMILY = Family("colpali", ("colpali",), "ColPali", configure, own_types_only=True)
