"""Result types of a load: all that a servable needs, one class per kind of model.

The seam between servables and weights: the real loader reads a checkpoint and compiles, the tests'
loader is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple, Protocol

import numpy as np

from model_server.disaggregation.disaggregation import Disaggregation
from model_server.engine.engine import STEP_LIMIT_S
from model_server.engine.running.ops import Runner
from model_server.engine.timing.step_times import StepTimes
from model_server.grammars.compiler import GrammarCompiler
from model_server.loading.images.image_reader import ImageReader
from model_server.loading.island_loads import IslandLoads
from model_server.models.audio.speech_tokens import SpeechTokens
from model_server.models.saxml_replies import PLAIN_REPLIES, SaxmlReplies
from model_server.models.tasks import Sizes
from model_server.sharing.audio.process import SoundForm
from model_server.sharing.images.forms import SquareForm
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect
from model_server.text.tokenizer import HfTokenizer, Tokenizer
from sax.errors import SaxError
from sax.memory_parts import MemoryParts
from sax.types import Gradients, ModelSpec, Progress, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A language model in memory, compiled and ready to run steps."""

    runner: Runner
    tokenizer: Tokenizer
    vocab: int | None = None  # rows of the embedding; None: the tokenizer's size
    chat_template: ChatTemplate | None
    images: ImageReader | None = None  # None: it takes none
    dialect: AnswerDialect = AnswerDialect()  # of its answers in chats
    chat_queries: bool = False  # render a Saxml query as a user message
    tokenized_input: bool = False  # a Saxml query is a list of token ids, "5,6,7"
    tokenized_output: bool = False  # and so is its answer
    start_token: int | None = None  # of its class, for an empty text; None: the tokenizer's
    replies: SaxmlReplies = PLAIN_REPLIES
    grammars: GrammarCompiler | None = None  # None: it answers under no constraint
    note: str = ""  # where it does not do as its model path says
    defaults: SamplingParams  # for fields that a Saxml request omits
    samples: int  # answers per Saxml Generate call
    memory: int  # bytes of weights, KV pages and workspace
    parts: MemoryParts = MemoryParts()  # of `memory`; a loader of arithmetic has none
    kernels: str = ""  # that compute it, for people; "": nothing to tell
    devices: int = 1  # that compute a step together
    methods: tuple[str, ...]  # lm.generate, lm.generate_stream, lm.score
    step_times: StepTimes | None = None  # of the runner's steps on this host
    step_limit_s: float = STEP_LIMIT_S  # a step that takes longer hangs, unless the host is slow
    stream_interval_s: float = 0.0  # between messages in the middle of answers
    islands: IslandLoads | None = None  # that compute it; None: `runner` does, alone
    disaggregation: Disaggregation | None = (
        None  # for disaggregated prefill; `runner` is its runner then
    )
    # Beside generating; None: not published for that
    embedder: LoadedEmbedder | None = None
    gradients: LoadedGradients | None = None

    @property
    def ids(self) -> int:
        """Token ids that have a text and a logit."""
        size = self.tokenizer.vocab_size
        return size if self.vocab is None else min(size, self.vocab)


class EmbedRunner(Protocol):
    """Computes the vectors of a batch. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    @property
    def batch(self) -> int:
        """Largest number of inputs per call."""
        ...

    def length(self, count: int) -> int:
        """Return the compiled length for this many tokens; inputs of one length share a batch."""
        ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return one vector per input; all inputs have the same `length`."""
        ...

    def close(self) -> None: ...


class TextEncoder(Protocol):
    """Encodes texts for an embedder or a classifier, including start and end tokens."""

    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process, so that encoding blocks."""
        ...

    @property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest token, or more."""
        ...

    def encode(self, text: str, prompt_name: str = "") -> list[int]:
        """Return the ids of a text after a prompt of the model; "": its own choice.

        Raises UnsupportedParameter for a prompt that the model does not have.
        """
        ...

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the ids of two texts that are read together."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder:
    """A model that embeds or classifies, in memory, compiled for all of its buckets."""

    runner: EmbedRunner
    tokenizer: TextEncoder
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a vector
    sizes: Sizes = ()  # smaller ones that its vectors may be cut to
    normalised: bool = True  # vectors have length 1
    labels: tuple[str, ...] = ()  # the vector of a classifier has a score for each; empty: embeds
    queue: int  # inputs that may wait
    devices: int = 1  # that compute a batch together
    memory: int  # bytes of weights and workspace
    parts: MemoryParts = MemoryParts()
    methods: tuple[str, ...] = ("lm.embed", "lm.rerank")


class GradientInput(NamedTuple):
    """A text whose loss is differentiated."""

    ids: Sequence[int]  # of prefix and suffix
    prefix: int  # how many of them are the prefix


class GradientsRunner(Protocol):
    """Computes gradients of a batch. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    @property
    def batch(self) -> int:
        """Largest number of inputs per call."""
        ...

    def length(self, count: int) -> int:
        """Return the compiled length for this many tokens; inputs of one length share a batch."""
        ...

    def gradients(self, inputs: Sequence[GradientInput]) -> list[Gradients]:
        """Return one result per input; all inputs have the same `length`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedGradients:
    """Gradients of a language model's loss, compiled for all buckets."""

    runner: GradientsRunner
    max_context: int  # tokens of prefix and suffix
    queue: int  # inputs that may wait
    devices: int = 1  # that compute a batch together


class CustomRunner(Protocol):
    """Runs batches of a custom model's requests. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    def answer(self, method: str, requests: Sequence[bytes]) -> Sequence[bytes | SaxError]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Batching:
    """Batching settings of one custom method."""

    most: int  # requests per batch
    wait_s: float
    queue: int  # requests that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCustom:
    """A custom model in memory, compiled for all of its buckets."""

    runner: CustomRunner
    batching: Mapping[str, Batching]  # by method
    memory: int  # bytes of weights, states and workspace
    parts: MemoryParts = MemoryParts()


class SeenImage(NamedTuple):
    """Outputs of a model for one image."""

    vector: np.ndarray  # f32[D]
    scores: np.ndarray  # f32[labels], log-probabilities


class VisionRunner(Protocol):
    """Looks at batches of images. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    @property
    def batch(self) -> int:
        """Largest number of images per call."""
        ...

    def see(self, images: Sequence[np.ndarray]) -> list[SeenImage]:
        """Return what it computes of each image u8[S, S, 3]."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVision:
    """A model that classifies and embeds images, in memory, compiled for all of its batches."""

    runner: VisionRunner
    form: SquareForm  # of images that the runner takes
    labels: tuple[str, ...]
    top_k: int  # labels of an answer
    queue: int  # images that may wait
    memory: int  # bytes of weights and workspace, per device
    parts: MemoryParts = MemoryParts()
    devices: int = 1  # that compute a batch together
    methods: tuple[str, ...] = ("vm.classify", "vm.embed")


class SpeechWindow(NamedTuple):
    """Sound of one window to write down, and how."""

    mels: np.ndarray  # f32[frames, bins]; the rest of the window is zeros
    previous: tuple[int, ...]  # tokens of the text before it
    language: int | None  # token; None: the one that is heard, if there are several
    task: int | None  # token
    temperature: float
    seed: int
    limit: int  # tokens of the answer
    gone: Event  # set once nobody waits for it


class WrittenWindow(NamedTuple):
    """Answer for one window."""

    tokens: tuple[int, ...]  # with timestamps, without the end
    logprob: float  # of all tokens and the end
    no_speech: float  # probability
    language: int | None  # token


class AudioRunner(Protocol):
    """Writes down batches of windows. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    @property
    def batch(self) -> int:
        """Largest number of windows per call."""
        ...

    def write(self, windows: Sequence[SpeechWindow]) -> list[WrittenWindow]:
        """Return what is said in each window; ends early once nobody waits for any."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAudio:
    """A model that writes down speech, in memory, compiled for all of its batches."""

    runner: AudioRunner
    tokenizer: HfTokenizer
    tokens: SpeechTokens
    form: SoundForm  # of sounds that windows are cut from
    frames: int  # of one window
    context: int  # tokens of prompt and answer
    queue: int  # windows that may wait
    memory: int  # bytes of weights, state and workspace, per device
    parts: MemoryParts = MemoryParts()
    devices: int = 1  # that compute a batch together
    methods: tuple[str, ...] = ("am.recognize", "am.transcribe")


class Place(Protocol):
    """A place of a base that an adapter holds until it is closed."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """A LoRA adapter in a place of its base, whose engine runs it."""

    base: str  # model id
    place: int  # from 1 on
    runner: Place
    loaded: Loaded  # the base's


AnyLoaded = Loaded | LoadedEmbedder | LoadedCustom | LoadedVision | LoadedAudio | LoadedAdapter


def close(loaded: AnyLoaded) -> None:
    """Free what a load made, if nobody serves it."""
    loaded.runner.close()
    if isinstance(loaded, Loaded) and loaded.islands is not None:
        loaded.islands.close()


# Blocking. Raises LoadFailed and its subclasses, InvalidRequest, ModelPathNotFound.
Loader = Callable[[ModelSpec, Callable[[Progress], None]], AnyLoaded]
