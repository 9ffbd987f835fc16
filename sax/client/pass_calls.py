"""Requests of a cell's client to models that embed, classify and rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from google.protobuf.message import Message as Protobuf

from sax.client.attempts import ANY_ROUTE, Route
from sax.client.connection import ModelServerConnection
from sax.client.locator import Locator
from sax.client.routing import ANYWHERE, Affinity
from sax.errors import InvalidRequest
from sax.passes import (
    Aggregation,
    Classified,
    Embedded,
    Entity,
    PairInput,
    PairScores,
    Ranked,
    entities_of,
    ranked,
)
from sax.proto import tokens_pb2
from sax.types import EmbedInput
from sax.wire.embed import (
    decode_classified,
    decode_embedded,
    decode_pair_scores,
    encode_classify,
    encode_embed,
    encode_pairs,
)
from sax.wire.services import Reply, RpcMethod

_EMBED = RpcMethod("/sax.tokens.TokenService/Embed", tokens_pb2.EmbedResponse)
_SCORE_PAIRS = RpcMethod("/sax.tokens.TokenService/ScorePairs", tokens_pb2.ScorePairsResponse)
_CLASSIFY = RpcMethod("/sax.tokens.TokenService/Classify", tokens_pb2.ClassifyResponse)


class ReplicaCalls:
    """Mixin: calls of a replica that the locator picks."""

    _locator: Locator

    async def _call(
        self,
        method: RpcMethod[Reply],
        model_id: str,
        request: Protobuf,
        timeout_s: float | None,
        route: Route = ANY_ROUTE,
        affinity: Affinity = ANYWHERE,
    ) -> Reply:
        async def ask(replica: ModelServerConnection, left_s: float | None) -> Reply:
            return await replica.call(method.path, request, method.reply, left_s)

        return await self._locator.call(model_id, ask, timeout_s, route, affinity=affinity)


class PassCalls(ReplicaCalls):
    """Mixin: requests to models that embed, classify and rank."""

    async def embed(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        dimensions: int = 0,
        prompt_name: str = "",
    ) -> list[list[float]]:
        """Return the vector of each input: a text or token ids, or of a model that sees an image
        or a ChatInput.

        dimensions: of a vector, of a model that offers smaller ones; 0: its own. prompt_name: of
        the model's prompts, to go before each text.

        Raises PromptTooLong for an input longer than the model's context, InvalidRequest for a
        model without embeddings, UnsupportedParameter for dimensions or a prompt it does not have.
        """
        found = await self.embed_counted(
            model_id, inputs, timeout_s, dimensions=dimensions, prompt_name=prompt_name
        )
        return found.vectors

    async def embed_counted(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        dimensions: int = 0,
        prompt_name: str = "",
        takes_tokens: bool = False,
    ) -> Embedded:
        """Like `embed`, with the number of input tokens.

        takes_tokens: a late-interaction model may answer, with a vector per token.
        """
        request = encode_embed(model_id, inputs, dimensions, prompt_name, takes_tokens=takes_tokens)
        return decode_embedded(await self._call(_EMBED, model_id, request, timeout_s))

    async def embed_tokens(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        prompt_name: str = "document",
    ) -> list[list[list[float]]]:
        """Return a late-interaction model's vectors of each input, one per token that is compared.

        prompt_name: how texts are read, query or document. Raises as `embed`, and InvalidRequest
        for a model with one vector per input.
        """
        found = await self.embed_counted(
            model_id, inputs, timeout_s, prompt_name=prompt_name, takes_tokens=True
        )
        if found.vectors:
            raise InvalidRequest(f"{model_id} has one vector per input: call embed", param="model")
        return found.tokens

    async def classify(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        takes_tokens: bool = False,
        candidates: Sequence[PairInput] = (),
    ) -> Classified:
        """Return a classifier's score per label of each input, given as text or token ids.

        takes_tokens: a classifier of tokens may answer, with scores of each token. candidates:
        texts or images that a model such as CLIP matches each input with, in place of labels.
        """
        request = encode_classify(
            model_id, inputs, takes_tokens=takes_tokens, candidates=candidates
        )
        return decode_classified(await self._call(_CLASSIFY, model_id, request, timeout_s))

    async def entities(
        self,
        model_id: str,
        texts: Sequence[str],
        timeout_s: float | None = None,
        *,
        aggregation: Aggregation = "simple",
        ignored: Collection[str] = ("O",),
    ) -> list[list[Entity]]:
        """Return what a classifier of tokens finds in each text, as `entities_of` groups it.

        Raises InvalidRequest for a model that gives no labels to tokens.
        """
        found = await self.classify(model_id, texts, timeout_s, takes_tokens=True)
        if found.scores:
            says = f"{model_id} gives whole inputs a label: call classify"
            raise InvalidRequest(says, param="model")
        return [
            entities_of(tokens, text, found.labels, aggregation, ignored)
            for tokens, text in zip(found.tokens, texts, strict=True)
        ]

    async def score_pairs(
        self,
        model_id: str,
        first: Sequence[PairInput],
        second: Sequence[PairInput],
        timeout_s: float | None = None,
    ) -> PairScores:
        """Return how well each second text or image goes with its first one: by a reranker, by the
        cosine of an embedding model's vectors, or by the MaxSim of a late-interaction model's.

        first: one text for all, or as many as `second`.
        """
        request = encode_pairs(model_id, first, second)
        reply = await self._call(_SCORE_PAIRS, model_id, request, timeout_s)
        return decode_pair_scores(reply)

    async def rerank(
        self,
        model_id: str,
        query: PairInput,
        documents: Sequence[PairInput],
        top_n: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Ranked]:
        """Return the documents that go best with a query, best first; all without `top_n`."""
        found = await self.score_pairs(model_id, [query], documents, timeout_s)
        return ranked(found.scores, top_n)
