"""A model of a cell as the sampler of a trainer on the same machine.

Answers and scores go through the cell's data plane, weights through shared memory to every replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from sax import AsyncClient, GenerateRequest, ReplyOptions, SamplingParams, TokenChunk

T = TypeVar("T")


class CellAnswer(NamedTuple):
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class CellSampler:
    """Blocking: a client on an event loop of its own."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._runner = asyncio.Runner()
        self._client = self._run(self._opened())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self._run(self._client.close())
        self._runner.close()

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, seed: int
    ) -> list[CellAnswer]:
        """Answer every prompt; the n-th draws with seed + n."""
        chunks = self._all(
            GenerateRequest(
                model_id=self._model,
                prompt=tuple(prompt),
                sampling=SamplingParams(
                    temperature=1.0,
                    max_tokens=max_tokens,
                    seed=seed + number,
                    logprobs=0,
                    ignore_eos=True,
                ),
            )
            for number, prompt in enumerate(prompts)
        )
        return [
            CellAnswer(each.token_ids, tuple(one.logprob for one in each.logprobs))
            for each in chunks
        ]

    def score(
        self, texts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of each text from its start on."""
        chunks = self._all(
            GenerateRequest(
                model_id=self._model,
                prompt=tuple(text),
                sampling=SamplingParams(temperature=0.0, max_tokens=1),
                reply=ReplyOptions(prompt_logprobs=0),
            )
            for text in texts
        )
        return [
            tuple(one.logprob for one in each.prompt_logprobs[start:])
            for each, start in zip(chunks, starts, strict=True)
        ]

    def update_weights(self, source: Mapping[str, Any]) -> str:
        """Give every replica new weights, and return their version."""
        return self._run(self._client.update_weights(self._model, source))

    async def _opened(self) -> AsyncClient:
        return AsyncClient()

    def _all(self, requests: Any) -> list[TokenChunk]:
        async def all_of() -> list[TokenChunk]:
            return await asyncio.gather(*map(self._one, requests))

        return self._run(all_of())

    async def _one(self, request: GenerateRequest) -> TokenChunk:
        whole = TokenChunk("")
        async for chunk in self._client.generate(request):
            whole = whole.joined(chunk)
        return whole

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)
