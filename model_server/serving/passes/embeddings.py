"""Handler for requests to embed, to classify and to score pairs: checks every input, then batches
them with all others.

Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from model_server.loading.passes.loaded_passes import LoadedEmbedder, Matching, MixedInput
from model_server.models.tasks import check_size
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.passes.mixed_inputs import MixedInputs, check_reads
from model_server.serving.passes.texts import (
    answers_of,
    characters_of,
    check_pairs,
    check_some,
    check_text,
    fitting,
    texts_of,
)
from model_server.serving.passes.token_texts import TokenTexts
from model_server.serving.query_cost import BatchCost
from model_server.serving.request_checks import check_ids
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from sax.chat import Image
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.passes import ChatInput, Classified, Embedded, EmbedInput, PairInput, PairScores

EMBED, CLASSIFY, RERANK = "lm.embed", "lm.classify", "lm.rerank"

Ids = list[Sequence[int]]
Items = Sequence[Sequence[int] | MixedInput]
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
            items, tokens = await self._items(loaded, inputs, prompt_name)
            vectors = await vectors_of(passes, items, cost)
            if 0 < dimensions < loaded.dimensions:
                vectors = await self._compute(
                    vectors, lambda whole: cut(whole, dimensions, loaded.normalised)
                )
        return Embedded(vectors, tokens)

    async def classify(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        *,
        takes_tokens: bool = False,
        candidates: Sequence[PairInput] = (),
    ) -> Classified:
        """Return a score per label of each input, in order. Raises as `embed`.

        takes_tokens: or of each token, of a classifier of those. candidates: in place of labels, of
        a model that matches texts and images.
        """
        if self._tokens.serves(model_id):
            _check_candidates(None, candidates)
            return await self._tokens.classify(model_id, inputs, taken=takes_tokens)
        with self._request(model_id, CLASSIFY) as passes:
            check_some(inputs, "input")
            loaded = passes.loaded
            _check_candidates(loaded.matching, candidates)
            items, tokens = await self._items(loaded, inputs)
            if loaded.matching is None:
                scores, labels = await vectors_of(passes, items), loaded.labels
            else:
                offered, more = await self._items(loaded, candidates, param="candidates")
                vectors = await vectors_of(passes, [*items, *offered])
                scores = matched(vectors, len(items), loaded.matching)
                labels, tokens = _named(candidates), tokens + more
        return Classified(labels, scores, tokens)

    async def score_pairs(
        self, model_id: str, first: Sequence[PairInput], second: Sequence[PairInput]
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
                items, tokens = await self._pairs(loaded, firsts, second)
                scores = [score for (score,) in await vectors_of(passes, items)]
            else:
                items, tokens = await self._sides(loaded, first, second)
                vectors = await vectors_of(passes, items)
                scores = await self._compute(vectors, lambda whole: cosines(whole, len(first)))
        return PairScores(scores, tokens)

    async def _items(
        self,
        loaded: LoadedEmbedder,
        inputs: Sequence[EmbedInput],
        prompt_name: str = "",
        param: str = "input",
    ) -> tuple[Items, int]:
        """Return what the model reads of each input, and their tokens."""
        check_reads(loaded, inputs, param)
        if loaded.image_reading is not None:
            read = MixedInputs(loaded, loaded.image_reading, self._encoding)
            return _counted(await read.read(inputs, param, prompt_name))
        ids = await self._encode(loaded, inputs, lambda: _inputs_ids(inputs, loaded, prompt_name))
        return ids, sum(map(len, ids))

    async def _pairs(
        self, loaded: LoadedEmbedder, first: Sequence[PairInput], second: Sequence[PairInput]
    ) -> tuple[Items, int]:
        check_reads(loaded, [*first, *second], "second")
        if loaded.image_reading is not None and loaded.tokenizer.writes_pairs:
            return _counted(
                await MixedInputs(loaded, loaded.image_reading, self._encoding).pairs(first, second)
            )
        texts, others = texts_of(first), texts_of(second)
        ids = await self._encode(
            loaded, [*texts, *others], lambda: _pairs_ids(texts, others, loaded)
        )
        return ids, sum(map(len, ids))

    async def _sides(
        self, loaded: LoadedEmbedder, first: Sequence[PairInput], second: Sequence[PairInput]
    ) -> tuple[Items, int]:
        check_reads(loaded, [*first, *second], "second")
        if loaded.image_reading is not None:
            firsts, count = await self._items(loaded, first, param="first")
            seconds, more = await self._items(loaded, second, param="second")
            return [*firsts, *seconds], count + more
        texts, others = texts_of(first), texts_of(second)
        ids = await self._encode(
            loaded,
            [*texts, *others],
            lambda: [
                *_texts_ids(texts, "first", loaded),
                *_texts_ids(others, "second", loaded),
            ],
        )
        return ids, sum(map(len, ids))

    async def _compute(self, vectors: Vectors, work: Callable[[Vectors], T]) -> T:
        """Do the work on a thread if there are many numbers."""
        return await self._encoding.run(len(vectors) * len(vectors[0]), lambda: work(vectors))

    async def _encode(
        self, loaded: LoadedEmbedder, inputs: Sequence[EmbedInput], work: Callable[[], Ids]
    ) -> Ids:
        characters = to_encode(characters_of(inputs), loaded.tokenizer)
        return await self._encoding.run(characters, work)


async def vectors_of(
    passes: BatchServable[LoadedEmbedder], inputs: Items, cost: BatchCost | None = None
) -> Vectors:
    """Return the vector of each input, in order. Raises QueueFull, NotLoaded."""
    return await answers_of(passes, inputs, _tokens_of, lambda _, vector: vector, cost)


def _tokens_of(item: Sequence[int] | MixedInput) -> int:
    return item.tokens if isinstance(item, MixedInput) else len(item)


def _counted(items: Sequence[MixedInput]) -> tuple[Items, int]:
    return items, sum(each.tokens for each in items)


def matched(vectors: Vectors, inputs: int, matching: Matching) -> Vectors:
    """Return a score for each of the later vectors, of each of the first ones."""
    units = _units(np.asarray(vectors))
    logits = matching.scale * (units[:inputs] @ units[inputs:].T) + matching.bias
    if matching.independent:
        return (1 / (1 + np.exp(-logits))).tolist()
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).tolist()


def _named(candidates: Sequence[PairInput]) -> tuple[str, ...]:
    """Return the labels of candidates: their texts, of images their places."""
    return tuple(
        each if isinstance(each, str) else f"candidates[{index}]"
        for index, each in enumerate(candidates)
    )


def _check_candidates(matching: Matching | None, candidates: Sequence[PairInput]) -> None:
    if matching is None and candidates:
        raise UnsupportedParameter(
            "candidates are for models that match texts and images, such as CLIP, and this one has "
            "labels of its own: leave them out",
            param="candidates",
        )
    if matching is not None and not candidates:
        raise InvalidRequest(
            "this model has no labels of its own: send candidates to choose from",
            param="candidates",
        )


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
    assert not isinstance(given, Image | ChatInput), "checked: the model reads texts alone"
    if not given:
        raise InvalidRequest(f"{which} is empty: send text or token ids", param=param)
    if not isinstance(given, str):
        check_ids(which, given, loaded.vocab)
        return fitting(given, which, loaded, param)
    check_text(given, which, loaded, param)
    return fitting(loaded.tokenizer.encode(given, prompt_name), which, loaded, param)
