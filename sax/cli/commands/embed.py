"""The `embed` command: turns texts into vectors."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sax.cli.terminal import open_client


def embed(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="Texts to embed; - reads stdin, one text per line."),
    ],
) -> None:
    """Turn texts into vectors with an embedding model.

    Prints one JSON list of numbers per text, one per line, in order.

    \b
    Examples:
      sax embed /sax/test/minilm "eating food" "eating a meal"
      sax embed /sax/test/minilm - < sentences.txt > vectors.jsonl
    """
    inputs = [line for text in texts for line in (_lines() if text == "-" else [text])]
    with open_client(ctx) as client:
        for vector in client.embed(model, inputs):
            sys.stdout.write(json.dumps(vector) + "\n")
    sys.stdout.flush()


def _lines() -> list[str]:
    return [line for line in sys.stdin.read().splitlines() if line]
