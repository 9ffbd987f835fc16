"""saxutil's commands that ask a model: lm.*, vm.*, am.recognize and mm.*.

Our servers answer all of lm.*, vm.classify, vm.embed, mm.generate and mm.score, and refuse the
others.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sax.cli.saxutil.go_flags import GoFlag, WrongUsage, number_flag, switch, text_flag
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb, as_number, show
from sax.command import printable, read_file
from sax.proto import multimodal_pb2
from sax.saxml.model import AudioModel, LanguageModel, MultimodalModel, StreamItem, VisionModel

_CLEAR = "\033[H\033[2J"


class StreamedAnswer:
    """Takes the messages of GenerateStream. On a terminal the texts are drawn anew with each; else
    printed once, whole."""

    def __init__(self, *, redraws: bool) -> None:
        self._redraws = redraws
        self.texts: list[str] = []
        self.last: list[list[float]] = []

    def take(self, last: bool, items: Sequence[StreamItem]) -> None:
        for at, (text, prefix_len, scores) in enumerate(items):
            self._grow(at)
            self.texts[at] = self.texts[at][:prefix_len] + text
            self.last[at] = list(scores)
        if last or self._redraws:
            self._print()

    def scores(self) -> str:
        """Return the line below the texts, or one for each kind of score."""
        count = max(map(len, self.last), default=0)
        if count <= 1:
            return f"Scores: {_column(self.last, 0)}"
        return "\n".join(f"Total Scores[{at}]: {_column(self.last, at)}" for at in range(count))

    def _grow(self, at: int) -> None:
        while len(self.texts) <= at:
            self.texts.append("")
            self.last.append([])

    def _print(self) -> None:
        clear = _CLEAR if self._redraws else ""
        sys.stdout.write(clear + "".join(f"{printable(text)}\n\n" for text in self.texts))
        sys.stdout.flush()


def _column(rows: Sequence[Sequence[float]], at: int) -> str:
    return ", ".join(as_number(row[at]) for row in rows if at < len(row))


_MOST_GRADIENT_NUMBERS = 8  # shown of a tensor


def generate(call: SaxutilCall) -> None:
    """Print every sample of a model's class with its score, as the class's own settings say."""
    query = call.words[1]
    text = sys.stdin.read() if query == "-" else query
    if call.flag("stream"):
        _check_stream(call)
        _stream(call, text)
        return
    handle = call.model()
    with handle.client:
        samples = LanguageModel(handle).Generate(text, call.options())
    most = call.flag("n") or None
    if call.flag("terse"):
        best = sorted(samples, key=lambda sample: -sample[1])
        print("\n".join(printable(text) for text, _ in best[:most]))
        return
    rows = [(text, as_number(score)) for text, score in samples[:most]]
    show(("generate", "Score"), rows)


def _check_stream(call: SaxutilCall) -> None:
    for name in ("terse", "n"):
        if call.flag(name):
            raise WrongUsage(f"-{name} and -stream do not go together: drop one", param=name)


def _stream(call: SaxutilCall, text: str) -> None:
    """Show the samples as they grow, then the sums of their scores."""
    answer = StreamedAnswer(redraws=sys.stdout.isatty())
    handle = call.model()
    with handle.client:
        LanguageModel(handle).GenerateStream(text, answer.take, call.options())
    print(answer.scores())


def score(call: SaxutilCall) -> None:
    handle = call.model()
    prefix, suffixes = call.words[1], call.words[2:]
    with handle.client:
        found = LanguageModel(handle).Score(prefix, suffixes, call.options())
    each = len(found) // len(suffixes)
    rows = [
        (suffix, *map(as_number, found[at * each : (at + 1) * each]))
        for at, suffix in enumerate(suffixes)
    ]
    show(("Suffix", *(["Score"] * each)), rows)


def embed(call: SaxutilCall) -> None:
    handle, text = call.model(), call.words[1]
    with handle.client:
        vector = LanguageModel(handle).Embed(text, call.options())
    show(("Text", "Embedding"), [(text, _numbers(vector))])


def gradient(call: SaxutilCall) -> None:
    handle = call.model()
    _, prefix, suffix = call.words
    with handle.client:
        scores, gradients = LanguageModel(handle).Gradient(prefix, suffix, call.options())
    tensors = sorted(gradients.items())
    row = [_numbers(scores), *(_first_numbers(values) for _, values in tensors)]
    show(("Score", *(name for name, _ in tensors)), [row])


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(map(as_number, values))


def _first_numbers(values: Sequence[float]) -> str:
    more = ", ..." if len(values) > _MOST_GRADIENT_NUMBERS else ""
    return _numbers(values[:_MOST_GRADIENT_NUMBERS]) + more


EXTRA = text_flag("extra", "Extra inputs: key:value,key:value, e.g. temperature:0.2.")
PROXY = text_flag("proxy", "Ask this model server, host:port, instead of the cell's choice.")
_ASKS: tuple[GoFlag, ...] = (EXTRA, PROXY)
_GENERATE = (
    *_ASKS,
    switch("stream", "Show the answers while they grow."),
    switch("terse", "Print the texts only, the best first."),
    number_flag("n", "At most so many texts; 0: all."),
)

_LANGUAGE_VERBS = (
    SaxutilVerb(
        "lm.generate", "Continue a text.", "[FLAGS] MODEL QUERY", generate, 2, 2, _GENERATE
    ),
    SaxutilVerb(
        "lm.score", "Score suffixes.", "[FLAGS] MODEL PREFIX SUFFIX ...", score, 3, None, _ASKS
    ),
    SaxutilVerb("lm.embed", "Turn a text into a vector.", "[FLAGS] MODEL TEXT", embed, 2, 2, _ASKS),
    SaxutilVerb(
        "lm.gradient",
        "Differentiate the loss of a text.",
        "[FLAGS] MODEL PREFIX SUFFIX",
        gradient,
        3,
        3,
        _ASKS,
    ),
)


_FILE = "@"  # before a file's name, among the items of mm.*


def classify(call: SaxutilCall) -> None:
    image, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = VisionModel(handle).Classify(image, call.options())
    show(("Text", "Score"), [(text, as_number(score)) for text, score in found])


def text_to_image(call: SaxutilCall) -> None:
    """Write the images into a folder, or one behind the other to stdout."""
    _, text, folder = call.words
    handle = call.model()
    with handle.client:
        images = VisionModel(handle).TextToImage(text, call.options())
    if folder == "-":
        for image, _ in images:
            sys.stdout.buffer.write(image)
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    names = [place / f"{number:04}.PNG" for number in range(1, len(images) + 1)]
    for name, (image, _) in zip(names, images, strict=True):
        name.write_bytes(image)
    scores = (as_number(score) for _, score in images)
    show(("Image", "Score"), [*zip(map(str, names), scores, strict=True)])


def embed_image(call: SaxutilCall) -> None:
    name, handle = call.words[1], call.model()
    image = read_file(name)
    with handle.client:
        vector = VisionModel(handle).Embed(image, call.options())
    shown = "stdin" if name == "-" else name
    show(("Image", "Embedding"), [(shown, ", ".join(map(as_number, vector)))])


def detect(call: SaxutilCall) -> None:
    image, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = VisionModel(handle).Detect(image, call.words[2:], (), call.options())
    rows = [
        (
            *map(as_number, (cx, cy, width, height)),
            text.decode(errors="replace"),
            as_number(score),
            f"{mask[0]},{mask[1]}",
        )
        for cx, cy, width, height, text, score, mask in found
    ]
    show(("CenterX", "CenterY", "Width", "Height", "Text", "Score", "Mask"), rows)


def recognize(call: SaxutilCall) -> None:
    sound, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = AudioModel(handle).Recognize(sound, call.options())
    show(("Text", "Score"), [(text, as_number(score)) for text, score in found])


def mm_generate(call: SaxutilCall) -> None:
    request, handle = multimodal_pb2.GenerateRequest(items=_items(call.words[1:])), call.model()
    with handle.client:
        reply = MultimodalModel(handle).Generate(request, call.options())
    rows = [
        ("\n".join(_shown(item) for item in result.items), as_number(result.score))
        for result in reply.results
    ]
    show(("generate", "Score"), rows)


def mm_score(call: SaxutilCall) -> None:
    """Score the last item after all before it."""
    *prefix, suffix = _items(call.words[1:])
    request = multimodal_pb2.ScoreRequest(prefix_items=prefix, suffix_items=[suffix])
    handle = call.model()
    with handle.client:
        reply = MultimodalModel(handle).Score(request, call.options())
    show(("Score",), [(as_number(result.score),) for result in reply.results])


def mm_embed(call: SaxutilCall) -> None:
    request, handle = multimodal_pb2.EmbedRequest(items=_items(call.words[1:])), call.model()
    with handle.client:
        reply = MultimodalModel(handle).Embed(request, call.options())
    show(("Embedding",), [(", ".join(map(as_number, reply.embedding.values)),)])


def _items(words: Sequence[str]) -> list[multimodal_pb2.DataItem]:
    return [_item(word) for word in words]


def _item(word: str) -> multimodal_pb2.DataItem:
    if word.startswith(_FILE):
        return multimodal_pb2.DataItem(image_bytes=read_file(word.removeprefix(_FILE)))
    return multimodal_pb2.DataItem(text=word)


def _shown(item: multimodal_pb2.DataItem) -> str:
    kind = item.WhichOneof("item")
    return item.text if kind == "text" else f"({kind})"


_MEDIA_FLAGS = (EXTRA, PROXY)

_MEDIA_VERBS = (
    SaxutilVerb("vm.classify", "Classify an image.", "MODEL FILE|-", classify, 2, 2, _MEDIA_FLAGS),
    SaxutilVerb(
        "vm.generate", "Draw images.", "MODEL TEXT FOLDER|-", text_to_image, 3, 3, _MEDIA_FLAGS
    ),
    SaxutilVerb(
        "vm.embed", "Turn an image into a vector.", "MODEL FILE|-", embed_image, 2, 2, _MEDIA_FLAGS
    ),
    SaxutilVerb(
        "vm.detect", "Find objects.", "MODEL FILE|- [TEXT ...]", detect, 2, None, _MEDIA_FLAGS
    ),
    SaxutilVerb(
        "am.recognize", "Write down a sound.", "MODEL FILE|-", recognize, 2, 2, _MEDIA_FLAGS
    ),
    SaxutilVerb(
        "mm.generate",
        "Continue texts and @FILEs.",
        "MODEL ITEM ...",
        mm_generate,
        2,
        None,
        _MEDIA_FLAGS,
    ),
    SaxutilVerb(
        "mm.score", "Score the last item.", "MODEL ITEM ... ITEM", mm_score, 3, None, _MEDIA_FLAGS
    ),
    SaxutilVerb(
        "mm.embed", "Turn items into a vector.", "MODEL ITEM ...", mm_embed, 2, None, _MEDIA_FLAGS
    ),
)

VERBS = (*_LANGUAGE_VERBS, *_MEDIA_VERBS)
