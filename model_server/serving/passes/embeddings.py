"""Handler for requests to embed, to classify and to score pairs: checks every input, then batches
them with all others.

Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.models.tasks import check_size
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.passes.texts import (
    answers_of,
    characters_of,
    check_pairs,
    check_some,
    check_text,
    fitting,
)
from model_server.serving.passes.token_texts import TokenTexts
from model_server.serving.query_cost import BatchCost
from model_server.serving.request_checks import check_ids
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from sax.errors import InvalidRequest
from sax.passes import Classified, Embedded, PairScores
from sax.types import EmbedInput

EMBED, CLASSIFY, RERANK = "lm.embed", "lm.classify", "lm.rerank"

Ids = list[Sequence[int]]
Vectors = list[list[float]]
T = TypeVar("T")


class Embeddings(BatchCalls[LoadedEmbedder]):
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        super().__init__(servables, admission, LoadedEmbedder)
        self._encoding = encoding or EncodingThreads()
        self._tokens = TokenTexts(servables, admission, self._encoding)

    async def embed(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        dimensions: int = 0,
        prompt_name: str = "",
        cost: BatchCost | None = None,
        *,
        takes_tokens: bool = False,
    ) -> Embedded:
        """Return the vector of each input, in order, cut to so many dimensions; 0: whole. Add
        their device time to the cost. takes_tokens: or a vector per token, of a model with those.

        Raises InvalidRequest and its subclasses naming the input, PermissionDenied, NotLoaded,
        QueueFull, ShuttingDown.
        """
        if self._tokens.serves(model_id):
            return await self._tokens.embed(
                model_id, inputs, dimensions, prompt_name, cost, taken=takes_tokens
            )
        with self._request(model_id, EMBED) as passes:
            loaded = passes.loaded
            if dimensions:
                check_size(dimensions, loaded.dimensions, loaded.sizes)
            check_some(inputs, "input")
            ids = await self._encode(
                loaded, inputs, lambda: _inputs_ids(inputs, loaded, prompt_name)
            )
            vectors = await vectors_of(passes, ids, cost)
            if 0 < dimensions < loaded.dimensions:
                vectors = await self._compute(
                    vectors, lambda whole: cut(whole, dimensions, loaded.normalised)
                )
        return Embedded(vectors, sum(map(len, ids)))

    async def classify(
        self, model_id: str, inputs: Sequence[EmbedInput], *, takes_tokens: bool = False
    ) -> Classified:
        """Return a score per label of each input, in order. Raises as `embed`.

        takes_tokens: or of each token, of a classifier of those.
        """
        if self._tokens.serves(model_id):
            return await self._tokens.classify(model_id, inputs, taken=takes_tokens)
        with self._request(model_id, CLASSIFY) as passes:
            check_some(inputs, "input")
            loaded = passes.loaded
            ids = await self._encode(loaded, inputs, lambda: _inputs_ids(inputs, loaded))
            scores = await vectors_of(passes, ids)
        return Classified(passes.loaded.labels, scores, sum(map(len, ids)))

    async def score_pairs(
        self, model_id: str, first: Sequence[str], second: Sequence[str]
    ) -> PairScores:
        """Return a score per pair, in order: the classifier's, the cosine of two embeddings, or
        the MaxSim of their tokens.

        first: one text for all pairs, or one per pair. Raises as `embed`.
        """
        if self._tokens.serves(model_id):
            return await self._tokens.score_pairs(model_id, first, second)
        with self._request(model_id, RERANK) as passes:
            loaded = passes.loaded
            check_pairs(first, second)
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
        characters = to_encode(characters_of(inputs), loaded.tokenizer)
        return await self._encoding.run(characters, work)


async def vectors_of(
    passes: BatchServable[LoadedEmbedder],
    inputs: Sequence[Sequence[int]],
    cost: BatchCost | None = None,
) -> Vectors:
    """Return the vector of each input, in order. Raises QueueFull, NotLoaded."""
    return await answers_of(passes, inputs, len, lambda _, vector: vector, cost)


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
            check_text(text, f"{param}[{index}]", loaded, param)
    return [
        fitting(loaded.tokenizer.encode_pair(*pair), f"pair {index}", loaded, "second")
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
        return fitting(given, which, loaded, param)
    check_text(given, which, loaded, param)
    return fitting(loaded.tokenizer.encode(given, prompt_name), which, loaded, param)
