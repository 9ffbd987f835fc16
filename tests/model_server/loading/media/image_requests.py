"""Requests with the images of a golden case, and what an engine answers to them."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.media import MediaSpan
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Runner
from model_server.engine.types import Sampling
from model_server.loading.images.prepared import PreparedImage
from model_server.models.media.media_recipe import MediaRecipe
from model_server.serving.chats.placeholders import places_of, runs_of, triples_of
from tests.model_server.models.media.media_cases import golden_media_of, load_media, parts_of
from tests.model_server.models.media.media_runs import WholePrompts, places_in, seen

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
TOKENS = 5  # of an answer


class Answered(NamedTuple):
    tokens: list[int]
    logprobs: list[float]  # of the answer's tokens
    scores: list[float]  # of the prompt's last tokens


def request_of(
    name: str, media: Sequence[MediaRecipe], order: Sequence[int] | None = None, **fields: Any
) -> EngineRequest:
    """The golden prompt; order: of its images, None: as they are."""
    prompt = golden_media_of(name)["prompt"]
    tokens = frozenset[int]().union(*(recipe.tokens for recipe in media))
    seen = parts_of(media, name, order)
    places = places_of(prompt.tolist(), tokens, seen)
    made = [span_of(part, runs_of(each)) for part, each in zip(seen, places, strict=True)]
    spans = sorted(made, key=lambda span: span.start)
    return EngineRequest(
        prompt=tuple(map(int, prompt)),
        sampling=GREEDY,
        max_tokens=TOKENS,
        stop_ids=frozenset(),
        score_from=max(span.end for span in spans)
        + 1,  # behind the last image and the token that ends it
        media=tuple(spans),
        **_positions(media, prompt, seen),
        **fields,
    )


def _positions(
    media: Sequence[MediaRecipe], prompt: np.ndarray, images: Sequence[PreparedImage]
) -> dict[str, Any]:
    """Positions of the tokens, if they are triples."""
    if not any(recipe.triples for recipe in media):
        return {}
    tokens = frozenset[int]().union(*(recipe.tokens for recipe in media))
    places = places_of(list(prompt), tokens, images)
    made, following = triples_of(len(prompt), places, images)
    return {"positions": made.astype("<i4").tobytes(), "shift": following - len(prompt)}


def span_of(made: PreparedImage, runs: tuple[tuple[int, int], ...]) -> MediaSpan:
    return MediaSpan(made.digest, runs, made.count, made.pieces, made.places, made.encoder)


def answered(runner: Runner, *asked: EngineRequest) -> list[Answered]:
    """Answers of an engine of its own to requests that run together, in their order."""
    updates: queue.Queue[SequenceUpdate] = queue.Queue()

    def deliver(batch: list[SequenceUpdate]) -> None:
        for update in batch:
            updates.put(update)

    engine = Engine(runner, deliver)
    try:
        made = {engine.submit(each): Answered([], [], []) for each in asked}
        left = len(made)
        while left:
            update = updates.get(timeout=120)
            if update.error is not None:
                raise update.error
            found = made[update.sequence]
            found.scores.extend(update.result.target_logprobs)
            if update.result.token is not None:
                found.tokens.append(update.result.token)
                found.logprobs.append(update.result.logprob or 0.0)
            left -= update.finish is not None
    finally:
        engine.close()
    return list(made.values())


class WholeAnswer(NamedTuple):
    media: Sequence[MediaRecipe]
    encoder: Any
    answer: Answered


def whole_of(name: str) -> WholeAnswer:
    """The whole model's answer: scores of the reference's logits, then the likeliest tokens."""
    decoder, encoder, whole = load_media(name)
    media = whole.media
    images = parts_of(media, name)
    golden = golden_media_of(name)
    prompt, first = (
        golden["prompt"],
        int(np.flatnonzero(places_in(media, golden["prompt"]))[-1]) + 2,
    )
    logs = np.asarray(jax.nn.log_softmax(golden["logits"]))
    scores = [float(logs[at - 1, prompt[at]]) for at in range(first, len(prompt))]
    tokens, logprobs = list[int](), list[float]()
    rows = seen(encoder, media, images)
    model = WholePrompts(decoder, media, rows, images, len(prompt) + TOKENS)
    for _ in range(TOKENS):
        so_far = np.concatenate([prompt, np.asarray(tokens, np.int64)])
        last = np.asarray(jax.nn.log_softmax(model.logits(so_far)[-1]))
        tokens.append(int(last.argmax()))
        logprobs.append(float(last.max()))
    return WholeAnswer(media, encoder, Answered(tokens, logprobs, scores))


def check(found: Answered, wanted: Answered) -> None:
    assert found.tokens == wanted.tokens
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=1e-4, rtol=1e-4)
