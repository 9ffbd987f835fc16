"""The flags of Saxml's model server that sax would not need: for command lines written for it.

Among them models that a server loads by its own flags: no admin server has to publish them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sax.flags.parser import add_jax_flags
from sax.flags.process_logs import add_idle_flags
from sax.names import ModelId, check_checkpoint, check_model_path
from sax.types import ModelSpec, static_version

# Of the libraries that Saxml's model server imports.
PAX_SWITCHES = {
    "pmap_use_tensorstore": "a checkpoint is read as what it is",
    "pax_only_aggregate_summaries": "a server writes no summaries of training",
}


def add_saxml_flags(parser: argparse.ArgumentParser) -> None:
    _add_static(parser)
    _add_others(parser)
    add_jax_flags(parser)
    add_idle_flags(parser, "flags of Pax that change nothing here", PAX_SWITCHES)


def _add_static(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group(
        "models loaded at start, without an admin server (--models PATH,...)",
        "The lists are separated by commas and as long as each other. The server joins a\n"
        "cell only if --sax_cell, --admin or --admin_port is given, and ends if a model\n"
        "cannot be loaded.",
    )
    flags.add_argument(
        "--model_keys",
        default="",
        metavar="IDS",
        help="names under which these models answer, e.g. /sax/test/one,/sax/test/two",
    )
    flags.add_argument(
        "--checkpoints", default="", metavar="PLACES", help="their checkpoints; None: random"
    )
    flags.add_argument(
        "--model_config_overrides",
        default="",
        metavar="JSON,...",
        help='their overrides, a JSON object for each: {"BATCH_SIZE": 4},{}',
    )
    flags.add_argument(
        "--keep_statically_loaded_models",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="refuse to unload them, to load others and to change their checkpoints, whatever an "
        "admin server says",
    )


def _add_others(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("further flags of Saxml's model server")
    flags.add_argument(
        "--admin_port",
        type=int,
        default=0,
        metavar="PORT",
        help="run an admin server of the cell at this port, too, and join it: a process that ends "
        "with this one; its state is where admin_config put it below $SAX_ROOT, else in ./.sax, "
        "its status page two ports above (default: none)",
    )
    flags.add_argument(
        "--deterministic_rng",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="answer requests that bring no seed with one seed, so that the same request gets the "
        "same samples",
    )
    flags.add_argument(
        "--early_reject_on_dormant",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="refuse requests while fewer islands compute than --elastic_slices asks for, so that "
        "clients go to other replicas (default: the islands that are left answer; where none is "
        "left, requests are refused anyway)",
    )
    flags.add_argument(
        "--jax_profiler_port",
        type=int,
        default=0,
        metavar="PORT",
        help="let TensorBoard and xprof profile this process at this port (default: off)",
    )
    flags.add_argument(
        "--jax_platforms",
        default="",
        help="what jax computes on: cpu, tpu, cuda, proxy (default: $JAX_PLATFORMS, else the best "
        "that is here)",
    )


def take_static_models(
    values: MutableMapping[str, Any], default: int
) -> tuple[tuple[ModelSpec, ...], int]:
    """Return the models to load at start, and how many are to share the memory.

    Removes their flags from `values`. Raises ValueError, InvalidName.
    """
    texts = values.pop("models") or []
    paths = [text for text in texts if not text.strip().isdecimal()]
    counts = [int(text) for text in texts if text.strip().isdecimal()]
    static = static_models(
        StaticFlags(
            models=paths[-1:],
            keys=values.pop("model_keys"),
            checkpoints=values.pop("checkpoints"),
            overrides=values.pop("model_config_overrides"),
        )
    )
    return static, counts[-1] if counts else max(default, len(static))


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
