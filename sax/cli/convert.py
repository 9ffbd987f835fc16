"""The command `convert`: one checkpoint format into another.

The work is the model server's (`model_server.checkpoints.convert`), run as a process of its own:
the SDK does not import jax.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

_MODULE = "model_server.checkpoints.convert"


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A GGUF file or a Hugging Face folder.")
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="What to write: NAME.gguf is a GGUF file, else a folder."
        ),
    ],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; by default nothing is lost.")
    ] = None,
) -> None:
    """Convert a checkpoint: GGUF file to Hugging Face folder, or back.

    A folder holds config.json, model.safetensors and tokenizer.json.

    \b
    Examples:
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2 --dtype bfloat16
      sax convert ./smollm2 smollm2.gguf
    """
    command = [sys.executable, "-m", _MODULE, source, destination]
    if dtype is not None:
        command += ["--dtype", dtype]
    raise typer.Exit(subprocess.run(command).returncode)
