"""The real loader on checkpoints of a hub: fetched once, with progress."""

from __future__ import annotations

import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader
from sax.errors import CheckpointNotFound
from sax.types import Progress
from tests.model_server.checkpoints.hub.fake_hub import FakeHub
from tests.model_server.loading.loads import spec_of

TINY = "hf://acme/tiny"


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(ModelServerConfig(slots=2, page_size=16))


def test_a_model_of_a_hub_is_loaded_and_says_how_far_its_download_is(
    loader: ModelLoader, hub: FakeHub
) -> None:
    told: list[Progress] = []
    loaded = loader(spec_of("acme/tiny"), told.append)
    loaded.runner.close()
    phases = list(dict.fromkeys(each.phase for each in told))
    assert phases.index("downloading") < phases.index("reading weights")
    assert [each.unit for each in told if each.phase == "downloading"][-1] == "bytes"
    fetched = list(hub.fetched)
    loader(spec_of(TINY), told.append).runner.close()
    assert hub.fetched == fetched  # once


def test_what_the_hub_does_not_have_is_told_before_anything_is_loaded(
    loader: ModelLoader, hub: FakeHub
) -> None:
    with pytest.raises(CheckpointNotFound, match="has no acme/other"):
        loader(spec_of("acme/other"), print)
