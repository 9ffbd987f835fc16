"""The command `chat`: a conversation at the terminal, or one question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from sax.cli.connection import open_client
from sax.cli.generate import (
    MaxTokens,
    NoStream,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    print_answer,
)
from sax.cli.terminal import say
from sax.client import Client
from sax.types import GenerateRequest, Message, SamplingParams


def chat(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")],
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="Ask this and exit; - reads it from stdin."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the first question.")
    ] = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    max_tokens: MaxTokens = 512,
    stop: Stop = None,
    no_stream: NoStream = False,
) -> None:
    """Talk with a model; with a QUESTION, ask once and exit. Ctrl-D ends a conversation.

    \b
    Examples:
      sax chat /sax/test/smollm2
      sax chat /sax/test/smollm2 "What is the capital of France?"
      sax chat /sax/test/smollm2 --system "Answer in one word." --temperature 0.7
    """
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    messages = [] if system is None else [Message("system", system)]
    with open_client(ctx) as client:
        for asked in [_once(question)] if question is not None else _questions():
            messages.append(Message("user", asked))
            request = GenerateRequest(model_id=model, prompt=tuple(messages), sampling=sampling)
            messages.append(Message("assistant", _answer(client, request, not no_stream)))


def _answer(client: Client, request: GenerateRequest, stream: bool) -> str:
    return print_answer(client.generate(request), stream=stream)


def _once(question: str) -> str:
    return sys.stdin.read() if question == "-" else question


def _questions() -> Iterator[str]:
    """What the person types, line by line, until the end of input."""
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    if interactive:
        say("Ctrl-D ends the conversation.")
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return
        if line.strip():
            yield line
