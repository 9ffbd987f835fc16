"""A golden case's checkpoint with a tokenizer that has the tokens of an image."""

from __future__ import annotations

import json
from pathlib import Path

from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.models.media.media_cases import write_media_case
from tests.tools.golden.media.gemma3 import END, SOFT, START

CASE = "gemma3"
CONTROL = {START: "<start_of_image>", END: "<end_of_image>", SOFT: "<image_soft_token>"}


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
