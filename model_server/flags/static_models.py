"""Models that a server loads by its own flags, as Saxml's: no admin server has to publish them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sax.names import ModelId, check_checkpoint, check_model_path
from sax.types import ModelSpec, static_version


@dataclass(frozen=True, slots=True)
class StaticFlags:
    """The four lists, as texts; of equal lengths, but for overrides, which may be left out."""

    models: Sequence[str] = ()
    keys: str = ""
    checkpoints: str = ""
    overrides: str = ""


def static_models(flags: StaticFlags) -> tuple[ModelSpec, ...]:
    """Return what is to be loaded. Raises ValueError, InvalidName."""
    paths = [path for text in flags.models for path in _words(text)]
    keys, checkpoints = _words(flags.keys), _words(flags.checkpoints)
    overrides = _objects(flags.overrides)
    if not len(paths) == len(keys) == len(checkpoints):
        raise ValueError(
            f"--models names {len(paths)} model paths, --model_keys {len(keys)} keys and "
            f"--checkpoints {len(checkpoints)} checkpoints: give as many of each, in the same order"
        )
    if overrides and len(overrides) != len(paths):
        raise ValueError(
            f"--model_config_overrides has {len(overrides)} JSON objects for {len(paths)} models: "
            "give one for each, {} for none"
        )
    if len(set(keys)) < len(keys):
        raise ValueError(f"--model_keys names {_twice(keys)} twice: give every model its own key")
    given = overrides or [{} for _ in paths]
    return tuple(map(_spec, keys, paths, checkpoints, given))


def _spec(key: str, path: str, checkpoint: str, overrides: dict[str, str]) -> ModelSpec:
    ModelId.parse(key)
    check_model_path(path)
    check_checkpoint(checkpoint)
    spec = ModelSpec(
        model_id=key, model_path=path, checkpoint=checkpoint, replicas=1, overrides=overrides
    )
    return replace(spec, version=static_version(spec))


def _twice(keys: Sequence[str]) -> str:
    return next(key for number, key in enumerate(keys) if key in keys[:number])


def _words(text: str) -> list[str]:
    """Split at commas; one within double quotes is part of a word, as absl has it."""
    if not text:
        return []
    return [word.strip() for word in next(csv.reader([text], skipinitialspace=True))]


def _objects(text: str) -> list[dict[str, str]]:
    """Read comma-separated JSON objects, or those that a list of quoted texts holds."""
    decoder, rest = json.JSONDecoder(), text.strip()
    found: list[dict[str, str]] = []
    if rest.startswith('"'):  # absl's way to write commas in a list
        return [one for word in _words(rest) for one in _objects(word)]
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError as exc:
            raise ValueError(f"--model_config_overrides: {rest[:60]!r} is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise ValueError(
                f"--model_config_overrides has {rest[:end]}: give one JSON object for each model"
            )
        found.append({str(name): _text(each) for name, each in value.items()})
        rest = rest[end:].lstrip(" ,;\n")
    return found


def _text(value: object) -> str:
    """Return an override's JSON. A text that is JSON already is meant as what it says, which is
    how Saxml's servers read it."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return json.dumps(value)
        return value
    return json.dumps(value)
