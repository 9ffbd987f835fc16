"""Keeps what a sentence-transformers folder says of its embeddings when the folder is converted.

Only the small files that `sentence_transformers` reads; a source that is no such folder has none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from model_server.checkpoints.json_file import read_text
from model_server.checkpoints.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from sax.errors import CheckpointError

_MODULES = "modules.json"
_TEXT, _POOLING = "sentence_bert_config.json", "config.json"


def copy_sentence_settings(source: str, folder: Path) -> None:
    """From the folder `source`, if it has any, into `folder`. Raises CheckpointError."""
    place = Path(source.removeprefix("file://")).expanduser()
    if not (place / _MODULES).is_file():
        return
    read_sentence_settings(source)  # says what is wrong in them
    for name in _files(place):
        if (place / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place / name, folder / name)


def check_sentence_settings(source: str) -> None:
    """Raises CheckpointError if the vectors would be others once the settings are gone."""
    settings = replace(read_sentence_settings(source), max_length=None)
    if settings != SentenceSettings():
        raise CheckpointError(
            f"{source} makes its embeddings in a way that a GGUF file does not say ({settings}): "
            "convert it to a folder"
        )


def _files(place: Path) -> Iterator[str]:
    yield from (_MODULES, "config_sentence_transformers.json")
    for module in json.loads(read_text(place / _MODULES)):
        path = PurePosixPath(module["path"])
        if path.is_absolute() or ".." in path.parts:
            raise CheckpointError(f"{place / _MODULES} names a folder outside: {module['path']!r}")
        # The first module is the model, whose config.json is written anew.
        yield str(path / _TEXT)
        if path.parts:
            yield str(path / _POOLING)
