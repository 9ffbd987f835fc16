"""A model in the process of its trainer: it samples, scores, and takes new weights.

    with Sampler("/models/start") as sampler:
        answers = sampler.sample(prompts, max_tokens=8, seed=1)
        logprobs = sampler.score([(*prompt, *answer.tokens) for ...], starts)
        sampler.update_weights(arrays)  # of jax or numpy, by their Hugging Face names

Everything runs through the engine that serves models, with its batches, prefix cache and programs:
nothing is compiled after the load, and what it samples is what a server of this machine would.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.parts.routed_experts import ShowRoutes, ToldRoutes
from model_server.engine.running.ops import ForgetWeights, ReadWeights, WriteWeights
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.new_weights import GIVEN
from sax.errors import InvalidRequest, Unavailable
from sax.types import ModelSpec, Progress
from sax.weights import PUBLISHED, Pausing, WeightRun, add_run

__all__ = ["SampledAnswer", "Sampler"]

_SCORED = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class SampledAnswer(NamedTuple):
    """One answer."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of each token, as it was chosen
    weights: tuple[WeightRun, ...]  # which computed them
    # u8 or u16[prompt and answer but the last token, layers with experts, k], if asked for
    routed_experts: np.ndarray | None = None


class _Collected:
    """The updates of one sequence, until its end."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.scores: list[float] = []
        self.runs: list[WeightRun] = []
        self.routes = ToldRoutes()
        self.ended: Future[None] = Future()


class Sampler:
    """Thread-safe. Close it, or use it in a `with` statement. One per process: its loader counts
    every compilation."""

    def __init__(
        self,
        checkpoint: str,
        *,
        model_path: str = "auto",
        overrides: Mapping[str, str] | None = None,
        config: ModelServerConfig | None = None,
    ) -> None:
        """checkpoint, model_path, overrides: as of `sax publish`. config: slots, pages and memory.

        Raises LoadFailed and its subclasses, InvalidRequest, for a model that makes no tokens, too.
        """
        spec = ModelSpec(
            model_id="/sax/here/sampler",
            model_path=model_path,
            checkpoint=checkpoint,
            replicas=1,
            overrides=overrides or {},
        )
        loader = make_loader(config or ModelServerConfig())
        loaded = loader(spec, _quiet)
        loader.watch.stop()  # a trainer compiles programs of its own
        if not isinstance(loaded, Loaded):
            loaded.close()
            raise InvalidRequest(f"{checkpoint} makes no tokens: name a language model")
        self.loaded = loaded
        self.version = PUBLISHED  # of the weights that compute what is delivered now
        self._engine = Engine(loaded.runner, self._deliver, loaded.step_times)
        self._collected: dict[int, _Collected] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; calls in progress raise."""
        self._engine.close()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        stop_ids: Sequence[int] = (),
        routed_experts: bool = False,
    ) -> list[SampledAnswer]:
        """Answer every prompt of token ids; the n-th draws with seed + n. Raises as the engine.

        routed_experts: answers have the experts of their tokens; the model is to be loaded with
        RETURN_ROUTED_EXPERTS.
        """
        settings = (ShowRoutes(),) if routed_experts else ()
        asked = [
            EngineRequest(
                prompt=tuple(prompt),
                sampling=Sampling(temperature, 0, 1.0, seed=seed + number),
                max_tokens=max_tokens,
                stop_ids=frozenset(stop_ids),
                settings=settings,
            )
            for number, prompt in enumerate(prompts)
        ]
        return [
            SampledAnswer(
                *(tuple(each.tokens), tuple(each.logprobs), tuple(each.runs)),
                each.routes.first(len(prompt) + len(each.tokens) - 1) if routed_experts else None,
            )
            for prompt, each in zip(prompts, self._answers(asked), strict=True)
        ]

    def score(
        self, texts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of each text from its start on, 1 or later.

        Whole prompts are computed at once: no token is decoded. Raises as the engine.
        """
        asked = [
            EngineRequest(
                prompt=tuple(text),
                sampling=_SCORED,
                max_tokens=0,
                stop_ids=frozenset(),
                score_from=start,
            )
            for text, start in zip(texts, starts, strict=True)
        ]
        return [tuple(each.scores) for each in self._answers(asked)]

    def update_weights(
        self,
        source: str | Mapping[str, Any],
        *,
        version: str = "",
        partial: bool = False,
        mode: Pausing = Pausing.WAIT,
    ) -> str:
        """Replace the weights between two steps, and return their version.

        source: a checkpoint's path, or arrays by their Hugging Face names. partial: some of them.
        Raises CheckpointError, MemoryPlanError, and Unavailable for a model of which they cannot
        change; the old weights stay then.
        """
        if self.loaded.fixed:
            raise Unavailable(f"the weights cannot change in place, because {self.loaded.fixed}")
        key = secrets.token_hex(8)
        if not isinstance(source, str):
            GIVEN[key], source = source, f"memory:{key}"
        runner, pauses = self.loaded.runner, self._engine.pauses
        named = version or str(int(self.version) + 1 if self.version.isdecimal() else 1)

        def put() -> None:
            runner.do(WriteWeights(key))
            pauses.renew()
            self.version = named

        try:
            runner.do(ReadWeights(key, source, partial)).result()
            pauses.between(put, mode).result()
        finally:
            GIVEN.pop(key, None)
            runner.do(ForgetWeights(key))
        return named

    def _answers(self, asked: Sequence[EngineRequest]) -> list[_Collected]:
        # No more at once than the queue takes.
        limits = self.loaded.runner.limits
        together = limits.slots + limits.queue
        made: list[_Collected] = []
        for first in range(0, len(asked), together):
            part = [self._submitted(each) for each in asked[first : first + together]]
            for each in part:
                each.ended.result()
            made += part
        return made

    def _submitted(self, asked: EngineRequest) -> _Collected:
        collected = _Collected()

        def announce(id: int) -> None:
            self._collected[id] = collected

        self._engine.submit(asked, announce=announce)
        return collected

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            self._take(self._collected[update.sequence], update)
            if update.finish or update.error:
                del self._collected[update.sequence]

    def _take(self, collected: _Collected, update: SequenceUpdate) -> None:
        result = update.result
        collected.scores += result.target_logprobs
        collected.routes.add(update.routes)
        if result.token is not None:
            collected.tokens.append(result.token)
            collected.logprobs.append(result.logprob)
            add_run(collected.runs, self.version)
        if update.error is not None:
            collected.ended.set_exception(update.error)
        elif update.finish == "cancelled":
            collected.ended.set_exception(Unavailable("the sampler was closed"))
        elif update.finish:
            collected.ended.set_result(None)


def _quiet(_: Progress) -> None:
    """Nobody follows the load's progress."""
