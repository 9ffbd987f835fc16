"""Handler for models with a vector or labels per token: a part of `Embeddings`.

Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model_server.loading.passes.loaded_passes import (
    ImageReading,
    LoadedTokens,
    MixedInput,
    TokenText,
)
from model_server.models.tasks import check_size
from model_server.serving.admission import Admission
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
from model_server.serving.query_cost import BatchCost
from model_server.serving.request_checks import check_ids
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.late_tokenizer import DOCUMENT, QUERY
from model_server.text.tokenizer import PlacedToken
from sax.chat import Image
from sax.errors import InvalidRequest
from sax.passes import (
    ChatInput,
    Classified,
    Embedded,
    EmbedInput,
    PairInput,
    PairScores,
    TokenScores,
)

_EMBED, _CLASSIFY, _RERANK = "lm.embed", "lm.classify", "lm.rerank"
# Of one answer: 2 MiB on the wire, 10 MB as JSON, which no thread shares the interpreter with
_MOST_VALUES = 1 << 19


class _Read(NamedTuple):
    """An input as the model reads it."""

    text: TokenText | MixedInput
    kept: Sequence[int]  # places of the tokens that are answered
    tokens: Sequence[PlacedToken] = ()  # of a classifier


class TokenTexts(BatchCalls[LoadedTokens]):
    def __init__(
        self, servables: Servables, admission: Admission, encoding: EncodingThreads
    ) -> None:
        super().__init__(servables, admission, LoadedTokens)
        self._encoding = encoding

    def serves(self, model_id: str) -> bool:
        """True if the model answers by token. Raises NotLoaded, ShuttingDown."""
        self._admission.check_open()
        return self._servables.get(model_id).part(LoadedTokens) is not None

    async def embed(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        dimensions: int,
        prompt_name: str,
        cost: BatchCost | None,
        *,
        taken: bool,
    ) -> Embedded:
        """Return a vector per token. prompt_name: query or document; "": document.

        Raises as `Embeddings.embed`, and InvalidRequest if the caller does not take such an answer.
        """
        with self._request(model_id, _EMBED) as passes:
            loaded = passes.loaded
            _check_taken(taken, f"{model_id} has a vector per token", "POST /pooling")
            if dimensions:
                check_size(dimensions, loaded.dimensions, ())
            check_some(inputs, "input")
            read = await self._read(loaded, inputs, prompt_name)

            def kept(place: int, vectors: np.ndarray) -> list[list[float]]:
                return vectors[read[place].kept].tolist()

            vectors = await answers_of(passes, _texts(read), _tokens, kept, cost)
        return Embedded([], _total(read), vectors)

    async def classify(
        self, model_id: str, inputs: Sequence[EmbedInput], *, taken: bool
    ) -> Classified:
        """Return a score per label of each token. Raises as `embed`."""
        with self._request(model_id, _CLASSIFY) as passes:
            loaded = passes.loaded
            _check_taken(taken, f"{model_id} gives each token a label", "POST /v1/classify")
            check_some(inputs, "input")
            read = await self._read(loaded, inputs, "")

            def placed(place: int, scores: np.ndarray) -> list[TokenScores]:
                tokens = zip(scores.tolist(), read[place].tokens, strict=True)
                return [TokenScores(each, *token[1:]) for each, token in tokens]

            found = await answers_of(passes, _texts(read), _tokens, placed)
        return Classified(loaded.labels, [], _total(read), found)

    async def score_pairs(
        self, model_id: str, first: Sequence[PairInput], second: Sequence[PairInput]
    ) -> PairScores:
        """Return the MaxSim of each pair. Raises as `embed`."""
        with self._request(model_id, _RERANK) as passes:
            loaded = passes.loaded
            check_pairs(first, second)
            check_reads(loaded, [*first, *second], "second")
            queries, documents = await self._both(loaded, first, second)
            vectors: list[np.ndarray] = await answers_of(
                passes, _texts(queries), _tokens, lambda _, found: found
            )

            def score(place: int, found: np.ndarray) -> float:
                query = vectors[place if len(vectors) > 1 else 0]
                return max_sim(query, found[documents[place].kept])

            scores = await answers_of(passes, _texts(documents), _tokens, score)
        return PairScores(scores, _total(queries) + _total(documents))

    async def _read(
        self, loaded: LoadedTokens, inputs: Sequence[EmbedInput], role: str
    ) -> list[_Read]:
        """Raises InvalidRequest, PromptTooLong, UnsupportedParameter."""
        check_reads(loaded, inputs, "input")
        count = len(inputs)

        def work() -> list[_Read]:
            return [
                _input(each, "input" if count == 1 else f"input {index}", loaded, role)
                for index, each in enumerate(inputs)
            ]

        if loaded.image_reading is not None:
            read = await self._mixed(loaded, loaded.image_reading, inputs, "input", role)
        else:
            characters = to_encode(characters_of(inputs), loaded.tokenizer)
            read = await self._encoding.run(characters, work)
        values = loaded.dimensions * sum(len(each.kept) for each in read)
        if values > _MOST_VALUES:
            raise InvalidRequest(
                f"the answer would have {values} numbers, {loaded.dimensions} for each token; at "
                f"most {_MOST_VALUES} are sent: send fewer or shorter inputs",
                param="input",
            )
        return read

    async def _both(
        self, loaded: LoadedTokens, first: Sequence[PairInput], second: Sequence[PairInput]
    ) -> tuple[list[_Read], list[_Read]]:
        """Read queries and documents."""
        if (image_reading := loaded.image_reading) is not None:
            queries = await self._mixed(loaded, image_reading, first, "first", QUERY)
            return queries, await self._mixed(loaded, image_reading, second, "second", DOCUMENT)
        texts, others = texts_of(first), texts_of(second)
        characters = to_encode(characters_of([*texts, *others]), loaded.tokenizer)
        return await self._encoding.run(
            characters,
            lambda: (
                _lates(texts, "first", loaded, QUERY),
                _lates(others, "second", loaded, DOCUMENT),
            ),
        )

    async def _mixed(
        self,
        loaded: LoadedTokens,
        image_reading: ImageReading,
        inputs: Sequence[EmbedInput],
        param: str,
        role: str,
    ) -> list[_Read]:
        made = await MixedInputs(loaded, image_reading, self._encoding).read(inputs, param, role)
        return [_Read(each, range(len(each.ids))) for each in made]


def max_sim(query: np.ndarray, document: np.ndarray) -> float:
    """Return the sum over the tokens of a query f32[T, D] of their largest products with those of
    a document f32[S, D]; 0 if it has none.
    """
    return float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0


def _input(given: EmbedInput, which: str, loaded: LoadedTokens, role: str) -> _Read:
    assert not isinstance(given, Image | ChatInput), "checked: the model reads texts alone"
    if not given:
        raise InvalidRequest(f"{which} is empty: send text or token ids", param="input")
    if isinstance(given, str):
        if loaded.late is not None:
            return _late(given, which, loaded, role, "input")
        check_text(given, which, loaded, "input")
        tokens = loaded.tokenizer.encode_placed(given)
        ids = [token.id for token in tokens]
    else:
        check_ids(which, given, loaded.vocab)
        ids, tokens = given, [PlacedToken(each, 0, 0) for each in given]
    fitting(ids, which, loaded, "input")
    return _Read(TokenText(ids, len(ids)), range(len(ids)), tokens)


def _lates(texts: Sequence[str], param: str, loaded: LoadedTokens, role: str) -> list[_Read]:
    return [
        _late(text, f"{param}[{index}]", loaded, role, param) for index, text in enumerate(texts)
    ]


def _late(text: str, which: str, loaded: LoadedTokens, role: str, param: str) -> _Read:
    """Read a query or a document. Raises InvalidRequest, PromptTooLong, UnsupportedParameter."""
    assert loaded.late is not None, "only late-interaction models compare tokens"
    check_text(text, which, loaded, param)
    ids, seen, kept = loaded.late.encode(text, role)
    fitting(ids, which, loaded, param)
    return _Read(TokenText(ids, seen), kept)


def _texts(read: Sequence[_Read]) -> list[TokenText | MixedInput]:
    return [each.text for each in read]


def _tokens(text: TokenText | MixedInput) -> int:
    return len(text.ids)


def _total(read: Sequence[_Read]) -> int:
    return sum(_tokens(each.text) for each in read)


def _check_taken(taken: bool, what: str, where: str) -> None:
    if not taken:
        raise InvalidRequest(
            f"{what}, and this call answers by input: use {where}, or the SDK's calls of tokens",
            param="model",
        )
