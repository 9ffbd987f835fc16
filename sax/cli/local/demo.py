"""The `demo` command: starts a cell with a model, asks one question, shows what to try next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sax.cli.computing import check_installed
from sax.cli.local.bring_up import Voice, publish_and_wait, run_cell
from sax.cli.local.cell_plan import CellPlan, default_compile_cache
from sax.cli.local.up import (
    AdminPort,
    CompileCache,
    DevicesPerHost,
    Folder,
    GatewayPort,
    GroupPort,
    Host,
    Hosts,
    Imports,
    MetricsPort,
    ModelPort,
    StatusPort,
)
from sax.cli.publication import Publication, parse_publication
from sax.client import AsyncClient
from sax.config import (
    ADMIN_PORT,
    ADMIN_STATUS_PORT,
    GATEWAY_PORT,
    GROUP_PORT,
    MODEL_METRICS_PORT,
    MODEL_PORT,
)
from sax.host import machine_memory
from sax.types import GenerateRequest, Message, SamplingParams

MODEL = "/sax/test/smollm2"
QUESTION = "What is the capital of France?"


def demo(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(exists=True, metavar="CHECKPOINT", help="SmolLM2 as a GGUF file.")
    ],
    folder: Folder = Path(".sax"),
    compile_cache: CompileCache = None,
    host: Host = "127.0.0.1",
    port: GatewayPort = GATEWAY_PORT,
    admin_port: AdminPort = ADMIN_PORT,
    model_port: ModelPort = MODEL_PORT,
    status_port: StatusPort = ADMIN_STATUS_PORT,
    metrics_port: MetricsPort = MODEL_METRICS_PORT,
    hosts: Hosts = 1,
    devices_per_host: DevicesPerHost = None,
    group_port: GroupPort = GROUP_PORT,
    imports: Imports = None,
) -> None:
    """Run a cell with the demo model.

    Starts a cell, publishes the model, asks it one question, and keeps serving.
    `make demo` downloads the model and runs this. Flags after -- go to the model server.

    \b
    Example:
      sax demo ./SmolLM2-135M-Instruct.Q4_1.gguf
    """
    check_installed("demo")
    plan = CellPlan(
        folder=folder,
        compile_cache=compile_cache or default_compile_cache(),
        host=host,
        admin_port=admin_port,
        model_port=model_port,
        gateway_port=port,
        status_port=status_port,
        metrics_port=metrics_port,
        group_port=group_port,
        hosts=hosts,
        devices_per_host=devices_per_host,
        memory=machine_memory(),
        imports=tuple(imports or ()),
        model_server_flags=tuple(ctx.args),
    )
    wanted = parse_publication([MODEL, "llama", str(checkpoint), "1"])
    asyncio.run(run_cell(plan, _Demo(plan, wanted)))


class _Demo:
    def __init__(self, plan: CellPlan, wanted: Publication) -> None:
        self._plan = plan
        self._wanted = wanted

    async def __call__(self, client: AsyncClient, voice: Voice) -> None:
        await publish_and_wait(client, self._wanted, voice)
        print(f"\n> {QUESTION}")
        request = GenerateRequest(
            model_id=MODEL,
            prompt=(Message("user", QUESTION),),
            sampling=SamplingParams(temperature=0, max_tokens=64),
        )
        async for chunk in client.generate(request):
            print(chunk.text, end="", flush=True)
        print(f"\n\n{what_next(self._plan, self._wanted)}", flush=True)


def what_next(plan: CellPlan, wanted: Publication) -> str:
    """Return curl commands to try: Saxml's tutorial, then OpenAI's API."""
    json_header = '--header "Content-type: application/json"'
    name = f'{{"model": "{wanted.model_id}"}}'
    query = f'{{"model": "{wanted.model_id}", "query": "How many days are in a week?"}}'
    publication = (
        f'{{"model": "{wanted.model_id}", "model_path": "{wanted.model_path}", '
        f'"checkpoint": "{wanted.checkpoint}", "replicas": {wanted.replicas}}}'
    )
    chat = f'{{"model": "{wanted.model_id}", "temperature": 0, "stream": true, "messages": ' + (
        f'[{{"role": "user", "content": "{QUESTION}"}}]}}'
    )
    address = "${LB_IP}:${PORT}"
    return "\n".join(
        (
            f"Serving at {plan.gateway_url}. Try these in another terminal:",
            "",
            f"LB_IP={plan.gateway_host} PORT={plan.gateway_port}",
            f"curl --request GET {json_header} -s {address}/listcell --data '{name}'",
            f"curl --request POST {json_header} -s {address}/generate --data '{query}'",
            f"curl --request POST {json_header} -s {address}/unpublish --data '{name}'",
            f"curl --request POST {json_header} -s {address}/publish --data '{publication}'",
            f"curl -sN {json_header} {address}/v1/chat/completions --data '{chat}'",
            "",
            "Ctrl-C drains and stops.",
        )
    )
