"""A golden case's checkpoint with a tokenizer that has the tokens of an image or a sound."""

from __future__ import annotations

import json
from pathlib import Path

from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.models.media.media_cases import write_media_case
from tests.tools.golden.media import sounds
from tests.tools.golden.media.gemma3 import END, IMAGES_4, SOFT, START, VIDEO_4

CASE = "gemma3"
CONTROL = {START: "<start_of_image>", END: "<end_of_image>", SOFT: "<image_soft_token>"}

GEMMA_3N, GEMMA_4 = (
    dict(zip(ids, texts, strict=True))
    for ids, texts in (
        (
            (*sounds.GEMMA_3N, *sounds.IMAGES_3N),
            ("<start_of_audio>", "<audio_soft_token>", "<end_of_audio>")
            + ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        ),
        (
            (*sounds.GEMMA_4, *IMAGES_4, VIDEO_4),
            ("<|audio>", "<|audio|>", "<audio|>", "<|image>", "<|image|>", "<image|>", "<|video|>"),
        ),
    )
)


def folder_of(folder: Path, control: dict[int, str] = CONTROL, name: str = CASE) -> str:
    """Write it; control: what the tokenizer knows of an image."""
    write_media_case(name, folder)
    tokenizer = json.loads(tokenizer_json())
    for token, text in control.items():
        added = tokenizer["added_tokens"][0] | {"id": token, "content": text, "special": True}
        tokenizer["added_tokens"].append(added)
        tokenizer["model"]["vocab"][text] = token
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)
