"""The `publish`, `update` and `unpublish` commands."""

from __future__ import annotations

from typing import Annotated

import typer

from sax.canary import read_percent
from sax.cli.commands.wait import wait_until_ready
from sax.cli.model_argument import Model, NewModel
from sax.cli.publication import absolute_checkpoint, parse_publication, warn_of
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, Wait, parse_overrides
from sax.scaling import Scaling, named

MinReplicas = Annotated[
    int | None,
    typer.Option(min=0, help="Autoscaling: fewest replicas; 0 unloads the model when idle."),
]
MaxReplicas = Annotated[int | None, typer.Option(min=1, help="Autoscaling: most replicas.")]
TargetQueue = Annotated[
    float | None, typer.Option(help="Autoscaling: target number of queued requests per replica.")
]


def publish(
    ctx: typer.Context,
    model: NewModel,
    model_path: Annotated[
        str, typer.Argument(metavar="MODEL_PATH", help="Kind of model, e.g. llama.")
    ],
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A GGUF file, a Hugging Face folder, ORG/NAME of a Hugging Face hub (also "
            'hf://ORG/NAME@REVISION:FILE), or "None" for random weights.',
        ),
    ],
    rest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REPLICAS KEY=JSON",
            help="Number of replicas (default 1), then parameter overrides with JSON values.",
        ),
    ] = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    target_queue: TargetQueue = None,
    wait: Wait = False,
) -> Results:
    """Publish a model.

    Its cell loads it and keeps serving it.

    \b
    Examples:
      sax publish /sax/test/smollm2 llama ./SmolLM2-135M-Instruct.Q4_1.gguf --wait
      sax publish smollm2 auto HuggingFaceTB/SmolLM2-135M-Instruct --wait
      sax publish /sax/test/smollm2 llama /models/smollm2 2
      sax publish /sax/test/smollm2 llama /models/smollm2 --min-replicas 0 --max-replicas 4
      sax publish /sax/test/tiny lm_cloud.LmCloudSpmd2BTest None 1 NUM_LAYERS=2 MODEL_DIMS=256
    """
    wanted = parse_publication([model, model_path, checkpoint, *(rest or [])])
    with open_client(ctx) as client:
        client.publish(
            wanted.model_id,
            wanted.model_path,
            wanted.checkpoint,
            wanted.replicas,
            wanted.overrides,
            autoscaling=named(min_replicas, max_replicas, target_queue),
        )
    warn_of(wanted)
    yield _done("published", wanted.model_id)
    if wait:
        wait_until_ready(ctx, wanted.model_id)


def update(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[str | None, typer.Option(help="New checkpoint.")] = None,
    replicas: Annotated[int | None, typer.Option(min=0, help="New number of replicas.")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=JSON", help="Replaces all current overrides; repeatable."),
    ] = None,
    revision: Annotated[
        int | None,
        typer.Option(
            min=1, help="Update only if the model is still at this revision (see `sax ls MODEL`)."
        ),
    ] = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    target_queue: TargetQueue = None,
    no_autoscaling: Annotated[
        bool, typer.Option("--no-autoscaling", help="Always run the published number of replicas.")
    ] = False,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Try it first: give the new checkpoint or overrides this part of the requests.",
        ),
    ] = None,
    wait: Wait = False,
) -> Results:
    """Change a published model.

    Options that are not given stay as they are. Changing only the replicas reloads nothing. The
    model path cannot change: unpublish first.

    With --canary the new version serves a part of the requests beside the old one, until
    `sax promote` or `sax abort`; again with --canary alone, it gets another part.

    \b
    Examples:
      sax update /sax/test/smollm2 --replicas 2 --wait
      sax update /sax/test/smollm2 --checkpoint /models/smollm2-v2
      sax update /sax/test/smollm2 --checkpoint /models/smollm2-v2 --canary 10%
      sax update /sax/test/smollm2 --replicas 3 --revision 41
      sax update /sax/test/smollm2 --max-replicas 8 --target-queue 2
    """
    autoscaling = named(min_replicas, max_replicas, target_queue)
    if no_autoscaling and autoscaling:
        raise typer.BadParameter("--no-autoscaling excludes all other autoscaling options")
    scaling: Scaling | None = "off" if no_autoscaling else autoscaling
    percent = None if canary is None else read_percent(canary)
    if all(each is None for each in (checkpoint, replicas, override, scaling, percent)):
        raise typer.BadParameter("give something to change, e.g. --replicas 2")
    with open_client(ctx) as client:
        client.update(
            model,
            checkpoint=None if checkpoint is None else absolute_checkpoint(checkpoint),
            replicas=replicas,
            overrides=None if override is None else parse_overrides(override),
            revision=revision,
            autoscaling=scaling,
            canary=percent,
        )
    what = "updated" if percent is None else f"canary at {percent:g}% of"
    yield _done(what, model)
    if wait:
        wait_until_ready(ctx, model, settled=percent is not None)


def promote(ctx: typer.Context, model: Model, wait: Wait = False) -> Results:
    """Roll a canary out to all replicas.

    The replicas that do not have it yet follow one by one.

    \b
    Example:
      sax promote /sax/test/smollm2 --wait
    """
    with open_client(ctx) as client:
        client.promote(model)
    yield _done("promoted the canary of", model)
    if wait:
        wait_until_ready(ctx, model, settled=True)


def abort(ctx: typer.Context, model: Model, wait: Wait = False) -> Results:
    """Go back from a canary.

    All requests go to the version from before it at once; its replicas return to that one by one.

    \b
    Example:
      sax abort /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.abort(model)
    yield _done("aborted the canary of", model)
    if wait:
        wait_until_ready(ctx, model, settled=True)


def unpublish(ctx: typer.Context, model: Model) -> CommandResult:
    """Unpublish a model.

    Its replicas are unloaded and its name becomes free.

    \b
    Example:
      sax unpublish /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.unpublish(model)
    return _done("unpublished", model)


def _done(what: str, model: str) -> CommandResult:
    return CommandResult({"model": model, "done": what}, f"{what} {model}")
