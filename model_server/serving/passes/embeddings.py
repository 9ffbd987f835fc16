"""Handler for requests to embed, to classify and to score pairs: checks every input, then batches
them with all others.

Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from model_server.loading.loaded import LoadedEmbedder
from model_server.models.tasks import check_size
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.embed_servable import EmbedServable
from model_server.serving.lm_servable import LmServable
from model_server.serving.passes.inputs import EACH, inputs_ids, pairs_ids, texts_ids
from model_server.serving.query_cost import BatchCost
from model_server.serving.servable import Servable
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from sax.auth.acl import caller
from sax.errors import InvalidRequest
from sax.types import Classified, Embedded, EmbedInput, PairScores

EMBED, CLASSIFY, RERANK = "lm.embed", "lm.classify", "lm.rerank"

Ids = list[Sequence[int]]
Vectors = list[list[float]]
T = TypeVar("T")


class Embeddings:
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        self._servables = servables
        self._admission = admission
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
        servable, passes = self._passes(model_id, EMBED)
        loaded = passes.loaded
        with self._admission.request(servable, EMBED):
            if dimensions:
                check_size(dimensions, loaded.dimensions, loaded.sizes)
            _check_some(inputs, "input")
            ids = await self._encode(
                loaded, inputs, lambda: inputs_ids(inputs, loaded, prompt_name)
            )
            vectors = await passes.embed(ids, cost)
            if 0 < dimensions < loaded.dimensions:
                vectors = await self._compute(
                    vectors, lambda whole: cut(whole, dimensions, loaded.normalised)
                )
        return Embedded(vectors, sum(map(len, ids)))

    async def classify(self, model_id: str, inputs: Sequence[EmbedInput]) -> Classified:
        """Return a score per label of each input, in order. Raises as `embed`."""
        servable, passes = self._passes(model_id, CLASSIFY)
        with self._admission.request(servable, CLASSIFY):
            _check_some(inputs, "input")
            loaded = passes.loaded
            ids = await self._encode(loaded, inputs, lambda: inputs_ids(inputs, loaded))
            scores = await passes.embed(ids)
        return Classified(passes.loaded.labels, scores, sum(map(len, ids)))

    async def score_pairs(
        self, model_id: str, first: Sequence[str], second: Sequence[str]
    ) -> PairScores:
        """Return a score per pair, in order: the classifier's, or the cosine of two embeddings.

        first: one text for all pairs, or one per pair. Raises as `embed`.
        """
        servable, passes = self._passes(model_id, RERANK)
        loaded = passes.loaded
        with self._admission.request(servable, RERANK):
            _check_pairs(first, second)
            if loaded.labels:
                firsts = [*first] * (len(second) if len(first) == 1 else 1)
                both = [*firsts, *second]
                ids = await self._encode(loaded, both, lambda: pairs_ids(firsts, second, loaded))
                scores = [score for (score,) in await passes.embed(ids)]
            else:
                texts = [*first, *second]
                ids = await self._encode(
                    loaded,
                    texts,
                    lambda: [
                        *texts_ids(first, "first", loaded),
                        *texts_ids(second, "second", loaded),
                    ],
                )
                vectors = await passes.embed(ids)
                scores = await self._compute(vectors, lambda whole: cosines(whole, len(first)))
        return PairScores(scores, sum(map(len, ids)))

    def _passes(self, model_id: str, method: str) -> tuple[Servable, EmbedServable]:
        """Return the model and the part of it that serves the method."""
        self._admission.check_open()
        servable = self._servables.get(model_id)
        passes = servable.embedder if isinstance(servable, LmServable) else servable
        if not isinstance(passes, EmbedServable) or method not in servable.methods:
            raise refusal(servable, method)
        check_method(caller(), model_id, method, self._servables.acls(model_id))
        return servable, passes

    async def _compute(self, vectors: Vectors, work: Callable[[Vectors], T]) -> T:
        """Do the work on a thread if there are many numbers."""
        return await self._encoding.run(len(vectors) * len(vectors[0]), lambda: work(vectors))

    async def _encode(
        self, loaded: LoadedEmbedder, inputs: Sequence[EmbedInput], work: Callable[[], Ids]
    ) -> Ids:
        characters = sum(len(each) + EACH for each in inputs)
        return await self._encoding.run(to_encode(characters, loaded.tokenizer), work)


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
