"""The command `inspect`: what a checkpoint is and whether it would load.

The work is the model server's (`model_server.checkpoints.inspect`), run as a process of its own:
the SDK does not import jax.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sax.cli.computing import compute

_MODULE = "model_server.checkpoints.inspect"


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A GGUF file, a Hugging Face folder, or an Orbax checkpoint "
            "(which may lie at gs:// or s3://).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what a checkpoint is and everything that would keep it from being loaded.

    Model, parameters, number formats, tokenizer, chat template, memory its weights need. Reads no
    weights and needs no cell. The exit code is 0 if it would load and 1 if not.

    \b
    Examples:
      sax inspect SmolLM2-135M-Instruct.Q4_1.gguf
      sax inspect ./my-finetune
      sax inspect gs://bucket/checkpoints/100 --json
    """
    options = ["--json"] if as_json else []
    raise compute("inspect", _MODULE, [*options, "--", path])
