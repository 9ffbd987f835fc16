"""Commands that change a loaded model's weights in place, and that pause its engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sax.cli.model_argument import Model
from sax.cli.publication import absolute_checkpoint
from sax.cli.terminal import open_client
from sax.command import CommandResult
from sax.weights import CHANGE_S, Pausing

Mode = Annotated[
    str,
    typer.Option(
        help="Answers that have begun: they end first (wait), go on with their keys and values "
        "(keep), or compute these again (recompute)."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds until it is given up.")]


def update_weights(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="As of publish; or a safetensors file, or shm:NAME for shared memory with one.",
        ),
    ],
    mode: Mode = Pausing.WAIT,
    partial: Annotated[
        bool, typer.Option("--partial", help="The checkpoint has some of the tensors.")
    ] = False,
    weights_version: Annotated[str, typer.Option(help="To name them; default: a number.")] = "",
    expected: Annotated[str, typer.Option(help="Version that they replace.")] = "",
    timeout: Timeout = CHANGE_S,
) -> CommandResult:
    """Replace a model's weights while it serves.

    Every ready replica reads them, puts them in place between two steps, compiles nothing and
    loses no request. They are not recorded: a replica that starts anew has the checkpoint that the
    model is published with (`sax update` changes that one).

    \b
    Examples:
      sax update-weights /sax/test/smollm2 /models/step-1200
      sax update-weights /sax/test/smollm2 /models/step-1200/head.safetensors --partial --mode keep
    """
    source = checkpoint if checkpoint.startswith("shm:") else absolute_checkpoint(checkpoint)
    with open_client(ctx) as client:
        version = client.update_weights(
            model,
            source,
            version=weights_version,
            expected=expected,
            partial=partial,
            mode=mode,
            timeout_s=timeout,
        )
    value = {"model": model, "version": version}
    return CommandResult(value, f"{model} has weights of version {version}")


def pause(ctx: typer.Context, model: Model, mode: Mode = Pausing.WAIT) -> CommandResult:
    """Have a model compute nothing until `sax resume`; requests wait.

    \b
    Example:
      sax pause /sax/test/smollm2 --mode keep
    """
    with open_client(ctx) as client:
        client.pause(model, mode)
    return CommandResult({"model": model, "done": "paused"}, f"paused {model}")


def resume(ctx: typer.Context, model: Model) -> CommandResult:
    """End a pause.

    \b
    Example:
      sax resume /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.resume(model)
    return CommandResult({"model": model, "done": "resumed"}, f"resumed {model}")


def sleep(ctx: typer.Context, model: Model, mode: Mode = Pausing.WAIT) -> CommandResult:
    """Free a model's weights and pages; its process and programs stay, for `sax wake`.

    \b
    Example:
      sax sleep /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.sleep(model, mode)
    return CommandResult({"model": model, "done": "asleep"}, f"{model} sleeps")


def wake(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Default: the one of before.")
    ] = "",
) -> CommandResult:
    """Read the weights of a model that sleeps, and serve it.

    \b
    Example:
      sax wake /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.wake(model, absolute_checkpoint(checkpoint) if checkpoint else "")
    return CommandResult({"model": model, "done": "awake"}, f"{model} is awake")


def weights(ctx: typer.Context, model: Model) -> CommandResult:
    """Show the version of the weights of each ready replica.

    \b
    Example:
      sax weights /sax/test/smollm2
    """
    with open_client(ctx) as client:
        replicas = client.weights(model)
    lines = [f"{each.address}  {each.version}  {each.state}" for each in replicas]
    shown = "\n".join(lines) or f"no replica of {model} is ready"
    return CommandResult([asdict(each) for each in replicas], shown)
