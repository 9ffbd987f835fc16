"""The `chat` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sax.cli.chat_lines import goes_on
from sax.cli.commands.requests import NoStream, Priority, Timeout
from sax.cli.conversation import Conversation
from sax.cli.image_files import ImageFiles, SoundFiles
from sax.cli.line_reader import LineReader, history_file
from sax.cli.model_argument import Model
from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import open_client
from sax.command import say
from sax.types import SamplingParams

_GREETING = "Ctrl-C stops an answer, Ctrl-D leaves, /help tells more."


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
    image: ImageFiles = None,
    audio: SoundFiles = None,
    no_stream: NoStream = False,
) -> None:
    """Chat with a model.

    With QUESTION, asks it once and exits. Images and sounds come with the first
    message. In a conversation,
    Ctrl-C stops an answer, /help lists what else there is, and Ctrl-D leaves. The lines that were
    typed are kept for the arrow keys, in ~/.local/state/sax/chat_history.

    \b
    Examples:
      sax chat smollm2
      sax chat /sax/test/smollm2 "What is the capital of France?"
      sax chat /sax/test/smollm2 --system "Answer in one word." --temperature 0.7
      sax chat /sax/test/gemma3 "What is this?" --image photo.jpg
    """
    with open_client(ctx) as client:
        conversation = Conversation(
            client, model, sampling, system, priority, timeout, stream=not no_stream
        )
        conversation.files, conversation.sounds = [*(image or ())], [*(audio or ())]
        if question is not None:
            conversation.ask(sys.stdin.read() if question == "-" else question)
        elif sys.stdin.isatty():
            converse(conversation)
        else:
            for line in sys.stdin:
                if line.strip():
                    conversation.ask(line.removesuffix("\n"))


def converse(conversation: Conversation) -> None:
    """Answer what is typed, until the person leaves."""
    say(_GREETING)
    with LineReader(history_file()) as reader:
        interrupted = False
        while True:
            try:
                line = reader.read()
            except EOFError:
                say("")
                return
            except KeyboardInterrupt:
                say("")
                if interrupted:
                    return
                interrupted = True
                say("Ctrl-C again leaves, and so does Ctrl-D.")
                continue
            interrupted = False
            if not answered(line, conversation):
                return


def answered(line: str, conversation: Conversation) -> bool:
    """Answer a message, or do what a line with a slash asks for; False: leave."""
    if line.startswith("/") and not line.startswith("//"):
        return goes_on(line, conversation)
    if line.strip():
        conversation.answer_or_tell(line[1:] if line.startswith("//") else line)
    return True
