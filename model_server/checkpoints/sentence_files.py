"""Keeps what a sentence-transformers folder says of its embeddings when it is moved or converted.

Only the small files that `sentence_transformers` reads; a checkpoint without them has none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from model_server.checkpoints.sentence_transformers import (
    MODULES,
    SentenceSettings,
    read_modules,
    read_sentence_settings,
)
from sax.errors import CheckpointError

# Beside the model itself; the others are where modules.json says.
BESIDE = (MODULES, "config_sentence_transformers.json")
_TEXT, _POOLING = "sentence_bert_config.json", "config.json"


def copy_sentence_settings(source: Path | None, folder: Path) -> None:
    """From the folder `source`, if it has any, into `folder`. Raises CheckpointError."""
    if source is None or not (source / MODULES).is_file():
        return
    read_sentence_settings(source)  # says what is wrong in them
    for name in (*BESIDE, *files_of_modules(source)):
        if (source / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def check_sentence_settings(source: Path | None) -> None:
    """Raises CheckpointError if the vectors would be others once the settings are gone."""
    settings = replace(read_sentence_settings(source), max_length=None)
    if settings != SentenceSettings():
        raise CheckpointError(
            f"{source} makes its embeddings in a way that a GGUF file does not say ({settings}): "
            "convert it to a folder"
        )


def files_of_modules(folder: Path) -> Iterator[str]:
    """Relative paths of the files that modules may have. Raises CheckpointError."""
    for _, path in read_modules(folder):
        # The first module is the model, whose config.json is no setting.
        yield str(path / _TEXT)
        if path.parts:
            yield str(path / _POOLING)
