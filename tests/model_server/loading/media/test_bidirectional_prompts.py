"""The real loader on PaliGemma, whose tokens of a prompt see each other."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.kernels.cpu import native
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.saving import ExportedMethod, Saver
from model_server.serving.chats.rendered_chat import rendered
from model_server.serving.engine_request import prompt_ids
from sax.chat import Message
from sax.errors import InvalidRequest, PromptTooLong, UnsupportedParameter
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.media.image_folder import folder_of
from tests.model_server.loading.media.image_requests import GREEDY, request_of
from tests.model_server.models.media.media_cases import golden_media_of, images_of
from tests.model_server.seen_folders import png
from tests.tools.golden.media.gemma3 import IMAGE

CONFIG = ModelServerConfig(slots=3, page_size=4, prefix_cache="tenant")
F32 = {"DTYPE": '"float32"', "MAX_CONTEXT": "64"}
CASES = ["paligemma", pytest.param("paligemma_gemma2", marks=pytest.mark.nightly)]
TOPS = 5
Answer = tuple[list[int], list[float], list[dict[int, float]]]  # its tokens, and of each the tops


class BatchAsker:
    """An engine over a loaded model, for one batch of requests after the other."""

    def __init__(self, loaded: Loaded) -> None:
        self._updates: queue.Queue[SequenceUpdate] = queue.Queue()
        self.engine = Engine(loaded.runner, self._keep)

    def _keep(self, batch: list[SequenceUpdate]) -> None:
        for update in batch:
            self._updates.put(update)

    def updates(self, *asked: EngineRequest) -> list[list[SequenceUpdate]]:
        made: dict[int, list[SequenceUpdate]] = {self.engine.submit(each): [] for each in asked}
        left = len(made)
        while left:
            update = self._updates.get(timeout=120)
            assert update.error is None
            made[update.sequence].append(update)
            left -= update.finish is not None
        return list(made.values())

    def answers(self, *asked: EngineRequest) -> list[Answer]:
        return [_answer(updates) for updates in self.updates(*asked)]


def _answer(updates: list[SequenceUpdate]) -> Answer:
    tokens, logprobs, tops = list[int](), list[float](), list[dict[int, float]]()
    for result in (update.result for update in updates):
        if result.token is not None:
            tokens.append(result.token)
            logprobs.append(result.logprob)
            tops.append(dict(result.top))
    return tokens, logprobs, tops


@contextmanager
def asker_of(folder: Path, case: str, **overrides: str) -> Iterator[tuple[BatchAsker, Loaded]]:
    loaded = load(folder, case, **overrides)
    asker = BatchAsker(loaded)
    try:
        yield asker, loaded
    finally:
        asker.engine.close()


def load(folder: Path, case: str = "paligemma", **overrides: str) -> Loaded:
    checkpoint = folder_of(folder, {IMAGE: "<image>"}, case)
    made = make_loader(CONFIG)(spec_of(checkpoint, **F32 | overrides), quiet)
    assert isinstance(made, Loaded)
    return made


def asked_of(case: str, loaded: Loaded) -> EngineRequest:
    """The golden prompt, to be answered as long as the reference does."""
    assert loaded.images is not None
    count, tops = len(golden_media_of(case)["answer"]), replace(GREEDY, logprobs=TOPS)
    asked = request_of(case, loaded.images.recipes)
    return replace(asked, score_from=None, max_tokens=count, sampling=tops)


def reference_of(case: str) -> tuple[list[int], np.ndarray]:
    """The reference's answer, and the log-probabilities that it is chosen from: f32[n, V]."""
    golden = golden_media_of(case)
    logits = golden["logits"][len(golden["prompt"]) - 1 : -1].astype(np.float64)
    return golden["answer"].tolist(), logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def check(found: Answer, case: str, begun: int = 0) -> None:
    """Compare with the reference's answer from a token on."""
    tokens, logs = reference_of(case)
    assert found[0] == tokens[begun:]
    for tops, wanted in zip(found[2], logs[begun:], strict=True):
        assert len(tops) == TOPS
        told = [wanted[token] for token in tops]
        np.testing.assert_allclose([*tops.values()], told, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_references_alone_in_batches_and_after_a_replay(
    case: str, tmp_path: Path
) -> None:
    """To the bit the same whatever is computed with them, and from any point of the answer on."""
    with asker_of(tmp_path, case) as (asker, loaded):
        asked = asked_of(case, loaded)
        (alone,) = asker.answers(asked)
        check(alone, case)
        text = replace(asked, prompt=tuple(range(40, 60)), media=(), max_tokens=20)
        cut = replace(asked, prompt=asked.prompt[:-1], max_tokens=20)
        apart = asker.answers(text) + asker.answers(cut)
        assert asker.engine.stats().prefix_hits == 0, "each is another prompt"
        again, *others = asker.answers(asked, text, cut)
        assert asker.engine.stats().prefix_hits > 0
        check(again, case)
        begun = [replace(asked, answer=tuple(alone[0][:n]), salt=str(n)) for n in (1, 6, 11)]
        replayed = asker.answers(*begun)
        for found, each in zip(replayed, begun, strict=True):
            check(found, case, len(each.answer))
        if native.available():
            assert [again, *others] == [alone, *apart]
            assert [each[1] for each in replayed] == [alone[1][n:] for n in (1, 6, 11)]


def test_preempted_answers_are_the_references(tmp_path: Path) -> None:
    """Two prompts have room at once, and one of their answers."""
    page = 4 * 2 * 2 * 12 * 4  # bytes: of tokens, layers, keys and values of one head
    with asker_of(tmp_path, "paligemma", KV_CACHE_BYTES=str(25 * page)) as (asker, loaded):
        asked = asked_of("paligemma", loaded)
        found = asker.answers(*(replace(asked, salt=str(n)) for n in range(3)))
        assert asker.engine.stats().preemptions > 0
        for each in found:
            check(each, "paligemma")


def test_a_text_behind_a_prompt_is_scored_as_by_the_reference(tmp_path: Path) -> None:
    tokens, logs = reference_of("paligemma")
    with asker_of(tmp_path, "paligemma") as (asker, loaded):
        asked = asked_of("paligemma", loaded)
        whole = replace(asked, prompt=(*asked.prompt, *tokens), sampling=GREEDY)
        first = len(asked.prompt)
        ((update,),) = asker.updates(replace(whole, max_tokens=0, score_from=first))
        wanted = [each[token] for each, token in zip(logs, tokens, strict=True)]
        np.testing.assert_allclose(update.result.target_logprobs, wanted, atol=1e-4, rtol=1e-4)
        with pytest.raises(InvalidRequest, match="no log-probabilities"):
            asker.engine.submit(replace(whole, score_from=first))


async def test_a_question_is_written_as_the_references_processor_writes_it(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    image, words = png(images_of("paligemma")[0]), "caption <image> en"
    try:
        for content, count in (((words, image), 16), ((image, words), 16), (words, 0)):
            chat = await rendered((Message("user", content),), loaded)
            ids = prompt_ids(chat, loaded)
            text = loaded.tokenizer.encode(f"{words}\n", add_bos=False)
            assert ids == [*[IMAGE] * count, 1, *text]
            assert IMAGE not in text
        for wrong in (Message("system", "x"), Message("assistant", "x")):
            with pytest.raises(InvalidRequest, match="it takes one message, of the role user"):
                await rendered((wrong,), loaded)
    finally:
        loaded.runner.close()


def test_what_would_read_prompts_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="TASKS has embed.*publish it without TASKS"):
        load(tmp_path, TASKS='["generate", "embed"]')
    spec, saver = spec_of(tmp_path, **F32), Saver([str(tmp_path)])
    with pytest.raises(UnsupportedParameter, match="not exported: the tokens of its prompts see"):
        saver.export(spec, str(tmp_path / "exported"), [ExportedMethod("lm.score", "score")])


def test_what_a_step_cannot_hold_is_refused(tmp_path: Path) -> None:
    loaded = load(tmp_path, MAX_CONTEXT="2048")
    engine = Engine(loaded.runner, lambda _: None)
    with pytest.raises(PromptTooLong, match="has 1025 tokens.*at most 1024 tokens here: shorten"):
        engine.submit(replace(asked_of("paligemma", loaded), prompt=(5,) * 1025, media=()))
    engine.close()
