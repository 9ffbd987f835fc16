"""Handler for language model requests, shared by LMService and TokenService: answers
(`generating`), scores, tokens and Saxml's queries. Runs on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from model_server.engine.engine import EngineRequest
from model_server.engine.types import Sampling
from model_server.models.saxml_replies import SaxmlReplies
from model_server.serving.admission import check_method
from model_server.serving.chats.placeholders import with_images
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat, rendered
from model_server.serving.engine_request import of_caller, salt_of
from model_server.serving.generating import Generating, characters
from model_server.serving.lm_servable import LmServable
from model_server.serving.query import begin_of, prompt_of, scored_ids, scored_prompt
from model_server.serving.query_cost import CostMeter
from model_server.serving.request_checks import check_ids
from model_server.text.encoding import to_encode
from model_server.text.text_decoder import whole_text
from model_server.text.vocabulary_fit import check_rows
from sax.auth.acl import caller
from sax.errors import InvalidRequest, SaxError
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    GenerateRequest,
    Message,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
)

GENERATE, GENERATE_STREAM, SCORE = "lm.generate", "lm.generate_stream", "lm.score"
MM_GENERATE, MM_SCORE = "mm.generate", "mm.score"


class SuffixScores(NamedTuple):
    """Log-probabilities of suffixes, and the tokens of all of them with their prefixes."""

    logprobs: list[float]
    tokens: int


class Handler(Generating):
    """Adds the calls that have no stream of chunks."""

    async def score(
        self,
        model_id: str,
        prefix: str | tuple[Message, ...],
        suffixes: Sequence[str],
        account: str = "",
        timeout_s: float | None = None,
        method: str = SCORE,
    ) -> SuffixScores:
        """Return the log-probability of each suffix after the prefix, read as Generate reads it, or
        after a chat as its answer; of none, none.

        Raises DeadlineExceeded after timeout_s.
        """
        if not suffixes:  # no scores, but for those only who might have them
            self._language_model(model_id, method)
            check_method(caller(), model_id, method, self._servables.acls(model_id))
        waiting = [
            self._score(model_id, prefix, suffix, account, timeout_s, method) for suffix in suffixes
        ]
        tasks = [asyncio.ensure_future(one) for one in waiting]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return SuffixScores([score for score, _ in found], sum(tokens for _, tokens in found))

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[list[int], int]:
        """Return the ids of a prompt as `start` would compute them, and the model's context."""
        loaded = self._called_model(model_id).loaded
        reply = ReplyOptions(add_special_tokens=add_special_tokens)
        request = GenerateRequest(model_id=model_id, prompt=prompt, reply=reply)
        asked = await rendered(prompt, loaded, chat, self._owner(request, loaded))
        ids = await self._encoded(asked, loaded, request)
        return ids, loaded.runner.limits.max_context

    async def token_texts(self, model_id: str, ids: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, control tokens included."""
        text_of = self._called_model(model_id).loaded.tokenizer.token_text
        return await self._encoding.run(len(ids), lambda: [text_of(token_id) for token_id in ids])

    async def detokenize(self, model_id: str, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens written out. Raises InvalidRequest for an
        id outside the vocabulary."""
        tokenizer = self._called_model(model_id).loaded.tokenizer
        check_ids("tokens", ids, tokenizer.vocab_size)
        decoder = tokenizer.decoder(control=True)
        return await self._encoding.run(len(ids), lambda: whole_text(decoder, ids))

    def defaults(self, model_id: str) -> tuple[SamplingParams, int]:
        """Return default sampling parameters and samples of a Saxml request. Raises NotLoaded."""
        loaded = self._generating(model_id).loaded
        return loaded.defaults, loaded.samples

    def serves(self, model_id: str, method: str) -> bool:
        """Return True if this is a language model with this method. Raises NotLoaded."""
        servable = self._servables.get(model_id)
        return isinstance(servable, LmServable) and method in servable.methods

    def cost_meter(self, model_id: str, method: str) -> CostMeter:
        """Begin to measure what a request costs. Raises NotLoaded."""
        return self._language_model(model_id, method).cost_meter()

    def query(self, model_id: str, text: str) -> Prompt:
        """Return the prompt for a Saxml query. Raises NotLoaded, InvalidRequest."""
        return prompt_of(text, self._generating(model_id).loaded)

    async def query_begin(self, model_id: str, text: str, prompt: Prompt) -> str:
        """Return what the answers to a Saxml query begin with. Raises NotLoaded, InvalidRequest."""
        loaded = self._generating(model_id).loaded
        if not loaded.replies.begins_with_query:
            return ""
        ids = await self._encoded(await rendered(prompt, loaded), loaded)
        return begin_of(text, ids, loaded)

    def replies(self, model_id: str) -> SaxmlReplies:
        """Return the form of Saxml's answers. Raises NotLoaded."""
        return self._generating(model_id).loaded.replies

    def answers_ids(self, model_id: str) -> bool:
        """True if a Saxml answer is a list of token ids. Raises NotLoaded."""
        return self._generating(model_id).loaded.tokenized_output

    def _called_model(self, model_id: str) -> LmServable:
        """Return a model that the caller may use. Raises NotLoaded, PermissionDenied."""
        servable = self._generating(model_id)
        check_method(caller(), model_id, GENERATE, self._servables.acls(model_id))
        return servable

    def _generating(self, model_id: str) -> LmServable:
        """Return a model that generates: whatever does also streams, which Generate may be without.

        Raises as `_language_model`.
        """
        return self._language_model(model_id, GENERATE_STREAM)

    async def _score(
        self,
        model_id: str,
        prefix: str | tuple[Message, ...],
        suffix: str,
        account: str,
        timeout_s: float | None,
        method: str,
    ) -> tuple[float, int]:
        """Return the score, and the tokens that it took."""
        outcome: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        running = self._begin(model_id, method, lambda chunk: _settle(outcome, chunk))
        loaded = running.servable.loaded
        running.limit(timeout_s)
        try:
            prompt = scored_prompt(prefix, loaded) if isinstance(prefix, str) else prefix
            sharing = loaded.runner.limits.prefix_cache
            owner = salt_of(caller(), account, "", sharing)
            asked = await rendered(prompt, loaded, owner=owner)
            running.holds = asked.images if isinstance(asked, RenderedChat) else ()
            ids, target = await self._encoding.run(
                to_encode(characters(asked) + len(suffix), loaded.tokenizer),
                lambda: scored_ids(asked, suffix, loaded),
            )
            check_scorable(ids, target)
            check_rows((*ids, *target), loaded.vocab, loaded.tokenizer)
            asked_for = score_engine_request(ids, target)
            if running.holds:
                asked_for = await self._encoding.run(
                    len(ids), partial(with_images, asked_for, running.holds, loaded)
                )
            running.submit(of_caller(asked_for, caller(), account, sharing))
        except BaseException as exc:
            self._refuse(running, exc)
            raise
        try:
            score = loaded.replies.scored(await outcome, len(target))
            return score, len(ids) + len(target)
        finally:
            running.cancel()


def _settle(outcome: asyncio.Future[float], chunk: TokenChunk | SaxError) -> None:
    if outcome.done():
        return
    if isinstance(chunk, SaxError):
        outcome.set_exception(chunk)
    else:
        outcome.set_result(chunk.score)


def check_scorable(prefix: Sequence[int], suffix: Sequence[int]) -> None:
    """Raise InvalidRequest for a prefix or a suffix without tokens."""
    if not prefix:
        raise InvalidRequest(
            "prefix is empty and this model has no start token: send a prefix of one token or more",
            param="prefix",
        )
    if not suffix:
        raise InvalidRequest("suffix holds a text without tokens: leave it out", param="suffix")


def score_engine_request(prefix: Sequence[int], suffix: Sequence[int]) -> EngineRequest:
    return EngineRequest(
        prompt=(*prefix, *suffix),
        sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0),
        max_tokens=0,
        stop_ids=frozenset(),
        score_from=len(prefix),
    )
