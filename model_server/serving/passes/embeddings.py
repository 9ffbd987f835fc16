"""Handler for requests to embed, to classify and to score pairs: checks every input, then batches
them with all others.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from model_server.loading.loaded_batches import ONLY
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.models.tasks import check_size
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.request_checks import check_ids
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.text_length import check_bytes, check_pieces
from sax.errors import InvalidRequest, PromptTooLong
from sax.passes import Classified, Embedded, PairScores
from sax.types import EmbedInput

EMBED, CLASSIFY, RERANK = "lm.embed", "lm.classify", "lm.rerank"

Ids = list[Sequence[int]]
Vectors = list[list[float]]
T = TypeVar("T")

_BATCHES_AHEAD = 2  # queued per caller: keeps the device busy and the queue fair
_EACH = 50  # characters: an input costs some time to begin with


class Embeddings(BatchCalls[LoadedEmbedder]):
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        super().__init__(servables, admission, LoadedEmbedder)
        self._encoding = encoding or EncodingThreads()

    async def embed(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        dimensions: int = 0,
        prompt_name: str = "",
        cost: BatchCost | None = None,
    ) -> Embedded:
        """Return the vector of each input, in order, cut to so many dimensions; 0: whole. Add
        their device time to the cost.

        Raises InvalidRequest and its subclasses naming the input, PermissionDenied, NotLoaded,
        QueueFull, ShuttingDown.
        """
        with self._request(model_id, EMBED) as passes:
            loaded = passes.loaded
            if dimensions:
                check_size(dimensions, loaded.dimensions, loaded.sizes)
            _check_some(inputs, "input")
            ids = await self._encode(
                loaded, inputs, lambda: _inputs_ids(inputs, loaded, prompt_name)
            )
            vectors = await vectors_of(passes, ids, cost)
            if 0 < dimensions < loaded.dimensions:
                vectors = await self._compute(
                    vectors, lambda whole: cut(whole, dimensions, loaded.normalised)
                )
        return Embedded(vectors, sum(map(len, ids)))

    async def classify(self, model_id: str, inputs: Sequence[EmbedInput]) -> Classified:
        """Return a score per label of each input, in order. Raises as `embed`."""
        with self._request(model_id, CLASSIFY) as passes:
            _check_some(inputs, "input")
            loaded = passes.loaded
            ids = await self._encode(loaded, inputs, lambda: _inputs_ids(inputs, loaded))
            scores = await vectors_of(passes, ids)
        return Classified(passes.loaded.labels, scores, sum(map(len, ids)))

    async def score_pairs(
        self, model_id: str, first: Sequence[str], second: Sequence[str]
    ) -> PairScores:
        """Return a score per pair, in order: the classifier's, or the cosine of two embeddings.

        first: one text for all pairs, or one per pair. Raises as `embed`.
        """
        with self._request(model_id, RERANK) as passes:
            loaded = passes.loaded
            _check_pairs(first, second)
            if loaded.labels:
                firsts = [*first] * (len(second) if len(first) == 1 else 1)
                both = [*firsts, *second]
                ids = await self._encode(loaded, both, lambda: _pairs_ids(firsts, second, loaded))
                scores = [score for (score,) in await vectors_of(passes, ids)]
            else:
                texts = [*first, *second]
                ids = await self._encode(
                    loaded,
                    texts,
                    lambda: [
                        *_texts_ids(first, "first", loaded),
                        *_texts_ids(second, "second", loaded),
                    ],
                )
                vectors = await vectors_of(passes, ids)
                scores = await self._compute(vectors, lambda whole: cosines(whole, len(first)))
        return PairScores(scores, sum(map(len, ids)))

    async def _compute(self, vectors: Vectors, work: Callable[[Vectors], T]) -> T:
        """Do the work on a thread if there are many numbers."""
        return await self._encoding.run(len(vectors) * len(vectors[0]), lambda: work(vectors))

    async def _encode(
        self, loaded: LoadedEmbedder, inputs: Sequence[EmbedInput], work: Callable[[], Ids]
    ) -> Ids:
        characters = sum(len(each) + _EACH for each in inputs)
        return await self._encoding.run(to_encode(characters, loaded.tokenizer), work)


async def vectors_of(
    passes: BatchServable[LoadedEmbedder],
    inputs: Sequence[Sequence[int]],
    cost: BatchCost | None = None,
) -> Vectors:
    """Return the vector of each input, in order. Raises QueueFull, NotLoaded."""
    batching = passes.loaded.batching[ONLY]
    room = asyncio.Semaphore(min(_BATCHES_AHEAD * batching.most, batching.queue))

    async def one(ids: Sequence[int]) -> list[float]:
        async with room:
            vector = await passes.ask(ids, cost)
        passes.prompt_tokens += len(ids)
        return vector

    tasks = [asyncio.ensure_future(one(ids)) for ids in inputs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def cut(vectors: Vectors, dimensions: int, normalised: bool) -> Vectors:
    """Return the first numbers of each vector, of length 1 again if the whole vectors are."""
    first = np.asarray(vectors)[:, :dimensions]
    return (_units(first) if normalised else first).tolist()


def cosines(vectors: Vectors, firsts: int) -> list[float]:
    """Return the cosine of each vector after the first ones with its partner among them."""
    units = _units(np.asarray(vectors))
    return (units[:firsts] * units[firsts:]).sum(1).tolist()


def _units(vectors: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(sizes, 1e-12)


def _check_some(inputs: Sequence[EmbedInput], param: str) -> None:
    if not inputs:
        raise InvalidRequest(f"{param} is empty: send at least one text", param=param)


def _check_pairs(first: Sequence[str], second: Sequence[str]) -> None:
    _check_some(first, "first")
    _check_some(second, "second")
    if len(first) not in (1, len(second)):
        raise InvalidRequest(
            f"first has {len(first)} texts and second has {len(second)}: send one first text, or "
            "as many as there are second ones",
            param="first",
        )


def _inputs_ids(
    inputs: Sequence[EmbedInput], loaded: LoadedEmbedder, prompt_name: str = ""
) -> list[Sequence[int]]:
    """Return the ids of each input. Raises InvalidRequest, PromptTooLong."""
    count = len(inputs)
    return [
        _ids(each, "input" if count == 1 else f"input {index}", loaded, prompt_name)
        for index, each in enumerate(inputs)
    ]


def _texts_ids(texts: Sequence[str], param: str, loaded: LoadedEmbedder) -> list[Sequence[int]]:
    """Return the ids of each text of `param`. Raises InvalidRequest, PromptTooLong."""
    return [
        _ids(text, f"{param}[{index}]", loaded, param=param) for index, text in enumerate(texts)
    ]


def _pairs_ids(
    first: Sequence[str], second: Sequence[str], loaded: LoadedEmbedder
) -> list[Sequence[int]]:
    """Return the ids of each pair, read together. Raises InvalidRequest, PromptTooLong."""
    for param, texts in (("first", first), ("second", second)):
        for index, text in enumerate(dict.fromkeys(texts)):
            _check_text(text, f"{param}[{index}]", loaded, param)
    return [
        _fitting(loaded.tokenizer.encode_pair(*pair), f"pair {index}", loaded, "second")
        for index, pair in enumerate(zip(first, second, strict=True))
    ]


def _ids(
    given: EmbedInput,
    which: str,
    loaded: LoadedEmbedder,
    prompt_name: str = "",
    param: str = "input",
) -> Sequence[int]:
    if not given:
        raise InvalidRequest(f"{which} is empty: send text or token ids", param=param)
    if not isinstance(given, str):
        check_ids(which, given, loaded.vocab)
        return _fitting(given, which, loaded, param)
    _check_text(given, which, loaded, param)
    return _fitting(loaded.tokenizer.encode(given, prompt_name), which, loaded, param)


def _check_text(text: str, which: str, loaded: LoadedEmbedder, param: str) -> None:
    if not text:
        raise InvalidRequest(f"{which} is empty: send text", param=param)
    check_bytes(text, loaded.tokenizer, loaded.max_context, param)
    check_pieces(text, loaded.tokenizer.encode, loaded.max_context, param)


def _fitting(ids: Sequence[int], which: str, loaded: LoadedEmbedder, param: str) -> Sequence[int]:
    if len(ids) > loaded.max_context:
        raise PromptTooLong(
            f"{which} has {len(ids)} tokens and this model's maximum context length is "
            f"{loaded.max_context} tokens: send it in shorter parts",
            param=param,
        )
    return ids
