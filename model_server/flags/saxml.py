"""The flags of Saxml's model server that sax would not need: for command lines written for it."""

from __future__ import annotations

import argparse
from collections.abc import MutableMapping
from typing import Any

from model_server.flags.static_models import StaticFlags, static_models
from sax.flags.parser import add_jax_flags
from sax.flags.process_logs import add_idle_flags
from sax.types import ModelSpec

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
