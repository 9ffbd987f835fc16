"""saxutil's commands that ask a language model: lm.generate, lm.score, lm.embed, lm.gradient."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sax.cli.saxutil.go_flags import GoFlag, WrongUsage, number_flag, switch, text_flag
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb, as_number, show
from sax.command import printable
from sax.saxml.model import LanguageModel, StreamItem

# An answer of `lm.generate -stream`: its samples while they grow, and their scores.
#
# The score of the last message is the whole sample's, as Saxml's protocol says: scores are not
# added up.

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

VERBS = (
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
