"""The commands that send a model one request: `generate` and `custom`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from sax.cli.conversation import print_answer
from sax.cli.image_files import ImageFiles, SoundFiles, with_images
from sax.cli.model_argument import Model
from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results
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
    image: ImageFiles = None,
    audio: SoundFiles = None,
    no_stream: NoStream = False,
) -> Results:
    """Continue a text with a model.

    Prints the generated text as it streams in. With --image or --audio, the text and the images or
    sounds are a user's message, which the model answers.

    \b
    Examples:
      sax generate /sax/test/smollm2 "The capital of France is" --max-tokens 8
      sax generate /sax/test/smollm2 "Once" --temperature 0.8 --top-p 0.95 --seed 7
      cat prompt.txt | sax generate /sax/test/smollm2 - --stop "###"
      sax generate /sax/test/gemma3 "What is this?" --image photo.jpg
      sax generate /sax/test/qwen2-audio "Who speaks?" --audio talk.mp3
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    chat = (Message("user", with_images(text, image, audio)),)
    request = GenerateRequest(
        model_id=model,
        prompt=chat if image or audio else text,
        sampling=sampling,
        priority=priority,
        timeout_s=timeout,
    )
    with open_client(ctx) as client:
        yield CommandResult(
            lambda: answer_value(client.generate(request)),
            lambda: print_answer(client.generate(request), stream=not no_stream),
        )


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
) -> CommandResult:
    """Send bytes to a custom model.

    The response is written to stdout unchanged; with --json as the text that it is, or as base64.

    \b
    Examples:
      echo '[1, 2, 3]' | sax custom /sax/test/scaler
      sax custom /sax/test/classifier cat.jpg --method label > answer.json
    """
    body = sys.stdin.buffer.read() if request is None else request.read()
    with open_client(ctx) as client:
        answer = client.custom(model, body, method)
    return CommandResult(bytes_value(answer), lambda: sys.stdout.buffer.write(answer))


def bytes_value(answer: bytes) -> dict[str, str]:
    try:
        return {"text": answer.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(answer).decode()}
