"""A model that starts again on this machine: nothing is traced, and it answers the same."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loader import make_loader
from model_server.programs import start_programs
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_loader import answer, spec

PROMPTS = ((5, 6, 7), tuple(range(100)))


def answers(config: ModelServerConfig) -> list[list[int]]:
    """What a model server of its own answers."""
    loader = make_loader(config)
    loaded = loader(spec(), quiet)
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    engine = Engine(loaded.runner, lambda batch: [updates.put(update) for update in batch] and None)
    try:
        return [answer(engine, updates, prompt) for prompt in PROMPTS]
    finally:
        engine.close()
        loader.watch.stop()


@pytest.mark.usefixtures("compiled_anew")
def test_a_start_with_the_programs_of_the_last_one_traces_nothing_and_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = ModelServerConfig(slots=2, page_size=16)
    kept = replace(plain, jax_cache_dir=str(tmp_path))
    first = answers(kept)
    (file,) = (tmp_path / "starts").iterdir()
    with monkeypatch.context() as untraced:
        untraced.setattr(start_programs, "digest_of_text", lambda _: pytest.fail("it was traced"))
        assert answers(kept) == first
    file.write_bytes(file.read_bytes()[:-5])
    assert answers(kept) == first
    assert "is damaged" in caplog.text
    file.unlink()
    assert answers(replace(kept, keep_programs=False)) == first
    assert not file.exists()
