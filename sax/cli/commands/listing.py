"""The `ls` and `status` commands: published models, where they are served, and why not."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from sax.cli.model_argument import full_name
from sax.cli.stages import phase, reason, replica_stages, summary
from sax.cli.terminal import open_client
from sax.command import CommandResult, show_facts, show_table, wants_json
from sax.format import count
from sax.memory_parts import COLUMNS, memory_rows
from sax.names import CellId, ModelId
from sax.types import Autoscaling, JoinedServer, PublishedModel

_GIB = 1 << 30
_MODEL_HEADINGS = ("MODEL", "PATH", "CHECKPOINT", "READY", "STATE", "REASON")
_REPLICA_HEADINGS = ("REPLICA", "STATE", "REASON")
_KERNELS_HEADINGS = ("SERVER", "MODEL", "KERNELS")
_MEMORY_HEADINGS = ("SERVER", *(name.upper() for name in COLUMNS))
# What narrow terminals do without, the first of it first; "failed" and its reason stay.
_LEAST = ("METRICS", "TOPOLOGY", "CHECKPOINT", "PATH", "CHIP", "DEVICES", "READY", "MEMORY")
_LEAST_OF_MEMORY = ("SLOT STATE", "WORKSPACE", "SLOTS X CONTEXT", "KV PAGES", "WEIGHTS", "SERVER")
_SERVER_HEADINGS = ("SERVER", "CHIP", "TOPOLOGY", "DEVICES", "MEMORY", "METRICS", "MODELS")


def ls(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="/sax, a cell, or one model to see its details.")
    ] = "/sax",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False,
) -> CommandResult:
    """List the published models, or show all details of one.

    \b
    Examples:
      sax ls
      sax ls /sax/test
      sax ls /sax/test/smollm2 --json
      sax ls --csv > models.csv
    """
    if wants_json() and as_csv:
        raise typer.BadParameter("give --json or --csv, not both")
    with open_client(ctx) as client:
        if "/" not in name:
            name = full_name([each.spec.model_id for each in client.list_all()], name)
        if name.count("/") == 3:
            model = client.list(str(ModelId.parse(name)))
            text = partial(print_csv, [model]) if as_csv else partial(show_model, model)
            return CommandResult(model_value(model), text)
        cell = None if name.rstrip("/") == "/sax" else str(CellId.parse(name))
        models = client.list_all(cell)
    text = partial(print_csv if as_csv else show_models, models)
    return CommandResult([model_value(model) for model in models], text)


def status(ctx: typer.Context) -> CommandResult:
    """Show the whole cell.

    Lists its model servers with their memory, its models, and why any of them is not ready.

    \b
    Examples:
      sax status
      sax --admin 10.0.0.5:10000 status --json
    """
    with open_client(ctx) as client:
        servers, models = client.servers(), client.list_all()
    value = {
        "servers": [server_value(server) for server in servers],
        "models": [model_value(model) for model in models],
    }
    return CommandResult(value, partial(_show_cell, servers, models))


def _show_cell(servers: Sequence[JoinedServer], models: Sequence[PublishedModel]) -> None:
    if servers:
        show_table(_SERVER_HEADINGS, [server_row(server) for server in servers], _LEAST)
        show_memory(servers)
        show_kernels(servers)
    else:
        print("no model server has joined; to start one, see: python -m model_server --help")
    print()
    show_models(models)


def show_models(models: Sequence[PublishedModel]) -> None:
    if models:
        show_table(_MODEL_HEADINGS, [model_row(model) for model in models], _LEAST)
    else:
        print("nothing is published; see: sax publish --help")


def print_csv(models: Sequence[PublishedModel]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([_MODEL_HEADINGS, *map(model_row, models)])


def show_model(model: PublishedModel) -> None:
    show_facts(details(model))
    if model.replicas:
        print()
        show_table(_REPLICA_HEADINGS, replica_rows(model))


def model_row(model: PublishedModel) -> tuple[str, ...]:
    spec = model.spec
    ready = f"{model.ready_replicas}/{model.wanted_replicas}"
    return (
        spec.model_id,
        spec.model_path,
        spec.checkpoint,
        ready,
        summary(model) + (f", canary {canary.percent:g}%" if (canary := spec.canary) else ""),
        reason(model) or "; ".join((*model.notes, *model.warnings)),
    )


def details(model: PublishedModel) -> list[tuple[str, str]]:
    spec = model.spec
    lines = [
        ("model", spec.model_id),
        ("path", spec.model_path),
        ("checkpoint", spec.checkpoint),
        ("ready", f"{model.ready_replicas} of {model.wanted_replicas}"),
        ("state", summary(model)),
        ("methods", ", ".join(model.methods)),
        ("version", spec.version),
        ("canary", canary_line(model)),
        ("revision", str(spec.revision or "")),
        ("admin acl", spec.admin_acl),
        ("autoscaling", bounds(spec.autoscaling)),
        ("scaling", model.scaling_reason),
        *(("note", note) for note in model.notes),
        *(("warning", warning) for warning in model.warnings),
    ]
    lines += [("acl", f"{method}: {acl}") for method, acl in sorted(spec.acls.items()) if acl]
    lines += [("override", f"{key}={value}") for key, value in sorted(spec.overrides.items())]
    return [(key, value) for key, value in lines if value]


def bounds(autoscaling: Autoscaling | None) -> str:
    if autoscaling is None:
        return ""
    least, most = autoscaling.min_replicas, autoscaling.max_replicas
    return f"{least} to {most} replicas, for a queue of {autoscaling.target_queue:g} each"


def canary_line(model: PublishedModel) -> str:
    """Return a running canary in words, "" without one."""
    if (canary := model.spec.canary) is None:
        return ""
    ready = count(model.ready_canaries, "ready replica")
    return f"{canary.percent:g}% of the requests, {ready}, {canary.checkpoint}, {canary.version}"


def replica_rows(model: PublishedModel) -> list[tuple[str, ...]]:
    stages = replica_stages(model)
    return [
        (
            replica.address or "(no server)",
            f"{stage.text} (canary)" if replica.canary else stage.text,
            replica.reason or replica.note,
        )
        for replica, stage in zip(model.replicas, stages, strict=False)
    ]


def server_row(server: JoinedServer) -> tuple[str, ...]:
    info = server.info
    models = ", ".join(f"{held.model_id} ({held.status.value})" for held in server.servables)
    return (
        info.address,
        info.chip_type,
        info.chip_topology,
        str(info.devices or "-"),
        memory(server),
        info.debug_address or "-",
        models or "-",
    )


def memory(server: JoinedServer) -> str:
    """Format used and total memory as "0.4 of 24.0 GiB", or "-" if the server reports none."""
    total = server.info.memory_total
    return f"{server.memory_used / _GIB:.1f} of {total / _GIB:.1f} GiB" if total else "-"


def show_memory(servers: Sequence[JoinedServer]) -> None:
    """Print the memory plan of every server that tells of one."""
    rows = [row for server in servers for row in _memory_rows(server)]
    if rows:
        print()
        show_table(_MEMORY_HEADINGS, rows, _LEAST_OF_MEMORY)


def show_kernels(servers: Sequence[JoinedServer]) -> None:
    """Print the kernels of every loaded model whose server tells of them."""
    rows = [
        (server.info.address, held.model_id, held.kernels)
        for server in servers
        for held in server.servables
        if held.kernels
    ]
    if rows:
        print()
        show_table(_KERNELS_HEADINGS, rows)


def _memory_rows(server: JoinedServer) -> Iterator[tuple[str, ...]]:
    planned = [(each.model_id, each.parts) for each in server.servables if each.parts.total]
    if planned:
        for row in memory_rows(planned, total=server.info.memory_total):
            yield server.info.address, *row


def model_value(model: PublishedModel) -> dict[str, Any]:
    """Return a model as JSON values, with the fields that `sax ls` derives from it."""
    value: dict[str, Any] = msgspec.to_builtins(model)
    for replica, status_of in zip(value["replicas"], model.replicas, strict=True):
        replica["phase"] = phase(status_of)
    return {**value, "ready_replicas": model.ready_replicas, "state": summary(model)}


def server_value(server: JoinedServer) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(server)
    return value
