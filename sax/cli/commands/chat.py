"""The `chat` command: a conversation in the terminal, or one question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from sax.cli.commands.generate import (
    MaxTokens,
    NoStream,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    print_answer,
)
from sax.cli.terminal import open_client, say
from sax.errors import SaxError
from sax.types import GenerateRequest, Message, SamplingParams


def chat(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")],
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="Ask this and exit; - reads stdin."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    max_tokens: MaxTokens = 512,
    stop: Stop = None,
    no_stream: NoStream = False,
) -> None:
    """Chat with a model.

    With QUESTION, asks it once and exits. Ctrl-D ends a conversation.

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
    interactive = question is None and sys.stdin.isatty()
    with open_client(ctx) as client:
        for asked in _questions(interactive) if question is None else [_once(question)]:
            turn = Message("user", asked)
            request = GenerateRequest(model_id=model, prompt=(*messages, turn), sampling=sampling)
            try:
                answer = print_answer(client.generate(request), stream=not no_stream)
            except SaxError as error:
                if not interactive:
                    raise
                say(f"sax: {error.text}")  # the user may ask again
                continue
            messages += [turn, Message("assistant", answer)]


def _once(question: str) -> str:
    return sys.stdin.read() if question == "-" else question


def _questions(interactive: bool) -> Iterator[str]:
    if interactive:
        say("Ctrl-D ends the conversation.")
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return
        if line.strip():
            yield line
