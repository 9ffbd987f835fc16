"""What a GGUF file says of how a BERT's tokens become one vector."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from model_server.checkpoints.gguf.architectures.bert import BERT
from model_server.checkpoints.gguf.facts import Facts
from sax.errors import CheckpointError
from tests.each_case import each_case


def pooling(**metadata: Any) -> str:
    header: Any = SimpleNamespace(
        metadata={f"bert.{key}": value for key, value in metadata.items()},
        tensors={"token_types.weight": SimpleNamespace(shape=(2, 8))},
    )
    return BERT.more_config(Facts(header, "bert"), {})["pooling"]


def test_the_file_says_how_tokens_are_pooled() -> None:
    assert pooling() == pooling(pooling_type=0) == pooling(pooling_type=1) == "mean"
    assert pooling(pooling_type=2) == "cls"


def test_what_is_written_is_read_again() -> None:
    for written in ("mean", "cls"):
        assert pooling(**BERT.more_metadata({"pooling": written})) == written
    assert pooling(**BERT.more_metadata({})) == "mean"


@each_case("kind", [3, 4, "mean"])
def test_a_pooling_that_is_not_computed_is_refused(kind: object) -> None:
    with pytest.raises(CheckpointError, match=f"pooling_type {kind!r}"):
        pooling(pooling_type=kind)
