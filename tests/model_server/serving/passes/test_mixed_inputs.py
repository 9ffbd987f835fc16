"""Models that see, from texts and images to vectors and scores, against transformers'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader
from model_server.services.token_service import TokenService
from model_server.serving.admission import Admission
from model_server.serving.passes.embeddings import Embeddings
from model_server.serving.servables import Servables
from sax.chat import Image, Message, Video
from sax.errors import InvalidRequest, PromptTooLong, SaxError, UnsupportedParameter
from sax.passes import ChatInput, EmbedInput, PairInput
from sax.proto import tokens_pb2
from sax.wire.embed import (
    decode_classified,
    decode_embedded,
    decode_pair_scores,
    encode_classify,
    encode_embed,
    encode_pairs,
)
from sax.wire.request_bounds import check_embed
from tests.model_server.loading.loads import spec_of
from tests.model_server.seen_folders import golden_seen, images_of, seen_folder
from tests.tools.golden.seen import INPUTS, NO, PAIRS, QUERIES, TEXTS, YES

MODEL = "/sax/test/m"
NEAR = {"rtol": 0, "atol": 1e-4}


@dataclass
class Seeing:
    """A served model, asked through messages of the wire."""

    loader: ModelLoader
    calls: TokenService

    async def vectors(self, *inputs: EmbedInput, **how: Any) -> list[Any]:
        reply = await self.calls.Embed(encode_embed(MODEL, inputs, **how), None)
        found = decode_embedded(tokens_pb2.EmbedResponse.FromString(reply.SerializeToString()))
        return found.vectors or found.tokens

    async def scores(self, first: Sequence[PairInput], second: Sequence[PairInput]) -> list[float]:
        reply = await self.calls.ScorePairs(encode_pairs(MODEL, first, second), None)
        return decode_pair_scores(reply).scores

    async def shares(
        self, inputs: Sequence[EmbedInput], candidates: Sequence[PairInput]
    ) -> tuple[tuple[str, ...], list[list[float]]]:
        asked = encode_classify(MODEL, inputs, candidates=candidates)
        found = decode_classified(await self.calls.Classify(asked, None))
        return found.labels, found.scores


@asynccontextmanager
async def serving(folder: Path, **overrides: str) -> AsyncIterator[Seeing]:
    """Serve a folder; what is compiled after the load is an error."""
    loader = make_loader(ModelServerConfig(strict_compile=True))
    servables = Servables(loader, drain_s=0.1)
    try:
        await servables.load(spec_of(folder, **{"DTYPE": '"float32"'} | overrides))
        embeddings = Embeddings(servables, Admission())
        yield Seeing(loader, TokenService(None, embeddings))  # pyright: ignore[reportArgumentType]
        assert loader.compiles_while_serving() == 0
    finally:
        await servables.close()
        loader.watch.stop()


@pytest.mark.parametrize(
    "case",
    [
        *("clip", "siglip", "siglip2_naflex"),
        *(pytest.param(case, marks=pytest.mark.nightly) for case in ("clip_first", "siglip2")),
    ],
)
async def test_texts_and_images_in_one_space_are_transformers(tmp_path: Path, case: str) -> None:
    golden, images = golden_seen(case), images_of(case)
    async with serving(seen_folder(tmp_path, case)) as model:
        mixed: list[EmbedInput] = [TEXTS[0], images[0], *TEXTS[1:], *images[1:], TEXTS[0]]
        found = np.asarray(await model.vectors(*mixed))
        np.testing.assert_allclose(found[[0, 2, 3]], golden["texts"], **NEAR)
        together = found[[1, *range(4, 3 + len(images))]]
        np.testing.assert_allclose(together, golden["images"], **NEAR)
        np.testing.assert_allclose(found[-1], found[0], rtol=0, atol=1e-6)
        for image, own, wanted in zip(images, together, golden["images"], strict=True):
            [alone] = await model.vectors(image)
            np.testing.assert_allclose(alone, wanted, **NEAR)
            if case == "siglip2_naflex":  # each image is a batch by itself
                np.testing.assert_array_equal(alone, own)

        logits = golden["logits"]
        of_images, of_texts = (
            1 / (1 + np.exp(-each)) if case.startswith("siglip") else _softmax(each)
            for each in (logits, logits.T)
        )
        labels, shares = await model.shares(images, TEXTS)
        assert labels == tuple(TEXTS)
        np.testing.assert_allclose(shares, of_images, **NEAR)
        labels, shares = await model.shares(TEXTS, images)
        assert labels == tuple(f"candidates[{n}]" for n in range(len(images)))
        np.testing.assert_allclose(shares, of_texts, **NEAR)

        cosines = golden["texts"] @ golden["images"].T
        scores = await model.scores([TEXTS[1]], images)
        np.testing.assert_allclose(scores, cosines[1], **NEAR)
        scores = await model.scores([images[0]], TEXTS)
        np.testing.assert_allclose(scores, cosines[:, 0], **NEAR)
        if case == "clip":
            await _refuses_what_has_no_vector(model, images[0])


async def _refuses_what_has_no_vector(model: Seeing, image: Image) -> None:
    turn = Message("user", "a")
    cases: list[tuple[EmbedInput, type[SaxError], str]] = [
        (ChatInput.of(image, "a"), InvalidRequest, "2 texts and images: this model has a vector"),
        (ChatInput((turn, turn)), InvalidRequest, "an input of 2 messages"),
        (Image(b"no image", "photo"), InvalidRequest, "photo: the image"),
        (Video(b"a film", "film"), UnsupportedParameter, "film is a video"),
        ("word " * 77, PromptTooLong, "maximum context length is 77"),
        ("", InvalidRequest, "is empty"),
        ([521], InvalidRequest, "521"),
    ]
    for given, kind, says in cases:
        with pytest.raises(kind, match=says):
            await model.vectors("fine", given)
    with pytest.raises(InvalidRequest, match="send candidates to choose from"):
        await model.shares([image], [])
    for given in (image, "a text"):
        with pytest.raises(UnsupportedParameter, match="no prompt of this model: it has none"):
            await model.vectors(given, prompt_name="query")
    with pytest.raises(InvalidRequest, match="at most 16"):
        check_embed(encode_embed(MODEL, [image] * 17))


@pytest.mark.parametrize(
    ("case", "name", "value"),
    [
        ("clip", "TASKS", '["classify"]'),
        ("clip", "POOLING", '"mean"'),
        ("clip", "CLASSIFY_ACTIVATION", '"none"'),
        ("siglip", "MAX_CONTEXT", "16"),
    ],
)
async def test_an_override_that_would_change_nothing_is_refused(
    tmp_path: Path, case: str, name: str, value: str
) -> None:
    with pytest.raises(InvalidRequest, match=name) as refused:
        async with serving(seen_folder(tmp_path, case), **{name: value}):
            pass
    assert refused.value.param == f"overrides.{name}"


def _softmax(logits: np.ndarray) -> np.ndarray:
    made = np.exp(logits - logits.max(-1, keepdims=True))
    return made / made.sum(-1, keepdims=True)


def input_of(case: str, parts: Sequence[str | int]) -> PairInput:
    """Texts, and images of the case by their numbers."""
    images = images_of(case)
    return ChatInput.of(*(images[part] if isinstance(part, int) else part for part in parts))


async def test_inputs_of_texts_and_images_have_the_vectors_of_the_models_card(
    tmp_path: Path,
) -> None:
    """By Qwen3-VL-Embedding's: its template around an instruction and the input, the last token."""
    case = "qwen3_vl_embedding"
    golden, inputs = golden_seen(case), [input_of(case, parts) for parts in INPUTS]
    folder = seen_folder(tmp_path, case)
    async with serving(folder, TASKS='["embed"]', MAX_CONTEXT="256") as model:
        found = await model.vectors(*inputs, *reversed(inputs))
        np.testing.assert_allclose(found, [*golden["vectors"], *golden["vectors"][::-1]], **NEAR)
        # A text is an input as it is; a chat may have a system message of its own.
        told = Message("system", "Represent the user's input.")
        [asked] = INPUTS[0]
        chat = ChatInput((told, Message("user", str(asked)), Message("assistant", "")))
        for alone in (str(asked), chat):
            [vector] = await model.vectors(alone)
            np.testing.assert_allclose(vector, golden["vectors"][0], **NEAR)
        scores = await model.scores([inputs[0]], inputs[1:])
        wanted = golden["vectors"][1:] @ golden["vectors"][0]
        np.testing.assert_allclose(scores, wanted, **NEAR)


async def test_a_reranker_that_sees_scores_pairs_as_its_card_says(tmp_path: Path) -> None:
    """By Qwen3-VL-Reranker's: how much likelier yes is than no."""
    case = "qwen3_vl_reranker"
    folder, tokens = seen_folder(tmp_path, case), f'["{YES}", "{NO}"]'
    pairs = [[input_of(case, parts) for parts in pair] for pair in PAIRS]
    async with serving(folder, RERANK_TOKENS=tokens, MAX_CONTEXT="512") as model:
        firsts, seconds = zip(*pairs, strict=True)
        together = await model.scores(firsts, seconds)
        np.testing.assert_allclose(together, golden_seen(case)["scores"], **NEAR)
        [alone] = await model.scores([firsts[0]], [seconds[0]])
        assert alone == pytest.approx(together[0], abs=1e-6)
        one_query = await model.scores([firsts[0]], [seconds[2], seconds[0]])
        assert one_query[1] == pytest.approx(together[0], abs=1e-6)


@pytest.mark.parametrize("case", ["colqwen2", "colpali"])
async def test_a_late_interaction_model_compares_texts_with_images(
    tmp_path: Path, case: str
) -> None:
    golden, images = golden_seen(case), images_of(case)
    parts = np.split(golden["vectors"], np.cumsum(golden["lengths"])[:-1])
    async with serving(seen_folder(tmp_path, case), MAX_CONTEXT="256") as model:
        how = {"takes_tokens": True}
        found = await model.vectors(*QUERIES, prompt_name="query", **how)
        found += await model.vectors(*images, **how)
        for vectors, wanted in zip(found, parts, strict=True):
            np.testing.assert_allclose(vectors, wanted, **NEAR)
        for query, wanted in zip(QUERIES, golden["scores"], strict=True):
            np.testing.assert_allclose(await model.scores([query], images), wanted, atol=1e-3)
