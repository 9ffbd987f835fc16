"""The commands that send a model one request: for a text, for numbers, of a sound, for one or its
own."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sax.cli.conversation import print_answer
from sax.cli.image_files import (
    HearVideos,
    ImageFiles,
    ImageInputs,
    SoundFiles,
    VideoFiles,
    images_of,
    with_images,
)
from sax.cli.model_argument import Model
from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, read_file
from sax.errors import InvalidRequest
from sax.fields.table import MOST_TIMEOUT_S
from sax.format import quoted
from sax.passes import Aggregation, entities_of
from sax.speech import (
    FORMATS,
    SoundFormat,
    SpeechRequest,
    TranscriptPart,
    TranscriptRequest,
    whole_transcript,
)
from sax.types import MOST_PRIORITY, GenerateRequest, Message, SamplingParams, TokenChunk

if TYPE_CHECKING:
    from sax.client import Client

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
    video: VideoFiles = None,
    audio_in_video: HearVideos = False,
    no_stream: NoStream = False,
) -> Results:
    """Continue a text with a model.

    Prints the generated text as it streams in. With --image, --audio or --video, the text and the
    files are a user's message, which the model answers.

    \b
    Examples:
      sax generate /sax/test/smollm2 "The capital of France is" --max-tokens 8
      sax generate /sax/test/smollm2 "Once" --temperature 0.8 --top-p 0.95 --seed 7
      cat prompt.txt | sax generate /sax/test/smollm2 - --stop "###"
      sax generate /sax/test/gemma3 "What is this?" --image photo.jpg
      sax generate /sax/test/qwen2-audio "Who speaks?" --audio talk.mp3
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    chat = (Message("user", with_images(text, image, audio, video, heard=audio_in_video)),)
    request = GenerateRequest(
        model_id=model,
        prompt=chat if image or audio or video else text,
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


Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEXT]...", help="Texts; - reads stdin, one text per line.", show_default=False
    ),
]


def embed(
    ctx: typer.Context,
    model: Model,
    texts: Texts = None,
    image: ImageInputs = None,
    dimensions: Annotated[
        int,
        typer.Option(min=0, help="Length of a vector, if the model offers shorter ones; 0: whole."),
    ] = 0,
    prompt_name: Annotated[
        str, typer.Option(help="The model's own prompt to put before each text.")
    ] = "",
) -> Results:
    """Turn texts, and images, into vectors with an embedding model.

    Prints one JSON list of numbers per text and then per image, one per line, in order.

    \b
    Examples:
      sax embed /sax/test/minilm "eating food" "eating a meal"
      sax embed /sax/test/qwen3 "What is a slot?" --prompt-name query --dimensions 256
      sax embed /sax/test/minilm - < sentences.txt > vectors.jsonl
      sax embed /sax/test/clip "a photo of a cat" --image cat.jpg --image dog.jpg
    """
    inputs = [*given(texts, image), *images_of(image)]
    with open_client(ctx) as client:
        for vector in client.embed(model, inputs, dimensions=dimensions, prompt_name=prompt_name):
            yield CommandResult(vector, json.dumps(vector))


def rerank(
    ctx: typer.Context,
    model: Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Text that documents may answer.")],
    documents: Texts = None,
    image: ImageInputs = None,
    top_n: Annotated[int | None, typer.Option(min=1, help="Print only the best few.")] = None,
) -> Results:
    """Rank documents, texts and images, by how well they go with a query.

    Works with cross encoders and, by the cosine of their vectors, with embedding models. Prints a
    score, the document's place among those given, from 0, and the document, best first.

    \b
    Examples:
      sax rerank /sax/test/reranker "Where is Paris?" "In France." "It rains."
      sax rerank /sax/test/reranker "Where is Paris?" - --top-n 3 < lines.txt
      sax rerank /sax/test/qwen3vl "a red boat" --image one.png --image two.png
    """
    texts = given(documents, image)
    names = [*texts, *map(str, image or ())]
    with open_client(ctx) as client:
        found = client.rerank(model, query, [*texts, *images_of(image)], top_n)
    for each in found:
        entry = {"index": each.index, "relevance_score": each.relevance_score}
        line = f"{each.relevance_score:.6f}\t{each.index}\t{names[each.index]}"
        yield CommandResult(entry, line)


def classify(
    ctx: typer.Context,
    model: Model,
    texts: Texts = None,
    image: ImageInputs = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Text to choose from, of a model such as CLIP that matches images and texts. May "
            "be given several times.",
        ),
    ] = None,
    aggregation: Annotated[
        Aggregation,
        typer.Option(
            help="How labels of tokens make entities, as in transformers' pipeline.",
        ),
    ] = "simple",
) -> Results:
    """Give texts a score per label with a classification model, or find entities in them.

    Prints the likeliest label of each text and its score, in order; with --json all of them. With a
    classifier of tokens, prints a line for each entity: its label, its score, where it begins and
    ends in the text, and its words.

    \b
    Examples:
      sax classify /sax/test/sentiment "What a day!" "It rains."
      sax classify /sax/test/sentiment - --json < sentences.txt
      sax classify /sax/test/clip --image pet.jpg --candidate "a cat" --candidate "a dog"
    """
    read = given(texts, image)
    inputs = [*read, *images_of(image)]
    with open_client(ctx) as client:
        found = client.classify(model, inputs, takes_tokens=True, candidates=candidate or ())
    for text, tokens in zip(read, found.tokens, strict=False):
        entities = entities_of(tokens, text, found.labels, aggregation)
        lines = (f"{e.label}\t{e.score:.6f}\t{e.start}\t{e.end}\t{e.word}" for e in entities)
        yield CommandResult([asdict(each) for each in entities], "\n".join(lines))
    for scores in found.scores:
        best = max(range(len(scores)), key=scores.__getitem__)
        line = f"{found.labels[best]}\t{scores[best]:.6f}"
        yield CommandResult(dict(zip(found.labels, scores, strict=True)), line)


def gradient(
    ctx: typer.Context,
    model: Model,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Text before the suffix.")],
    suffix: Annotated[str, typer.Argument(metavar="SUFFIX", help="Text that is scored.")],
) -> CommandResult:
    """Differentiate the loss of a text, as Saxml's LMService.Gradient.

    Prints JSON: the log-probability of the suffix, and a flat list of numbers per tensor. The model
    must be published for it, with TASKS=["generate","gradient"].

    \b
    Example:
      sax gradient /sax/test/smollm2 "Two and two are" " four"
    """
    with open_client(ctx) as client:
        found = client.gradient(model, prefix, suffix)
    value = {"score": found.score, "gradients": dict(found.gradients)}
    return CommandResult(value, json.dumps(value))


def given(texts: list[str] | None, images: Sequence[Path] | None = None) -> list[str]:
    """Return the texts, with the lines of stdin in the place of "-".

    Raises BadParameter if there is neither a text nor an image.
    """
    if not texts and not images:
        raise typer.BadParameter("give a text, or an image with --image", param_hint="TEXT")
    return [line for text in texts or () for line in (_lines() if text == "-" else [text])]


def _lines() -> list[str]:
    return [line for line in sys.stdin.read().splitlines() if line]


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


def speak(
    ctx: typer.Context,
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT|-", help="What to say; - reads stdin.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE|-", help="Sound file; - writes stdout.")
    ] = "speech.wav",
    format: Annotated[
        str, typer.Option(help="mp3, opus, flac, wav or pcm; without it as the file's name says.")
    ] = "",
    voice: Annotated[
        str, typer.Option(help="Name or number of a speaker; without it the first.")
    ] = "",
    speed: Annotated[float, typer.Option(min=0.25, max=4, help="1: as trained.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=(1 << 32) - 1, help="The same one: the same sound.")
    ] = None,
) -> Results:
    """Speak a text into a sound file.

    \b
    Examples:
      sax speak /sax/test/voice "Good evening." -o evening.wav
      sax speak /sax/test/voice - -o book.mp3 --speed 1.2 < book.txt
      sax speak /sax/test/voice "Good evening." -o - --format pcm | aplay -f S16_LE -r 24000
    """
    request = SpeechRequest(
        model_id=model,
        text=read_file(text).decode() if text == "-" else text,
        voice=voice,
        format=_sound_format(format, output),
        speed=speed,
        seed=seed,
    )
    with open_client(ctx) as client:
        if output == "-":
            yield CommandResult(_no_json, lambda: _piped(client, request))
        else:
            yield CommandResult(
                lambda: _saved_sound(client, request, output),
                lambda: _told_file(_saved_sound(client, request, output)),
            )


def _sound_format(given: str, output: str) -> SoundFormat:
    """Return a format by its name, or by that of a file. Raises InvalidRequest."""
    wanted = given or Path(output).suffix.removeprefix(".").lower() or "wav"
    wanted = {"ogg": "opus"}.get(wanted, wanted)
    if wanted not in FORMATS:
        raise InvalidRequest(
            f"no format {quoted(wanted)}: give --format, one of {', '.join(FORMATS)}",
            param="format",
        )
    return next(each for each in FORMATS if each == wanted)


def _no_json() -> None:
    raise InvalidRequest("--json writes to standard output, too: give --output a file")


def _piped(client: Client, request: SpeechRequest) -> None:
    """Write a sound to standard output as it is spoken."""
    for part in client.speak_stream(request):
        sys.stdout.buffer.write(part.data)
        sys.stdout.buffer.flush()


def _saved_sound(client: Client, request: SpeechRequest, output: str) -> dict[str, Any]:
    sound = client.speak(request)
    Path(output).write_bytes(sound.data)
    told = {"tokens": sound.tokens, "frames": sound.frames, "duration": sound.duration}
    return {"file": output, **told}


def _told_file(saved: dict[str, Any]) -> None:
    typer.echo(f"{saved['file']}: {saved['duration']:.2f} s")
