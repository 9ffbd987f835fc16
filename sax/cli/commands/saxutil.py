"""Saxml's `saxutil` verbs that have another name here or that this system does not support.

Most are hidden from `sax --help`: they serve people used to saxutil. Scripts run `saxutil` itself,
whose flags are Saxml's (`sax.cli.saxutil`).
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from sax.cli.commands.requests import embed, generate, gradient
from sax.cli.commands.wait import wait_until_ready
from sax.cli.model_argument import Model
from sax.cli.publication import absolute_checkpoint
from sax.cli.saxutil.unsupported import CREATE, DELETE, EXPORT, SAVE, unsupported
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, Wait

Words = Annotated[list[str] | None, typer.Argument(metavar="...")]


def update_checkpoint(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="New checkpoint.")],
    wait: Wait = False,
) -> Results:
    """Change the checkpoint of a published model.

    Replicas switch over one at a time; `sax rollback` undoes the change.

    \b
    Examples:
      sax update-checkpoint /sax/test/smollm2 /models/smollm2-v2 --wait
      sax update-checkpoint /sax/test/smollm2 None
    """
    path = absolute_checkpoint(checkpoint)
    with open_client(ctx) as client:
        client.update(model, checkpoint=path)
    yield CommandResult({"model": model, "checkpoint": path}, f"updated {model}")
    if wait:
        wait_until_ready(ctx, model)


def score(
    ctx: typer.Context,
    model: Model,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Text before each suffix.")],
    suffixes: Annotated[
        list[str], typer.Argument(metavar="SUFFIX...", help="Texts to score; - reads stdin.")
    ],
) -> CommandResult:
    """Score how likely each suffix is after a prefix.

    Prints the log-probability of each suffix, in order. A model with a chat template reads the
    prefix as a user's message and the suffix as the assistant's answer, as Saxml's Generate does;
    publish it with QUERY_FORMAT="raw" to score bare text.

    \b
    Examples:
      sax score /sax/test/smollm2 "What is the capital of France?" "It is Paris." "It is Rome."
      sax lm.score /sax/test/raw "Two and two are" " four" --json
    """
    texts = [sys.stdin.read() if text == "-" else text for text in suffixes]
    with open_client(ctx) as client:
        scores = client.score(model, prefix, texts)
    return CommandResult(scores, "\n".join(f"{each:.6f}" for each in scores))


def create(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: a cell exists as soon as its admin server runs.

    \b
    Example:
      python -m admin_server --sax_cell=/sax/test --fs_root=/var/sax
    """
    raise unsupported(CREATE)


def delete(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported, so that nobody deletes a cell by mistake.

    \b
    Example:
      sax unpublish /sax/test/smollm2
    """
    raise unsupported(DELETE)


def export(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: `saxutil export` writes a program and weights.

    \b
    Example:
      sax convert MODEL.gguf FOLDER
    """
    raise unsupported(EXPORT)


def save(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: `saxutil save` writes the checkpoint of a loaded model.

    \b
    Example:
      sax versions /sax/test/smollm2
    """
    raise unsupported(SAVE)


def register(app: typer.Typer) -> None:
    app.command("update-checkpoint")(update_checkpoint)
    app.command("score")(score)
    aliases = {
        "update_checkpoint": update_checkpoint,
        "lm.generate": generate,
        "lm.score": score,
        "lm.embed": embed,
        "lm.gradient": gradient,
    }
    for name, command in aliases.items():
        app.command(name, hidden=True)(command)
    loose = {"allow_extra_args": True, "ignore_unknown_options": True}
    for command in (create, delete, export, save):
        app.command(command.__name__, hidden=True, context_settings=loose)(command)
