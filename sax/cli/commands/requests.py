"""The commands that send a model a request: `generate`, `chat` and `custom`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import open_client
from sax.command import AsJson, Model, printable, say
from sax.errors import SaxError
from sax.fields.table import MOST_TIMEOUT_S
from sax.types import MOST_PRIORITY, GenerateRequest, Message, SamplingParams, TokenChunk

Priority = Annotated[
    int,
    typer.Option(
        min=-MOST_PRIORITY,
        max=MOST_PRIORITY,
        help="Among your own requests; the lowest comes first.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=MOST_TIMEOUT_S, help="Seconds for the whole answer, waiting included."
    ),
]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Print the text only when complete.")]


@takes_sampling(temperature=0.0, max_tokens=128)
def generate(
    ctx: typer.Context,
    model: Model,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads stdin.")
    ],
    *,
    sampling: SamplingParams,
    priority: Priority = 0,
    timeout: Timeout = None,
    no_stream: NoStream = False,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a model.

    Prints the generated text as it streams in.

    \b
    Examples:
      sax generate /sax/test/smollm2 "The capital of France is" --max-tokens 8
      sax generate /sax/test/smollm2 "Once" --temperature 0.8 --top-p 0.95 --seed 7
      cat prompt.txt | sax generate /sax/test/smollm2 - --stop "###"
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    request = GenerateRequest(
        model_id=model, prompt=text, sampling=sampling, priority=priority, timeout_s=timeout
    )
    with open_client(ctx) as client:
        if as_json:
            print(json.dumps(answer_value(client.generate(request))))
            return
        print_answer(client.generate(request), stream=not no_stream)


def answer_value(chunks: Iterable[TokenChunk]) -> dict[str, object]:
    parts: list[str] = []
    seed, last = None, TokenChunk("")
    for last in chunks:
        parts.append(last.text)
        seed = last.seed if seed is None else seed
    return {
        "text": "".join(parts),
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "seed": seed,
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        **({"hypotheses": _told(last)} if last.hypotheses else {}),
    }


def _told(chunk: TokenChunk) -> list[dict[str, object]]:
    """Return the answers of a beam search."""
    return [{"text": each.text, "score": each.score} for each in chunk.hypotheses]


def print_answer(chunks: Iterable[TokenChunk], *, stream: bool) -> str:
    """Print a stream and a newline on stdout; return the text."""
    parts: list[str] = []
    for chunk in chunks:
        parts.append(chunk.text)
        if stream:
            _write(chunk.text)
    text = "".join(parts)
    if not stream:
        _write(text)
    sys.stdout.write("\n")
    sys.stdout.flush()
    return text


def _write(text: str) -> None:
    # Models may emit control characters: escape them on a terminal, pass them on in a pipe.
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@takes_sampling(temperature=0.0, max_tokens=512)
def chat(
    ctx: typer.Context,
    model: Model,
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="Ask this and exit; - reads stdin."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    *,
    sampling: SamplingParams,
    priority: Priority = 0,
    timeout: Timeout = None,
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
    messages = [] if system is None else [Message("system", system)]
    interactive = question is None and sys.stdin.isatty()
    with open_client(ctx) as client:
        for asked in _questions(interactive) if question is None else [_once(question)]:
            turn = Message("user", asked)
            request = GenerateRequest(
                model_id=model,
                prompt=(*messages, turn),
                sampling=sampling,
                priority=priority,
                timeout_s=timeout,
            )
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


def custom(
    ctx: typer.Context,
    model: Model,
    request: Annotated[
        typer.FileBinaryRead | None,
        typer.Argument(metavar="FILE", help="Request body; - or none reads stdin."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Method to call.", show_default="custom, or the only one")
    ] = "",
) -> None:
    """Send bytes to a custom model.

    The response is written to stdout unchanged.

    \b
    Examples:
      echo '[1, 2, 3]' | sax custom /sax/test/scaler
      sax custom /sax/test/classifier cat.jpg --method label > answer.json
    """
    body = sys.stdin.buffer.read() if request is None else request.read()
    with open_client(ctx) as client:
        answer = client.custom(model, body, method)
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
