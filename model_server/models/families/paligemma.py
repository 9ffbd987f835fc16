"""PaliGemma: Gemma or Gemma 2 behind SigLIP's tower; tokens of a prompt all see each other.

Those of an answer see what is before them. Images come first in a prompt, then the token that
begins a text, what is asked and a newline.
Source: Beyer et al. 2024 (arXiv:2407.07726), Steiner et al. 2024 (arXiv:2412.03555); names and
config keys are those of Hugging Face's `PaliGemmaForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.families import gemma, gemma2
from model_server.models.families.around import Configure, around
from model_server.models.layers.layers import Linear
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import patches_of, shades_of
from model_server.models.media.projector import NAME as PROJECTOR
from model_server.models.media.projector import dense_layer
from model_server.models.media.siglip import SiglipConfig, SiglipTower, square_form
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm

# What transformers gives a text model where a file leaves it out
GEMMA_SIZES: Mapping[str, Any] = {
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "vocab_size": 256000,
}
_GEMMA2_SIZES: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "vocab_size": 256000,
}
_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {
    "gemma": (gemma.configure, GEMMA_SIZES),
    "gemma2": (gemma2.configure, _GEMMA2_SIZES),
}
# Counts that follow from others, and what transformers writes and does not read.
_SPARE = ("num_image_tokens", "num_positions", "projector_hidden_act", "vocab_size")
NOTES = ("ignore_index", "num_image_tokens", "projection_dim")
FULL = "use_bidirectional_attention"  # in effect only where nobody says which tokens are a prompt's
_IMAGE_TOKEN, _SOFT = 256000, "<image>"
_HALF = (0.5, 0.5, 0.5)
# As the processor of transformers writes a prompt
_TEMPLATE = """\
{%- if messages | length != 1 or messages[0]['role'] != 'user' -%}
  {{- raise_exception('it takes one message, of the role user') -}}
{%- endif -%}
{%- set asked = messages[0]['content'] -%}
{%- if asked is string -%}
  {{- bos_token + asked -}}
{%- else -%}
  {%- for part in asked if part['type'] == 'image' -%}<image>{%- endfor -%}
  {{- bos_token -}}
  {%- for part in asked if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}
{%- endif -%}
{{- '\\n' -}}
"""


class PaliGemmaEncoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, tower: SiglipConfig, embed: int, form: WeightForm) -> None:
        self.tower = SiglipTower(tower, "vision_tower", form)
        self.projection: Linear = dense_layer(embed, tower.embed, f"{PROJECTOR}.linear", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        seen = self.tower(pieces, places, lengths)
        return self.projection(seen.reshape(-1, seen.shape[-1])).reshape(*seen.shape[:2], -1)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {key: value for key, value in (config or {}).items() if key != FULL}
    made = around("paligemma", given, values, _TEXTS, VISION_KEYS, paligemma_vision, NOTES)
    # A window would keep tokens of a longer prompt from seeing each other.
    windows = [window for window in made.windows if window is not None]
    longest = min([made.max_context, *windows])
    chat = replace(made.chat, usual=_TEMPLATE)
    return replace(made, chat=chat, bidirectional_prompt=longest)


def paligemma_vision(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none."""
    given = vision_config_of(keys)
    if given is None:
        return None
    sizes = {key: value for key, value in given.items() if key not in _SPARE}
    tower = SiglipConfig.from_hf(sizes)
    rows = tower.side**2
    read = ImageProcessor(keys.get(PREPROCESSOR, {}), "Siglip", ("image_seq_length", "size"))
    read.equal({"image_seq_length": rows}, "the pieces of an image")
    form, shades = square_form(read, tower), shades_of(read.colours(_HALF, _HALF))
    places, seen = np.arange(rows, dtype=np.int32)[:, None], tower.side * tower.patch

    def prepare(pixels: np.ndarray) -> PreparedMedia:
        pieces = patches_of(pixels[:seen, :seen], shades, tower.patch, 1)
        return PreparedMedia(pieces, places, None, rows, _SOFT * rows)

    return MediaRecipe(
        kind="image",
        build=lambda weights: PaliGemmaEncoder(tower, embed, weights),
        form=form,
        prepare=prepare,
        placeholder=_SOFT,
        token=image_token_of(keys, _IMAGE_TOKEN),
        piece=tower.piece,
        columns=1,
        per_row=1,
        width=embed,
        pieces=(rows,),
    )


FAMILY = Family("paligemma", ("paligemma",), "PaliGemma", configure, own_types_only=True)
