"""The `generate` command, and the sampling options it shares with `chat`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from sax.cli.terminal import open_client, printable
from sax.types import GenerateRequest, SamplingParams, TokenChunk

Temperature = Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")]
TopK = Annotated[int, typer.Option(min=0, help="Sample from the k likeliest tokens; 0: all.")]
TopP = Annotated[
    float,
    typer.Option(min=0, max=1, help="Sample from the likeliest tokens of this total probability."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same text.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Maximum tokens to generate.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Print the text only when complete.")]


def generate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads stdin.")
    ],
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    max_tokens: MaxTokens = 128,
    stop: Stop = None,
    no_stream: NoStream = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
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
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    request = GenerateRequest(model_id=model, prompt=text, sampling=sampling)
    with open_client(ctx) as client:
        if as_json:
            print(json.dumps(answer_value(client.generate(request))))
            return
        print_answer(client.generate(request), stream=not no_stream)


def answer_value(chunks: Iterable[TokenChunk]) -> dict[str, object]:
    parts: list[str] = []
    last = TokenChunk("")
    for last in chunks:
        parts.append(last.text)
    return {
        "text": "".join(parts),
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
    }


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
