"""Names of models as Ollama's clients write them."""

from __future__ import annotations

import pytest

from http_gateway.ollama.names import checkpoint_of, model_id, untagged
from sax.errors import InvalidName, InvalidRequest
from tests.http_gateway.fake_cell import published


def test_a_name_is_known_by_its_last_part_and_its_tag() -> None:
    names = {
        "smollm2": "smollm2",
        "smollm2:latest": "smollm2",
        "SmolLM2:135m": "smollm2-135m",
        "hf.co/Org/Qwen3-0.6B": "qwen3-0-6b",
        "hf.co/Org/Qwen3-0.6B-GGUF:Q4_K_M": "qwen3-0-6b-gguf-q4_k_m",
        "/sax/test/smollm2:latest": "/sax/test/smollm2",
    }
    assert {name: untagged(name) for name in names} == names


def test_a_new_model_is_in_the_cell_of_the_others() -> None:
    others = [published("/sax/prod/a"), published("/sax/test/b")]
    assert model_id("Org/M", others) == "/sax/prod/m"
    assert model_id("m", []) == "/sax/test/m"
    assert model_id("/sax/test/m", others) == "/sax/test/m"
    assert model_id("Org/3B", []) == "/sax/test/m-3b"
    with pytest.raises(InvalidName):
        model_id("/sax/m", others)


def test_a_hubs_repository_is_a_checkpoint() -> None:
    assert checkpoint_of("hf.co/Org/M:latest") == "hf://Org/M"
    assert checkpoint_of("huggingface.co/Org/M-GGUF:Q8_0") == "hf://Org/M-GGUF@main:Q8_0"
    for name in ("llama3.2", "llama3.2:1b", "hf.co/M", "a/b/c"):
        with pytest.raises(InvalidRequest, match="Ollama's registry"):
            checkpoint_of(name)
