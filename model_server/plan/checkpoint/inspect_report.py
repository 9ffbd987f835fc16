"""The report of `sax inspect`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from sax.format import count
from sax.format import human_bytes as human

_FORMATS = {
    "safetensors": "Hugging Face folder (safetensors)",
    "gguf": "GGUF",
    "orbax": "Orbax",
    "pax": "Pax",
}
_WIDTH = 15  # heading column
_TEMPLATE_LINES = 3  # shown
_SPECIAL = 12  # control tokens shown


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, or a folder of arrays, that holds weights."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredKind:
    """Total of the tensors stored in one number format."""

    kind: str  # as the format names it: BF16, Q4_K, float32
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """A tokenizer that could be read."""

    kind: str  # model type in tokenizer.json: BPE, Unigram, WordPiece
    vocabulary: int
    bos: str | None
    eos: list[str]
    adds_bos: bool
    control: list[str]


@dataclass(slots=True)
class Report:
    """Everything that `sax inspect` shows; unknown facts stay None or empty."""

    path: str
    format: str | None = None
    files: list[StoredFile] = field(default_factory=list)
    model_type: str | None = None
    architecture: str | None = None
    family: str | None = None  # name in the registry; None: not supported
    path_as: str = "auto"  # model path to publish it as
    parameters: int | None = None
    stored: list[StoredKind] = field(default_factory=list)
    context: int | None = None
    vocabulary: int | None = None  # the model's
    images: str | None = None  # its vision encoder; None: the checkpoint has none
    devices: str | None = None  # that can share a model of images or sounds
    tokenizer: TokenizerFacts | None = None
    chat_template: str | None = None
    memory: dict[str, int] = field(default_factory=dict)  # bytes of the weights, by number format
    problems: list[str] = field(default_factory=list)

    @property
    def loads(self) -> bool:
        return not self.problems

    def as_value(self) -> dict[str, Any]:
        return asdict(self) | {"loads": self.loads}

    def as_text(self) -> str:
        """Format as one fact per line, without terminal control sequences."""
        lines = (f"{heading:<{_WIDTH}}{_printable(text)}" for heading, text in self._lines())
        return "\n".join(line.rstrip() for line in lines)

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "checkpoint", self.path
        yield from self._files()
        yield from self._model()
        yield from self._tokenizer()
        yield from self._template()
        if self.memory:
            needs = ", ".join(f"{human(size)} as {kind}" for kind, size in self.memory.items())
            yield "weights need", needs
        yield from self._verdict()

    def _files(self) -> Iterator[tuple[str, str]]:
        if self.format is None:
            return
        total = sum(file.bytes for file in self.files)
        size = f", {human(total)}" if total else ""
        yield "format", f"{_FORMATS[self.format]}, {count(len(self.files), 'file')}{size}"
        for file in self.files:
            yield "", f"{file.name}  {human(file.bytes)}" if file.bytes else file.name

    def _model(self) -> Iterator[tuple[str, str]]:
        if self.model_type is None:
            return
        served = f"served as {self.family}" if self.family else "not supported"
        called = f" ({self.architecture})" if self.architecture else ""
        yield "model", f"{self.model_type}{called}: {served}"
        if self.parameters is not None:
            yield "parameters", f"{self.parameters:,}"
        for heading, kind in zip(
            ["stored as", *[""] * len(self.stored)], self.stored, strict=False
        ):
            tensors = count(kind.tensors, "tensor")
            yield heading, f"{kind.kind:<12}{tensors:<14}{human(kind.bytes)}"
        if self.context is not None:
            yield "context", f"{self.context:,} tokens"
        if self.images is not None:
            yield "images", self.images
        if self.devices is not None:
            yield "devices", self.devices

    def _tokenizer(self) -> Iterator[tuple[str, str]]:
        facts = self.tokenizer
        if facts is None:
            return
        model = f" (the model has {self.vocabulary:,})" if self.vocabulary else ""
        yield "tokenizer", f"{facts.kind}, {facts.vocabulary:,} tokens{model}"
        start = facts.bos or "none"
        put = " (prepended)" if facts.adds_bos else ""
        yield "", f"start {start}{put}; end {', '.join(facts.eos) or 'none'}"
        rest = len(facts.control) - _SPECIAL
        more = f" and {rest} more" if rest > 0 else ""
        if facts.control:
            yield "", f"special {' '.join(facts.control[:_SPECIAL])}{more}"

    def _template(self) -> Iterator[tuple[str, str]]:
        if self.tokenizer is None:
            return
        if self.chat_template is None:
            yield "chat template", "none"
            return
        lines = self.chat_template.splitlines()
        yield "chat template", f"{count(len(lines), 'line')}, compiles in the sandbox"
        for line in lines[:_TEMPLATE_LINES]:
            yield "", f"| {line[:80]}{'...' if len(line) > 80 else ''}"

    def _verdict(self) -> Iterator[tuple[str, str]]:
        if self.loads:
            yield "verdict", "it would load"
            return
        yield "verdict", f"it would not load: {count(len(self.problems), 'problem')}"
        for problem in self.problems:
            yield "", f"- {problem}"


def _printable(text: str) -> str:
    """Replace control characters: names and templates come from the file."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
