"""A Loader that is arithmetic: a whole model server without weights.

The model is the engine tests' FakeRunner: the token after (5, 8) is 2, by hand. A token is a
byte of text. The model path says how the load goes: `fake`, or one of the ways to fail below.

`python -m tests.model_server.fake_model` runs it as a process, for the tests that send signals.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from model_server.__main__ import leave
from model_server.config import ModelServerConfig
from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.disaggregation import Disaggregation
from model_server.disaggregation.handed_pages import PageCount
from model_server.engine.limits import EngineLimits
from model_server.engine.types import Sampling
from model_server.loading.audio.loaded_audio import LoadedAudio
from model_server.loading.custom import LoadedCustom
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import LoadedModel
from model_server.loading.passes.loaded_passes import LoadedEmbedder, LoadedTokens
from model_server.loading.vision.loaded_vision import LoadedVision
from model_server.process.server import ModelServer
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import ByteTokenizer
from sax.errors import CheckpointError, ModelPathNotFound
from sax.types import ModelSpec, Progress, SamplingParams
from tests.model_server import fake_image_input
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner, next_token
from tests.model_server.engine.fake_traffic import FakeTraffic
from tests.model_server.fake_batched import (
    fake_classifier,
    fake_custom,
    fake_embedder,
    fake_late,
    fake_tagger,
    fake_vision,
)
from tests.model_server.fake_sounds import fake_audio
from tests.model_server.fake_synthesizer import fake_synthesizer

LIMITS = EngineLimits(
    slots=4,
    pages=640,
    page_size=4,
    max_context=512,
    token_budget=64,
    max_logit_rows=16,
    queue=4,
)
DEFAULTS = SamplingParams(temperature=0.0, max_tokens=8)
MEMORY = 1000  # bytes each fake model says it fills
KERNELS = "arithmetic, 1 thread"
MODEL_PATHS = (
    "fake",
    "fake.Held",
    "fake.Truncated",
    "fake.OutOfMemory",
    "fake.Exits",
    "fake.Stuck",
    "fake.Embedder",
    "fake.Classifier",
    "fake.CrossEncoder",
    "fake.Custom",
    "fake.Vision",
    "fake.Seeing",
    "fake.Audio",
)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


class FakeModels:
    """The loader; remembers its runners, so that a test can see that each was closed."""

    def __init__(
        self,
        *,
        limits: EngineLimits = LIMITS,
        delay_s: float = 0.0,
        gate: threading.Semaphore | None = None,
        fail_result: int | None = None,
        samples: int = 1,
        defaults: SamplingParams = DEFAULTS,
        chat_queries: bool = False,
        network: dict[int, Any] | None = None,
        page_size_told: int | None = None,
        room: int = 1000,
        stream_interval_s: float = 0.0,
    ) -> None:
        self.limits = limits
        self.runners: list[Any] = []
        self.loads: list[str] = []  # checkpoints, in order
        self.concurrent = 0
        self.most_concurrent = 0
        self.batches = threading.Event()  # clear: batches of embedders and custom models wait
        self.batches.set()
        self.release = threading.Event()  # lets a load of fake.Held go on
        self._delay_s = delay_s
        self._gate = gate
        self._fail_result = fail_result
        self._samples = samples
        self._defaults = defaults
        self._chat_queries = chat_queries
        self._network = network  # with other servers: pages move over it
        self._page_size_told = page_size_told  # not the truth
        self._room = room
        self._stream_interval_s = stream_interval_s

    def __call__(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            return self._load(spec, report)
        finally:
            self.concurrent -= 1

    def _load(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        self.loads.append(spec.checkpoint)
        report(Progress("reading weights", 1, 2, "tensors"))
        match spec.model_path:
            case "fake":
                pass
            case "fake.Seeing":
                return self._loaded(spec, seeing=True)
            case "fake.Embedder":
                return self._remember(fake_embedder(self.batches))
            case "fake.Classifier":
                return self._remember(fake_classifier(self.batches, "low", "high"))
            case "fake.CrossEncoder":
                return self._remember(fake_classifier(self.batches, "relevant"))
            case "fake.Late":
                return self._remember(fake_late())
            case "fake.Tagger":
                return self._remember(fake_tagger())
            case "fake.Custom":
                return self._remember(fake_custom(self.batches))
            case "fake.Vision":
                return self._remember(fake_vision(self.batches))
            case "fake.Audio":
                return self._remember(fake_audio(self.batches))
            case "fake.Synthesizer":
                return self._remember(fake_synthesizer(self.batches))
            case "fake.Held":
                while not self.release.wait(0.01):
                    report(Progress("compiling bucket", 1, 3))
            case "fake.Stuck":
                self.release.wait()  # like a compile that nothing can stop
            case "fake.Truncated":
                raise CheckpointError(f"{spec.checkpoint}: tensor lm_head is truncated")
            case "fake.OutOfMemory":
                raise MemoryError("cannot allocate 8 GiB")
            case "fake.Exits":
                raise SystemExit(3)
            case path:
                raise ModelPathNotFound(f"no model path {path}", param="model_path")
        return self._loaded(spec)

    def _remember(
        self, loaded: LoadedEmbedder | LoadedTokens | LoadedCustom | LoadedVision | LoadedAudio
    ) -> LoadedModel:
        self.runners.append(loaded.runner)
        return loaded

    def _disaggregation(self, spec: ModelSpec, runner: FakeRunner) -> Disaggregation | None:
        if runner.traffic is None:
            return None
        contract = Contract(
            source=source_of(spec),
            page_size=self._page_size_told or self.limits.page_size,
            kv_dtype="int64",
            layers=1,
            kv_heads=1,
            key_dim=1,
            value_dim=0,
            mesh="model=1",
            hosts=1,
            jaxlib="none",
        )
        room = PageCount(self._room)
        return Disaggregation(contract, runner.traffic, runner, room=room, page_bytes=8)

    def _loaded(self, spec: ModelSpec, *, seeing: bool = False) -> Loaded:
        runner = FakeRunner(
            replace(self.limits, media=fake_image_input.LIMITS) if seeing else self.limits,
            delay_s=self._delay_s,
            gate=self._gate,
            fail_result=self._fail_result,
            traffic=None if self._network is None else FakeTraffic(self._network),
        )
        self.runners.append(runner)
        disaggregation = self._disaggregation(spec, runner)
        text: dict[str, Any] = {
            "tokenizer": ByteTokenizer(256),
            "chat_template": ChatTemplate(TEMPLATE, bos_token="", eos_token=""),
            "methods": ("lm.generate", "lm.generate_stream", "lm.score"),
        }
        return Loaded(
            runner=disaggregation.runner if disaggregation else runner,
            **(fake_image_input.seeing() if seeing else text),
            chat_queries=self._chat_queries,
            defaults=self._defaults,
            samples=self._samples,
            memory=MEMORY,
            kernels=KERNELS,
            stream_interval_s=self._stream_interval_s,
            disaggregation=disaggregation,
        )


def answer_to(
    prompt: str | Sequence[int], count: int, sampling: Sampling = GREEDY
) -> tuple[int, ...]:
    """The tokens the fake model answers with."""
    tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens, sampling))
    return tuple(tokens[start:])


def text_of(tokens: Sequence[int]) -> str:
    """Their text; all are ASCII."""
    return bytes(tokens).decode()


async def serve() -> None:
    """Serve on a free port until signalled; tokens take 10 ms each."""
    server = ModelServer(
        ModelServerConfig(port=0, metrics_port=-1, sax_cell="", drain_seconds=20),
        FakeModels(delay_s=0.01),
        model_paths=lambda: MODEL_PATHS,
        compiles_while_serving=lambda: 0,
    )
    await server.serve_until_signalled()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve())
    leave(0)
