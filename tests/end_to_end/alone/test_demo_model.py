"""The demo model in this process, asked token by token: weights, kernels, scheduler, tokenizer.

With the programs of the tutorial's cell (test_tutorial.py), so that these are compiled once.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from model_server.config import ModelServerConfig
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE
from tests.model_server.engine.drafting.driving import answers, tokens_of

PROMPTS = {"The capital of France is": " Paris", "1, 2, 3, 4, 5, 6,": " 7, 8, 9"}


def test_it_knows_a_capital_and_how_to_count_alone_and_in_a_batch(gguf: Path) -> None:
    spec = ModelSpec(
        model_id="/sax/test/smollm2", model_path="llama", checkpoint=str(gguf), replicas=1
    )
    config = ModelServerConfig(jax_cache_dir=str(COMPILE_CACHE), slots=2, max_context=256)
    loaded = make_loader(config)(spec, lambda progress: None)
    assert isinstance(loaded, Loaded)

    def texts(*prompts: str) -> list[str]:
        requests = [
            EngineRequest(
                prompt=tuple(loaded.tokenizer.encode(prompt)),
                sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0),
                max_tokens=8,
                stop_ids=frozenset(),
            )
            for prompt in prompts
        ]
        found = answers(loaded.runner, requests)
        pieces = [map(loaded.tokenizer.token_bytes, tokens_of(each)) for each in found]
        return [b"".join(each).decode() for each in pieces]

    with closing(loaded.runner):
        together = texts(*PROMPTS)
        alone = [text for prompt in PROMPTS for text in texts(prompt)]
    for found in (together, alone):
        pairs = zip(found, PROMPTS.values(), strict=True)
        assert all(text.startswith(wanted) for text, wanted in pairs), found
