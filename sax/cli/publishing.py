"""The commands `publish`, `update` and `unpublish`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sax.cli.connection import open_client
from sax.cli.publication import absolute_checkpoint, parse_overrides, parse_publication
from sax.cli.waiting import wait_until_ready

Model = Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def publish(
    ctx: typer.Context,
    model: Model,
    model_path: Annotated[
        str, typer.Argument(metavar="MODEL_PATH", help="What kind of model it is, as in llama.")
    ],
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help='A GGUF file, a Hugging Face folder, or "None" for random weights.',
        ),
    ],
    rest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REPLICAS KEY=JSON",
            help="How many replicas (1), and overrides of the model's parameters in JSON.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when all replicas are ready.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a model: its cell loads it and keeps it served.

    \b
    Examples:
      sax publish /sax/test/smollm2 llama ./SmolLM2-135M-Instruct.Q4_1.gguf --wait
      sax publish /sax/test/smollm2 llama /models/smollm2 2
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
        )
    _say_done("published", wanted.model_id, as_json=as_json)
    if wait:
        wait_until_ready(ctx, wanted.model_id)


def update(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[str | None, typer.Option(help="Another checkpoint.")] = None,
    replicas: Annotated[int | None, typer.Option(min=0, help="Another number.")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=JSON", help="All overrides from now on; repeatable."),
    ] = None,
    revision: Annotated[
        int | None,
        typer.Option(
            min=1, help="Only if this is still the model's revision, as `sax ls MODEL` shows it."
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when all replicas are ready.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change a published model; what is not named stays as it is.

    Replicas alone change without reloading. The model path cannot change: unpublish first.

    \b
    Examples:
      sax update /sax/test/smollm2 --replicas 2 --wait
      sax update /sax/test/smollm2 --checkpoint /models/smollm2-v2
      sax update /sax/test/smollm2 --replicas 3 --revision 41
    """
    if checkpoint is None and replicas is None and override is None:
        raise typer.BadParameter("name something to change, as in --replicas 2")
    with open_client(ctx) as client:
        client.update(
            model,
            checkpoint=None if checkpoint is None else absolute_checkpoint(checkpoint),
            replicas=replicas,
            overrides=None if override is None else parse_overrides(override),
            revision=revision,
        )
    _say_done("updated", model, as_json=as_json)
    if wait:
        wait_until_ready(ctx, model)


def unpublish(ctx: typer.Context, model: Model, as_json: AsJson = False) -> None:
    """Take a model back.

    Its replicas are unloaded and its name is free again.

    \b
    Example:
      sax unpublish /sax/test/smollm2
    """
    with open_client(ctx) as client:
        client.unpublish(model)
    _say_done("unpublished", model, as_json=as_json)


def _say_done(what: str, model: str, *, as_json: bool) -> None:
    print(json.dumps({"model": model, "done": what}) if as_json else f"{what} {model}")
