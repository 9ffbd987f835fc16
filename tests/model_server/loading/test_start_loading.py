"""A model that starts again on this machine: nothing is traced or read, and it answers the same."""

from __future__ import annotations

import queue
from dataclasses import replace
from operator import le
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.running.ops import Runner
from model_server.engine.step_times import StepTimes
from model_server.loading import lm_loading, start_loading
from model_server.loading.lm_loading import _measured
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.start_loading import KeptTemplates
from model_server.programs import start_programs
from model_server.text.chat_template import ChatTemplate, renderer
from model_server.text.rendering.frames import WrittenForms
from sax.chat import Message
from sax.errors import CheckpointError
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_loader import answer, spec

PROMPTS = ((5, 6, 7), tuple(range(100)))


def started(
    config: ModelServerConfig, checkpoint: Path | None = None
) -> tuple[list[list[int]], StepTimes | None]:
    """What a model server of its own answers, and what it takes its steps to take."""
    loader = make_loader(config)
    of_folder = {"model_path": "llama", "checkpoint": str(checkpoint), "overrides": {}}
    loaded = loader(spec() if checkpoint is None else spec(**of_folder), quiet)
    assert isinstance(loaded, Loaded)
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    engine = Engine(loaded.runner, lambda batch: [updates.put(update) for update in batch] and None)
    try:
        answers = [answer(engine, updates, prompt) for prompt in PROMPTS]
        return answers, loaded.step_times
    finally:
        engine.close()
        loader.watch.stop()


@pytest.mark.usefixtures("compiled_anew")
def test_a_start_with_the_programs_of_the_last_one_traces_nothing_and_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = ModelServerConfig(slots=2, page_size=16)
    kept = replace(plain, jax_cache_dir=str(tmp_path))
    first = started(kept)
    (file,) = (tmp_path / "starts").iterdir()
    with monkeypatch.context() as untraced:
        untraced.setattr(start_programs, "digest_of_text", lambda _: pytest.fail("it was traced"))
        again, times = started(kept)
    assert again == first[0]
    assert times is not None
    assert first[1] is not None
    assert all(map(le, times.seconds, first[1].seconds)), "the least of both"
    file.write_bytes(file.read_bytes()[:-5])
    assert started(kept)[0] == first[0]
    assert "is damaged" in caplog.text
    file.unlink()
    assert started(replace(kept, keep_programs=False))[0] == first[0]
    assert not file.exists()
    monkeypatch.setattr(start_loading, "sources_changed", lambda: True)
    assert started(kept)[0] == first[0]
    assert not file.exists(), "programs of older sources were kept as those of newer ones"


@pytest.mark.usefixtures("compiled_anew")
def test_the_weights_of_the_last_start_are_mapped_unless_they_or_the_checkpoint_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ModelServerConfig(slots=2, page_size=16, jax_cache_dir=str(tmp_path))
    folder = write_tiny(tmp_path / "tiny", max_position_embeddings=256)

    def answers() -> list[list[int]]:
        # XLA:CPU cannot serialise some of what a process has loaded before: no program is kept.
        for programs in (tmp_path / "starts").glob("*.programs"):
            programs.unlink()
        return started(kept, folder)[0]

    first = answers()
    (weights,) = (tmp_path / "starts").glob("*.weights")
    with monkeypatch.context() as unread:
        unread.setattr(lm_loading, "read_weights", lambda *_: pytest.fail("they were read"))
        assert answers() == first
    body = weights.read_bytes()
    weights.write_bytes(body[: len(body) // 2])
    assert answers() == first
    assert f"{weights} is damaged" in caplog.text
    file = folder / "model.safetensors"
    save_file({name: np.flip(each, 0).copy() for name, each in load_file(file).items()}, file)
    assert answers() != first, "the weights of before were taken"


def test_a_template_is_tried_out_once_for_all_starts_unless_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renderer(), "tried", KeptTemplates(tmp_path / "starts"))
    source = "{% for m in messages if m.role != 'system' %}<{{ m.content }}>{% endfor %}"

    def written() -> WrittenForms:
        template = ChatTemplate(source)
        template.try_out()
        assert template.render([Message("user", "hello")]) == "<hello>"
        return template.written()

    first = written()
    assert not first.system
    with monkeypatch.context() as untried:
        untried.setattr(renderer(), "try_out", lambda *_: pytest.fail("it was tried out"))
        assert written() == first
    (file,) = (tmp_path / "starts").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert written() == first
    assert f"{file} is damaged" in caplog.text
    assert file.read_bytes() == whole
    for _ in range(2):
        with pytest.raises(CheckpointError):
            ChatTemplate("{% if %}")
    assert [*(tmp_path / "starts").iterdir()] == [file]


class InstantRunner:
    """Steps that take no time; notes which were run."""

    warmups = 3

    def __init__(self) -> None:
        self.ran: list[int] = []

    def warm(self, index: int) -> None:
        self.ran.append(index)


@pytest.mark.parametrize(
    ("before", "ran", "which"),
    [
        ((), [0, 0, 1, 1, 2, 2], "each, twice"),
        ((1e-9, 2e-9, 5.0), [0, 1], "the short ones, which tell that the machine was idle before"),
        ((0.02, 5.0, 6.0), [0, 1, 2], "each, as the machine was busy before"),
        ((5.0, 1e-9), [0, 0, 1, 1, 2, 2], "each: those before are of other steps"),
    ],
)
def test_a_start_measures_what_the_ones_before_leave_open(
    before: tuple[float, ...], ran: list[int], which: str
) -> None:
    runner = InstantRunner()
    seconds = _measured(cast("Runner", runner), 3, before)
    assert runner.ran == ran, which
    assert len(seconds) == 3
    if len(before) == 3:
        assert all(map(le, seconds, before)), "the least of both"
