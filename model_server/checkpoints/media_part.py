"""Presents the encoder of a multimodal checkpoint: its tensors, and how images are prepared.

The text part of such a checkpoint is `text_part`'s. In its config, `vision_config` sizes a vision
encoder and `audio_config` an audio encoder, `preprocessor_config` is the content of the file beside
it that says how images are resized and scaled, `video_preprocessor_config` likewise for videos, and
`processor_config` that of the one that says what they become in a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import CheckpointView, view_of
from model_server.checkpoints.files import read_json
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

VISION, AUDIO = "vision_config", "audio_config"
PREPROCESSOR, PROCESSOR = "preprocessor_config", "processor_config"
VIDEO = f"video_{PREPROCESSOR}"
FEATURES = "feature_extractor"  # of sounds
ADAPTER_FILE = "adapter_config.json"
ADAPTERS = "own_adapters"  # contents of adapter_config.json, by folder below the checkpoint's
FILE, PROCESSOR_FILE, VIDEO_FILE = (f"{name}.json" for name in (PREPROCESSOR, PROCESSOR, VIDEO))
# transformers 5 writes the others into the file of the processor.
_INSIDE = {PREPROCESSOR: "image_processor", VIDEO: "video_processor", FEATURES: FEATURES}
_AUDIO_PROCESSOR = "audio_processor"  # what some processors call FEATURES
# Prefixes of tensors by the part of config.json that sizes them; of the last ones either does.
_PARTS = {
    VISION: ("vision_tower.", "vision_model.", "visual.", "embed_vision.", "vision_encoder."),
    AUDIO: ("audio_tower.", "embed_audio.", "audio_adapter.", "audio_encoder."),
    "": (
        *("multi_modal_projector.", "mm_projector.", "patch_merge_mlp.", "vit_large_projector."),
        # Mistral's own names
        *("vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm."),
    ),
}
_PREFIXES = tuple(prefix for prefixes in _PARTS.values() for prefix in prefixes)
# Prefix in some files -> the one that families read.
_DEEPER = {
    "vision_tower.vision_model.": "vision_tower.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    "vision_encoder.": "vision_tower.",
    "patch_merger.": "multi_modal_projector.patch_merger.",
    "pre_mm_projector_norm.": "multi_modal_projector.norm.",
    "vision_language_adapter.w_in.": "multi_modal_projector.linear_1.",
    "vision_language_adapter.w_out.": "multi_modal_projector.linear_2.",
}
# model_type -> prefixes that others give other things -> prefixes of parts
_OF_TYPE = {
    kind: {"encoder.": "audio_tower.", "projector.": "multi_modal_projector."}
    for kind in ("granite_speech", "granite_speech_plus")
} | {
    "phi4_multimodal": {
        "embed_tokens_extend.image_embed.": "vision_tower.",
        "embed_tokens_extend.audio_embed.": "audio_tower.",
    }
}
# model_type -> folders of adapters that its checkpoints have for prompts with media
_ADAPTERS_OF = {
    **{"granite_speech": ("",), "granite_speech_plus": ("",)},
    "phi4_multimodal": ("speech-lora", "vision-lora"),
}
# Parts of Mistral's names -> as transformers writes them. Its queries and keys (`wq`, `wk`) have
# another order of rows, so they keep their names.
_MISTRAL = {
    ".attention.wv.": ".attention.v_proj.",
    ".attention.wo.": ".attention.o_proj.",
    ".feed_forward.w1.": ".feed_forward.gate_proj.",
    ".feed_forward.w2.": ".feed_forward.down_proj.",
    ".feed_forward.w3.": ".feed_forward.up_proj.",
}


def media_part_of(
    checkpoint: Checkpoint, parts: Collection[str] = (VISION, AUDIO)
) -> Checkpoint | None:
    """Return the tensors of the encoders, without a leading `thinker.` or `model.`; None: there
    are none.

    checkpoint: as it was opened, or a view of it such as its text part. parts: of config.json;
    tensors of the others are left out.
    """
    opened = checkpoint.opened if isinstance(checkpoint, CheckpointView) else checkpoint
    prefixes = tuple(prefix for part in (*parts, "") for prefix in _PARTS[part])
    kind = checkpoint.config.get("model_type")
    mine = (name for name in opened.names() if _inner_name(name, kind).startswith(prefixes))
    names = {_own_name(name, kind): name for name in mine}
    return view_of(opened, names, checkpoint.config) if names else None


def is_media(name: str, model_type: object) -> bool:
    """Return True for the name of a tensor of a vision or audio encoder."""
    return _inner_name(name, model_type).startswith(_PREFIXES)


def without_media(
    config: Mapping[str, Any], parts: Collection[str] = (VISION, AUDIO)
) -> dict[str, Any]:
    """Return a config.json without the sizes of these encoders, and if none are left without what
    the files beside it say of their inputs.
    """
    left = {key: value for key, value in config.items() if key not in parts}
    if VISION in left or AUDIO in left:
        return left
    files = (FEATURES, PREPROCESSOR, PROCESSOR, VIDEO)
    return {key: value for key, value in left.items() if key not in files}


def text_alone(checkpoint: Checkpoint) -> Checkpoint:
    """Return the text part of a checkpoint for writing it; the log says what is left out."""
    part = media_part_of(checkpoint)
    if part is None:
        return checkpoint
    names = part.names()
    kinds = {VISION: ("vision", "images"), AUDIO: ("audio", "sounds")}
    found = [kind for key, kind in kinds.items() if key in checkpoint.config]
    logger.warning(
        "only the text part is written; %d tensors of the %s encoder, such as %s, are left out: "
        "the result takes no %s",
        len(names),
        " and the ".join(kind for kind, _ in found),
        names[0],
        " or ".join(taken for _, taken in found),
    )
    own = {name: name for name in checkpoint.names()}
    return view_of(checkpoint, own, without_media(checkpoint.config))


def with_processors(config: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Add what the files beside config.json say of images; where there are none, nothing.

    Raises CheckpointError for a file that is no JSON object, or holds something else there.
    """
    if folder is None:
        return dict(config)
    files = ((PREPROCESSOR, FILE), (PROCESSOR, PROCESSOR_FILE), (VIDEO, VIDEO_FILE))
    paths = {key: folder / file for key, file in files}
    given = {key: read_json(path) for key, path in paths.items() if path.exists()}
    made = dict(config)
    for key, inside in _INSIDE.items():
        if key == FEATURES and AUDIO not in config:
            continue
        found = given.get(PROCESSOR, {}).get(inside)
        if key == FEATURES and found is None:
            found = given.get(PROCESSOR, {}).get(_AUDIO_PROCESSOR)
        if found is not None and not isinstance(found, Mapping):
            raise CheckpointError(
                f"{PROCESSOR_FILE} has {inside} = {found!r}; it must be an object"
            )
        if found is not None:
            made[key] = found
    return {**made, **given}


def with_adapters(config: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Add the configs of adapters that prompts with media use, where the checkpoint has such.

    Raises CheckpointError for a file that is no JSON object.
    """
    given: dict[str, Any] = {}
    for place in _ADAPTERS_OF.get(str(config.get("model_type")), ()) if folder else ():
        assert folder is not None
        if (path := folder / place / ADAPTER_FILE).exists():
            given[place] = read_json(path)
    return {**config, ADAPTERS: given} if given else dict(config)


def _inner_name(name: str, model_type: object) -> str:
    """Return a name without what stands before those of all parts."""
    inner = name.removeprefix("thinker.").removeprefix("vlm.").removeprefix("model.")
    for prefix, own in _OF_TYPE.get(str(model_type), {}).items():
        if inner.startswith(prefix):
            return own + inner.removeprefix(prefix)
    return inner


def _own_name(name: str, model_type: object) -> str:
    own = _inner_name(name, model_type)
    for part, written in _MISTRAL.items():
        own = own.replace(part, written)
    for prefix, written in _DEEPER.items():
        if own.startswith(prefix):
            return written + own.removeprefix(prefix)
    return own
