"""Chooses the files that a checkpoint consists of, among all that a repository has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from model_server.checkpoints.split_name import is_mmproj, mmproj_of, part_names, whole_name
from sax.errors import CheckpointNotFound
from sax.format import listing

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"
_SHARD = re.compile(r"(?!consolidated|adapter_model)[\w.-]+\.safetensors")
# Of a model that has adapters for prompts with media.
_OWN_ADAPTER = re.compile(r"([\w-]+-lora/)?adapter_(config\.json|model\.safetensors)")
# Beside weights: configurations, templates and vocabularies, and the modules of sentence encoders.
_SMALL = re.compile(
    r"[\w.-]+\.(json|jinja|model|tiktoken)|merges\.txt|vocab\.txt|artifact\.metadata"
    r"|\d+_\w+/([\w.-]+\.json|model\.safetensors)"
)
_NAMED = 12  # files that an error lists


def choose(names: Sequence[str], wanted: str = "") -> list[str]:
    """Return what to fetch, weights last: whoever finds them has the rest.

    wanted: a GGUF file, or the end of its name such as Q4_K_M; all parts of a file that is split
    are fetched, the first of them first, after the file of its encoder if there is one. Raises
    CheckpointNotFound.
    """
    if wanted:
        return _gguf(names, _wanted(names, wanted))
    if weights := _weights(names):
        beside = (name for name in names if _SMALL.fullmatch(name) or _OWN_ADAPTER.fullmatch(name))
        return [name for name in beside if name not in weights] + weights
    files = _gguf_files(names)
    if len(files) == 1:
        return _gguf(names, files[0])
    if files:
        raise CheckpointNotFound(
            f"it holds {len(files)} GGUF files: name one behind a colon, as in "
            f":{files[0]}; there are {_some(files)}"
        )
    raise CheckpointNotFound(
        "it holds neither safetensors files nor a GGUF file, and nothing else is loaded from "
        f"there; it has {_some(names)}"
    )


def _weights(names: Sequence[str]) -> list[str]:
    if _ONE in names:
        return [_ONE]
    if _INDEX in names:
        return [name for name in names if _SHARD.fullmatch(name)]
    return [_ADAPTER] if _ADAPTER in names else []


def _wanted(names: Sequence[str], wanted: str) -> str:
    if wanted in names:
        found = wanted
    else:
        end = wanted.lower().removesuffix(".gguf")
        files = _gguf_files(names)
        ends = [name for name in files if _stem(name).endswith(end)]
        if len(ends) != 1:
            what = f"{len(ends)} files end with {wanted}" if ends else f"it has no file {wanted}"
            raise CheckpointNotFound(f"{what}; there are {_some(ends or files or names)}")
        found = ends[0]
    return found


def _gguf_files(names: Sequence[str]) -> list[str]:
    """Return the GGUF files of models, of those in parts the first that is there."""
    files = sorted(name for name in names if name.endswith(".gguf") and not is_mmproj(name))
    first = {whole_name(name): name for name in reversed(files)}
    return [name for name in files if first[whole_name(name)] == name]


def _stem(name: str) -> str:
    return PurePosixPath(whole_name(name)).stem.lower()


def _gguf(names: Sequence[str], found: str) -> list[str]:
    encoder = mmproj_of(found, names)
    return [*([] if encoder is None else [encoder]), *_parts(names, found)]


def _parts(names: Sequence[str], found: str) -> list[str]:
    """Return all parts of a file. Raises CheckpointNotFound if some are not there."""
    parts = part_names(found) or [found]
    if missing := [name for name in parts if name not in names]:
        raise CheckpointNotFound(
            f"{found} is one of {len(parts)} parts, of which {_some(missing)} are not there: "
            "choose another file"
        )
    return parts


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return listing(list(names[:_NAMED])) + (f" and {more} more" if more > 0 else "")
