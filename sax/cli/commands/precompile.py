"""The `precompile` command: compiles a model's programs before any server runs them.

Runs `model_server.precompile` in its own process: the SDK does not import jax.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sax.cli.computing import compute

_MODULE = "model_server.precompile"


def precompile(
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
    path: Annotated[
        str | None,
        typer.Option(help="Model path to use instead of the one in the checkpoint's config.json."),
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="If a program does not compile, compile the others."),
    ] = False,
    list_place: Annotated[
        str | None, typer.Option("--list", metavar="PLACE", help="List the program sets at PLACE.")
    ] = None,
) -> None:
    """Compile a model's programs ahead of time.

    Servers that find the programs start without compiling. Needs no TPU (only its compiler: pip
    install libtpu) and no weights. Programs that exist already are not compiled again. A server
    loads programs only from the place given by its flag --programs, because they are code.

    \b
    Examples:
      sax precompile ./smollm2 --topology v5e:2x2
      sax precompile SmolLM2-135M-Instruct.Q4_1.gguf --topology cpu -- --slots 8
      sax precompile LmCloudSpmd175B32Test --topology v5e:4x8 --to gs://bucket/programs
      sax precompile --list gs://bucket/programs
    """
    options = {"--topology": topology, "--to": to, "--path": path, "--list": list_place}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    if keep_going:
        given.append("--keep-going")
    words = [*([] if model is None else [model]), *(rest or [])]
    flags = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    raise compute("precompile", _MODULE, [*words[:flags], *given, "--", *words[flags:]])
