"""A model of a cell, asked through the SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from sax.cli.bench.target import AnswerPart
from sax.cli.bench.workload import PlannedRequest
from sax.client import AsyncClient
from sax.types import GenerateRequest, Message, SamplingParams


class CellTarget:
    """Greedy answers, of exactly as many tokens as asked for."""

    def __init__(
        self, client: AsyncClient, model: str, chat: bool, timeout_s: float | None
    ) -> None:
        self._client, self._model, self._chat = client, model, chat
        self._timeout_s = timeout_s

    @property
    def subject(self) -> dict[str, Any]:
        api = "SDK, chat" if self._chat else "SDK"
        return {"model": self._model, "api": api, "ignores_end": True}

    async def prepare(self) -> None:
        async for _ in self.answer(PlannedRequest("Hello", 2)):
            pass

    async def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        prompt = (Message("user", request.prompt),) if self._chat else request.prompt
        sampling = SamplingParams(temperature=0.0, max_tokens=request.tokens, ignore_eos=True)
        asked = GenerateRequest(model_id=self._model, prompt=prompt, sampling=sampling)
        async for chunk in self._client.generate(asked, self._timeout_s):
            yield AnswerPart(
                bool(chunk.token_ids or chunk.text),
                chunk.completion_tokens or None,
                chunk.prompt_tokens or None,
            )
