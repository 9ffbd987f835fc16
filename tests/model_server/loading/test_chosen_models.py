"""The real loader on a model whose queries choose the tokens that they attend to."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loader import make_loader
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_loader import answer
from tests.model_server.loading.test_recurrent_models import CONFIG, folder_of, spec, whole

SHARES = "glm_moe_dsa"  # also between layers
WINDOWS = "dots3_note"  # in layers of other sizes


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["axk2", "deepseek_v32", "mistral_large4", SHARES, WINDOWS])
def test_a_loaded_model_gives_the_tokens_of_whole_sequences(name: str, tmp_path: Path) -> None:
    checkpoint = folder_of(name, tmp_path)
    loaded = make_loader(CONFIG)(spec(checkpoint), quiet)
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    runner: Any = loaded.runner

    def deliver(batch: list[SequenceUpdate]) -> None:
        for update in batch:
            updates.put(update)

    engine = Engine(runner, deliver)
    prompt = tuple(range(50))
    try:
        answers = [answer(engine, updates, prompt) for _ in range(2)]
    finally:
        engine.close()
    wanted = whole(checkpoint).greedy(prompt, len(answers[0]))
    assert answers == [wanted, wanted]
