"""The `inspect` command: shows what a checkpoint holds and whether it would load.

Runs `model_server.plan.checkpoint.inspect` in its own process: the SDK does not import jax.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sax.cli.computing import compute

_MODULE = "model_server.plan.checkpoint.inspect"


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A GGUF file, a Hugging Face folder, or an Orbax checkpoint "
            "(also at gs:// or s3://).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what a checkpoint holds.

    Prints the model, parameters, number formats, tokenizer, chat template, the memory that the
    weights need, and everything that would prevent loading it. Reads no weights and needs no cell.
    Exit status: 0 it would load, 1 it would not.

    \b
    Examples:
      sax inspect SmolLM2-135M-Instruct.Q4_1.gguf
      sax inspect ./my-finetune
      sax inspect gs://bucket/checkpoints/100 --json
    """
    options = ["--json"] if as_json else []
    raise compute("inspect", _MODULE, [*options, "--", path])
