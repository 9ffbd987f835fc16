"""Carries sentence-transformers settings along when a checkpoint is fetched or converted.

Handles only the small files that `sentence_transformers` reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from model_server.checkpoints.huggingface.sentence_transformers import (
    MODULES,
    SentenceSettings,
    read_modules,
    read_sentence_settings,
)
from sax.errors import CheckpointError

# Beside the model itself; the others are in the folders named by modules.json.
BESIDE = (MODULES, "config_sentence_transformers.json")
_TEXT, _POOLING = "sentence_bert_config.json", "config.json"


def copy_sentence_settings(source: Path | None, folder: Path) -> None:
    """Copy the settings of `source`, if any, to `folder`. Raises CheckpointError if invalid."""
    if source is None or not (source / MODULES).is_file():
        return
    read_sentence_settings(source)  # raises if they are invalid
    for name in (*BESIDE, *files_of_modules(source)):
        if (source / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def check_sentence_settings(source: Path | None) -> None:
    """Raise CheckpointError if dropping the settings would change the embeddings."""
    settings = replace(read_sentence_settings(source), max_length=None)
    if settings != SentenceSettings():
        raise CheckpointError(
            f"{source} has embedding settings that a GGUF file cannot hold ({settings}): "
            "convert it to a folder"
        )


def files_of_modules(folder: Path) -> Iterator[str]:
    """Yield relative paths of files that modules may have. Raises CheckpointError."""
    for _, path in read_modules(folder):
        # The first module is the model itself, whose config.json is not a setting.
        yield str(path / _TEXT)
        if path.parts:
            yield str(path / _POOLING)
