"""The `convert` command: converts a checkpoint to another format.

Runs `model_server.plan.checkpoint.convert` in its own process: the SDK does not import jax.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sax.cli.computing import compute

_MODULE = "model_server.plan.checkpoint.convert"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A GGUF file, a Hugging Face folder, or an Orbax checkpoint "
            "(also at gs:// or s3://).",
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="Output: NAME.gguf writes a GGUF file, other names a folder."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="huggingface, gguf or orbax; default: from the name of DST."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16, for GGUF also q8_0 or q4_0; default: lossless."
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum file size in a Hugging Face folder (default: 5GB).",
        ),
    ] = None,
) -> None:
    """Convert a checkpoint to another format.

    Hugging Face folders, GGUF files and Orbax checkpoints can each become any other. A Hugging Face
    folder holds config.json, model.safetensors (or its shards) and tokenizer.json. An Orbax folder
    holds the same files, with the weights as Orbax arrays under the same names.

    \b
    Examples:
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2 --dtype bfloat16
      sax convert ./smollm2 smollm2.gguf
      sax convert ./smollm2 ./smollm2-orbax --to orbax
      sax convert gs://bucket/checkpoints/100 ./mine --max-shard-size 2GB
    """
    options = {"--to": to, "--dtype": dtype, "--max-shard-size": max_shard_size}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    raise compute("convert", _MODULE, [*given, "--", source, destination])
