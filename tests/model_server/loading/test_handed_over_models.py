"""The real loader's models go on with a prompt that was handed over, as if it had not been.

A server that fetches from itself: the pages leave through the transfer server, other tokens are
written into them, and they come back into others.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace as with_changes

from model_server.config import ModelServerConfig
from model_server.disaggregation.handed_pages import handed_over
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_recurrent_models import folder_of, spec, whole

CONFIG = ModelServerConfig(
    slots=2,
    page_size=16,
    prefix_cache="tenant",
    prefill=True,
    prefill_servers=("127.0.0.1:9",),
)
# Layers that keep a state, in all layers, in some, beside some that keep nothing, and beside keys
# and values of their own; with windows; of several shapes, and that attend to those of others; and
# that take the tokens which others chose, and the latents that others made.
STATES = ("mamba2", "qwen3_next", "nemotron_h", "falcon_h1")
MORE = (*STATES, "gemma3", "gemma3n", "gemma4", "glm_moe_dsa", "mistral_large4")
CASES = ["lfm2", *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def asked(prompt: tuple[int, ...], **changes: int) -> EngineRequest:
    request = EngineRequest(prompt=prompt, sampling=GREEDY, max_tokens=6, stop_ids=frozenset())
    return with_changes(request, **changes)


def handed(loaded: Loaded, prompt: tuple[int, ...], key: int) -> list[int]:
    """The tokens behind a prompt whose pages left and came back."""
    held = loaded.disaggregation
    assert held is not None
    held.runner.expect_export(1, key)
    ((first,),) = answers(held.runner, [asked(prompt, max_tokens=1)])
    assert first.token is not None
    assert held.transfers.reserve(key, handed_over(held.runner.limits, len(prompt)))
    held.transfers.fetch(key, held.transfers.addresses(), 30.0)
    answers(held.runner, [asked(prompt[::-1]), asked(prompt[::-1])])  # in the same pages
    held.runner.expect_import(1, key, first.token)
    here = with_changes(asked(prompt), answer=(first.token,), computed=True)
    # Who asks again finds the pages that came, as far as they are all there.
    (made, again) = answers(held.runner, [here, asked(prompt)])
    held.transfers.drop(key)
    assert tokens_of(again) == [first.token, *tokens_of(made)]
    return tokens_of(again)


@pytest.mark.parametrize("name", CASES)
def test_tokens_behind_a_handoff_are_those_of_whole_sequences(name: str, tmp_path: Path) -> None:
    """Prompts that end inside a page, at its border and one token behind it."""
    checkpoint = folder_of(name, tmp_path)
    loader = make_loader(CONFIG)
    loaded = loader(spec(checkpoint), quiet)
    assert isinstance(loaded, Loaded)
    prompts = [tuple(range(size)) for size in (50, 48, 33)]
    wanted = [whole(checkpoint).greedy(prompt, 6) for prompt in prompts]
    before = loader.compiles_while_serving()
    with closing(loaded.runner):
        assert [handed(loaded, prompt, key) for key, prompt in enumerate(prompts, 1)] == wanted
    assert loader.compiles_while_serving() == before
