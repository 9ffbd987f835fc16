"""The command that asks a model of sounds: `transcribe`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sax.cli.model_argument import Model
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, read_file
from sax.speech import TranscriptPart, TranscriptRequest, whole_transcript


def transcribe(
    ctx: typer.Context,
    model: Model,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A WAV, FLAC, MP3 or Ogg file; - reads stdin.")
    ],
    language: Annotated[
        str, typer.Option(help="Code or English name; without it the one that is heard.")
    ] = "",
    translate: Annotated[bool, typer.Option(help="Into English.")] = False,
    prompt: Annotated[str, typer.Option(help="Text that comes before: names, spelling.")] = "",
    temperature: Annotated[
        float, typer.Option(min=0, max=1, help="0: greedy, and warmer where that fails.")
    ] = 0.0,
    times: Annotated[bool, typer.Option(help="Put the times of each segment before it.")] = False,
    words: Annotated[bool, typer.Option(help="A line with its times for each word.")] = False,
) -> Results:
    """Write down what a sound says, segment by segment as they come.

    \b
    Examples:
      sax transcribe /sax/test/whisper talk.mp3
      sax transcribe /sax/test/whisper talk.mp3 --times --language de
      sax transcribe /sax/test/whisper talk.mp3 --words
      sax transcribe /sax/test/whisper - --json < talk.ogg
    """
    sound = read_file(file)
    request = TranscriptRequest(
        model_id=model,
        sound=sound,
        language=language,
        translate=translate,
        prompt=prompt,
        temperature=temperature,
        words=words,
    )
    with open_client(ctx) as client:
        parts = client.transcribe_stream(request)
        yield CommandResult(lambda: _value(parts), lambda: [_show(part, times) for part in parts])


def _value(parts: Iterable[TranscriptPart]) -> dict[str, Any]:
    whole = whole_transcript([*parts])
    return {"text": whole.text, **asdict(whole)}


def _show(part: TranscriptPart, times: bool) -> None:
    each_word = [word for segment in part.segments for word in segment.words]
    for each in each_word or part.segments:
        before = f"{each.start:.2f}\t{each.end:.2f}\t" if times or each_word else ""
        print(before + each.text.strip(), flush=True)
