"""A loaded language model, and an adapter in a place of one: all that a servable needs.

The seam between servables and weights: the real loader reads a checkpoint and compiles, the tests'
loader is arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_server.disaggregation.disaggregation import Disaggregation
from model_server.engine.engine import STEP_LIMIT_S
from model_server.engine.running.ops import Runner
from model_server.engine.step_times import StepTimes
from model_server.grammars.compiler import GrammarCompiler
from model_server.loading.images.image_reader import ImageReader
from model_server.loading.island_loads import IslandLoads
from model_server.loading.loaded_model import HeldMemory
from model_server.loading.passes.loaded_passes import LoadedEmbedder, LoadedGradients
from model_server.models.saxml_replies import PLAIN_REPLIES, SaxmlReplies
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect
from model_server.text.tokenizer import Tokenizer
from sax.memory_parts import MemoryParts
from sax.types import SamplingParams


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
    source: str = ""  # from which its weights were read; "": they are random
    fixed: str = "it does not read weights"  # why its weights cannot change; "": they can
    # Beside generating; None: not published for that
    embedder: LoadedEmbedder | None = None
    gradients: LoadedGradients | None = None

    @property
    def ids(self) -> int:
        """Token ids that have a text and a logit."""
        size = self.tokenizer.vocab_size
        return size if self.vocab is None else min(size, self.vocab)

    def close(self) -> None:
        """Free what the load made, if nobody serves it."""
        self.runner.close()
        if self.islands is not None:
            self.islands.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """A LoRA adapter in a place of its base, whose engine runs it."""

    base: str  # model id
    place: int  # from 1 on
    runner: HeldMemory  # the place
    loaded: Loaded  # the base's

    def close(self) -> None:
        """Free the place, if nobody serves it."""
        self.runner.close()
