"""The command `sax precompile`, also run as `python -m model_server.precompile`.

Imports jax only once it runs, with the environment set: `sax` loads this module at every start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sax.command import (
    WRONG,
    CommandResult,
    ModelPath,
    check_installed,
    fail,
    parse_overrides,
    run_alone,
)
from sax.errors import InvalidRequest, ModelPathNotFound, SaxError

if TYPE_CHECKING:
    from model_server.config import ModelServerConfig
    from model_server.plan.precompile.subject import Subject

_INCOMPLETE = 1  # exit status: some programs could not be compiled


def precompile(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint (file, folder, gs:// or s3://), a model path, a config.json, or a "
            "well-known model.",
            show_default=False,
        ),
    ] = None,
    rest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=JSON -- FLAGS",
            help="Overrides as for `sax publish`; after --, the flags of the model server.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="v5e:4x8, v6e:2x2, ..., or cpu, cpu:2, ..."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Output folder, gs:// or s3:// URL; default: sax-programs beside the checkpoint.",
        ),
    ] = None,
    path: ModelPath = None,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="If a program does not compile, compile the others."),
    ] = False,
    list_place: Annotated[
        str | None, typer.Option("--list", metavar="PLACE", help="List the program sets at PLACE.")
    ] = None,
) -> CommandResult:
    """Compile a model's programs ahead of time.

    Servers that find the programs start without compiling. Needs no TPU (only its compiler: pip
    install libtpu) and no weights. Programs that exist already are not compiled again. A server
    loads programs only from the place given by its flag --programs, because they are code. Exit
    status: 0 all programs compiled, 1 some could not be compiled, 2 bad arguments.

    \b
    Examples:
      sax precompile ./smollm2 --topology v5e:2x2
      sax precompile SmolLM2-135M-Instruct.Q4_1.gguf --topology cpu -- --slots 8
      sax precompile LmCloudSpmd175B32Test --topology v5e:4x8 --to gs://bucket/programs
      sax precompile --list gs://bucket/programs
    """
    check_installed(ctx)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    words = [word for word in (model, *(rest or ())) if word is not None]
    end = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    try:
        if list_place is not None:
            from model_server.plan.precompile.making import list_sets

            return list_sets(list_place)
        if not end or topology is None:
            raise typer.BadParameter("give MODEL and --topology, or --list PLACE")
        overrides = parse_overrides(words[1:end])
        config = _config(words[end:], topology)
        set_environment(config)
        from model_server.plan.precompile.making import make_set
        from model_server.plan.precompile.subject import subject_of
        from model_server.process.start import import_modules

        import_modules(config.imports)
        subject = subject_of(words[0], overrides, topology, config, path)
        value = make_set(subject, _place(words[0], to, subject), keep_going)
    except SaxError as error:
        wrong = isinstance(error, InvalidRequest | ModelPathNotFound)
        fail(error, WRONG if wrong else _INCOMPLETE)
    return CommandResult(value, lambda: None, _INCOMPLETE if value["failed"] else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_alone(precompile, "python -m model_server.precompile", arguments)


def _config(flags: Sequence[str], topology: str) -> ModelServerConfig:
    """Parse the server's flags, without jax: its environment is not set yet."""
    from model_server.flags.command_line import make_config
    from model_server.plan.slices import cpu_devices

    config = make_config(flags)
    devices = cpu_devices(topology)
    if devices is not None and devices > 1:
        config = replace(config, cpu_devices=devices)
    return config


def set_environment(config: ModelServerConfig) -> None:
    """Set variables as a server would, but so that this process only compiles; call before jax."""
    for name, value in config.environment().items():
        os.environ.setdefault(name, value)
    os.environ["JAX_PLATFORMS"] = "cpu"  # leave a local TPU to its model server
    # XLA:CPU cannot serialise a program that it read from this cache.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def _place(model: str, to: str | None, subject: Subject) -> str:
    from model_server.programs.place import beside

    if place := to or (beside(model) if subject.has_checkpoint else None):
        return place if "://" in place else os.path.abspath(os.path.expanduser(place))
    raise InvalidRequest(
        f"{subject.title} has no checkpoint to write programs beside: say where to write them, as "
        "in --to gs://BUCKET/programs",
        param="to",
    )
