"""The `up` command: runs a whole cell on this machine under one supervisor."""

from __future__ import annotations

import asyncio
import functools
import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sax.auth.credentials import Credentials
from sax.cli.local.bring_up import Voice, Work, publish_and_wait, run_cell
from sax.cli.local.cell_plan import CellPlan, default_compile_cache
from sax.cli.local.gateway_options import starts_a_gateway
from sax.cli.local.server_plan import PORT_STRIDE, ServerPlan
from sax.cli.publication import Publication, check_here, parse_publication
from sax.cli.terminal import async_client_at
from sax.command import CommandResult, Results, check_installed, say, show_result, tell
from sax.config import (
    ADMIN_PORT,
    ADMIN_STATUS_PORT,
    GATEWAY_PORT,
    GROUP_PORT,
    MODEL_METRICS_PORT,
    MODEL_PORT,
    PATHWAYS_PORT,
)
from sax.errors import InvalidRequest, LoadFailed
from sax.host import machine_memory, open_warning

if TYPE_CHECKING:
    from sax.client import AsyncClient

Folder = Annotated[Path, typer.Option("--dir", help="Folder for state and logs.")]
CompileCache = Annotated[
    Path | None,
    typer.Option(
        help="Folder for compiled steps, kept between starts.",
        show_default="~/.cache/sax/compiled",
    ),
]
CellName = Annotated[str, typer.Option(help="Name of the cell.")]
Host = Annotated[
    str,
    typer.Option(help="Address the gateway listens on; 0.0.0.0 serves other machines too."),
]
Port = Annotated[int, typer.Option(help="Port of the gateway.")]
AdminPort = Annotated[int, typer.Option(help="Port of the admin server.")]
ModelPort = Annotated[int, typer.Option(help="Port of the model server.")]
StatusPort = Annotated[int, typer.Option(help="Port of the admin server's status page.")]
MetricsPort = Annotated[int, typer.Option(help="Port of the model server's metrics.")]
Servers = Annotated[
    int,
    typer.Option(
        min=1,
        help=f"Number of model servers; each one's ports are {PORT_STRIDE} above the last's.",
    ),
]
Hosts = Annotated[
    int,
    typer.Option(min=1, help="Processes per model server; together they serve as one replica."),
]
DevicesPerHost = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of CPU devices that each process simulates.",
        show_default="as many as it has",
    ),
]
GroupPort = Annotated[int, typer.Option(help="Port at which a model server's hosts meet.")]
Islands = Annotated[
    int,
    typer.Option(
        min=0,
        help="Number of processes whose devices the model servers compute on, through a "
        "Pathways proxy server; a model is on each, and outlives any one.",
        show_default="none: model servers compute themselves",
    ),
]
DevicesPerIsland = Annotated[
    int, typer.Option(min=1, help="Number of CPU devices that each island simulates.")
]
PathwaysPort = Annotated[
    int,
    typer.Option(help="Port of the proxy server of the islands, whose other ports follow."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Python module that registers custom models in the model server; repeatable.",
    ),
]
SaxmlGeneration = Annotated[
    int, typer.Option(min=1, max=2, help="Generation of Saxml's HTTP replies to imitate.")
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        help="Require callers to send a token whose hash is in this file; see `sax token --help`.",
        show_default="no authentication",
    ),
]
AdminAcl = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="With --tokens: principals that may publish; must include the owner of this "
        "cell's SAX_TOKEN.",
    ),
]


def cell_plan(
    ctx: typer.Context,
    folder: Folder = Path(".sax"),
    compile_cache: CompileCache = None,
    cell: CellName = "/sax/test",
    host: Host = "127.0.0.1",
    port: Port = GATEWAY_PORT,
    admin_port: AdminPort = ADMIN_PORT,
    model_port: ModelPort = MODEL_PORT,
    status_port: StatusPort = ADMIN_STATUS_PORT,
    metrics_port: MetricsPort = MODEL_METRICS_PORT,
    servers: Servers = 1,
    hosts: Hosts = 1,
    devices_per_host: DevicesPerHost = None,
    group_port: GroupPort = GROUP_PORT,
    islands: Islands = 0,
    devices_per_island: DevicesPerIsland = 1,
    pathways_port: PathwaysPort = PATHWAYS_PORT,
    imports: Imports = None,
    saxml_generation: SaxmlGeneration = 2,
    tokens: Tokens = None,
    admin_acl: AdminAcl = "",
    *,
    gateway_flags: tuple[str, ...],
) -> CellPlan:
    """Make a plan from the options of `up` and `demo`. Raises InvalidRequest."""
    return CellPlan(
        folder=folder,
        compile_cache=compile_cache or default_compile_cache(),
        cell=cell,
        host=host,
        admin_port=admin_port,
        model_port=model_port,
        gateway_port=port,
        status_port=status_port,
        metrics_port=metrics_port,
        group_port=group_port,
        servers=servers,
        hosts=hosts,
        devices_per_host=devices_per_host,
        islands=islands,
        devices_per_island=devices_per_island,
        pathways_port=pathways_port,
        memory=machine_memory(),
        saxml_generation=saxml_generation,
        imports=tuple(imports or ()),
        model_server_flags=tuple(ctx.args),
        tokens=tokens,
        admin_acl=admin_acl,
        gateway_flags=gateway_flags,
    )


def runs_a_cell(command: Callable[..., Work]) -> Callable[..., Results]:
    """Turn a function of a CellPlan and its own arguments into a command that runs a cell.

    The command takes those arguments and the options of `cell_plan`.
    """
    shared = dict(inspect.signature(cell_plan, eval_str=True).parameters)
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> Results:
        check_installed(given["ctx"])
        plan = cell_plan(**{name: given.pop(name) for name in shared})
        check_security(plan)
        asyncio.run(run_cell(plan, command(plan, **given)))
        yield from ()  # results are shown while it runs

    ctx, *options = shared.values()
    parameters = [ctx, *own, *options]
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return starts_a_gateway(run)


@runs_a_cell
def up(
    plan: CellPlan,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'MODEL MODEL_PATH CHECKPOINT [REPLICAS] [KEY=JSON ...]'",
            help="Publish this model once the cell is up, as `sax publish` does; repeatable.",
        ),
    ] = None,
) -> Work:
    """Run a whole cell on this machine.

    Admin server, model server and gateway run under one supervisor. With --hosts each model server
    runs as that many processes, as if on that many machines; with --islands it computes on the
    devices of that many others. A process that dies is restarted,
    together with the other hosts of its model server. Published models are still published after a
    restart. Ctrl-C drains and stops; a second Ctrl-C stops at once. Flags after -- go to the model
    servers; the gateway's have options of their own.

    \b
    Examples:
      sax up
      sax up --publish '/sax/test/smollm2 llama ./SmolLM2-135M-Instruct.Q4_1.gguf'
      sax up --publish 'smollm2 auto HuggingFaceTB/SmolLM2-135M-Instruct'
      SAX_TOKEN=$TOKEN sax up --host 0.0.0.0 --tokens tokens.txt --admin-acl me
      sax up --hosts 4 --devices-per-host 2
      sax up --islands 2 --devices-per-island 2
      sax up --lenient --cors_origins '*' --media_hosts '*.example.com'
      sax up --port 9000 --dir /var/lib/sax -- --slots 16 --max_context 4096
    """
    wanted = [parse_publication(shlex.split(text), plan.cell) for text in publish or ()]
    for publication in wanted:
        check_here(publication.checkpoint)

    async def publish_all(voice: Voice) -> None:
        if wanted:  # a client takes as long to import as a server does to start
            async with async_client_at(plan.admin_address) as client:
                await _publish_each(client, wanted, voice)
        show_result(CommandResult(cell_value(plan), announcement(plan)))

    return publish_all


async def _publish_each(client: AsyncClient, wanted: Sequence[Publication], voice: Voice) -> None:
    for publication in wanted:
        try:
            await publish_and_wait(client, publication, voice)
        except LoadFailed as error:
            tell(error)  # the cell keeps serving: `sax update` can fix the model


def check_security(plan: CellPlan) -> None:
    """Warn about an open gateway. Raises InvalidRequest if the cell's processes lack a token."""
    if warning := open_warning(
        plan.host,
        closed=plan.closed,
        offers="ask every model of this cell, and publish or unpublish any",
        remedy="start it with --tokens FILE and --admin-acl NAMES, or without --host",
    ):
        say(f"sax: {warning}")
    if plan.closed and not Credentials.ours().given:
        raise InvalidRequest(
            "with --tokens the cell's own processes need a token too: set SAX_TOKEN, or "
            "SAX_TOKEN_FILE, to the token of a principal in --admin-acl",
            param="SAX_TOKEN",
        )


def cell_value(plan: CellPlan) -> dict[str, Any]:
    """Return the addresses of a cell, for programs."""
    return {
        "cell": plan.cell,
        "gateway": plan.gateway_url,
        "admin": plan.admin_address,
        "model_servers": [server.address for server in plan.model_servers],
        "logs": str(plan.logs),
    }


def announcement(plan: CellPlan) -> str:
    places = [
        ("gateway", f"{plan.gateway_url}   OpenAI clients: {plan.gateway_url}/v1"),
        ("admin server", f"{plan.admin_address}   status: http://127.0.0.1:{plan.status_port}/"),
        *((server.name, _server_place(plan, server)) for server in plan.model_servers),
        *_island_places(plan),
        ("logs", str(plan.logs)),
    ]
    width = max(len(name) for name, _ in places)
    return "\n".join(
        (
            f"cell {plan.cell} is up; Ctrl-C drains and stops it",
            *(f"  {name:<{width}}  {place}" for name, place in places),
        )
    )


def _island_places(plan: CellPlan) -> Iterable[tuple[str, str]]:
    if (islands := plan.island_plan) is not None:
        many = f"{islands.count} of {islands.devices} devices"
        yield ("islands", f"{many}   status: {islands.page_url}")


def _server_place(plan: CellPlan, server: ServerPlan) -> str:
    place = f"{server.address}   metrics: {server.metrics_url}"
    if server.hosts == 1:
        return place
    devices = plan.devices_per_host
    of_each = f" of {devices} devices" if devices else ""
    return f"{place}   {server.hosts} hosts{of_each} meet at {server.meeting_point}"
