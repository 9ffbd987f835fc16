"""The demo model: ids, template and configuration are those of the reference.

The golden files say in their field "how" how they were made.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from sax.types import Message
from tests.each_case import each_case

GOLDEN = Path(__file__).parents[2] / "golden"
ANSWERS = json.loads((GOLDEN / "smollm2_greedy.json").read_text(encoding="utf-8"))
TEXTS = json.loads((GOLDEN / "smollm2_tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def checkpoint(smollm2: Path) -> Checkpoint:
    return open_checkpoint(str(smollm2))


@each_case("case", TEXTS["plain"])
def test_plain_text_has_the_reference_ids(checkpoint: Checkpoint, case: dict[str, Any]) -> None:
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.encode(case["text"]) == case["ids"]
    assert tokenizer.decode(case["ids"]) == case["text"]
    decoder = tokenizer.decoder()
    assert "".join(map(decoder.push, case["ids"])) + decoder.flush() == case["text"]


@each_case("case", TEXTS["chat"])
def test_chat_text_has_the_reference_ids(checkpoint: Checkpoint, case: dict[str, Any]) -> None:
    assert checkpoint.tokenizer().encode_chat(case["text"]) == case["ids"]


@each_case("case", ANSWERS["cases"])
def test_prompts_and_answers_are_the_references(
    checkpoint: Checkpoint, case: dict[str, Any]
) -> None:
    tokenizer, template = checkpoint.tokenizer(), checkpoint.chat_template()
    assert template is not None
    if case["messages"] is None:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
    else:
        rendered = template.render([Message(**message) for message in case["messages"]])
        assert rendered == case["prompt"]
        assert tokenizer.encode_chat(rendered) == case["prompt_ids"]
    assert tokenizer.decode(case["ids"]) == case["text"]


def test_the_configuration_is_the_published_one(checkpoint: Checkpoint) -> None:
    published = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    assert published.items() <= checkpoint.config.items()
    tokenizer = checkpoint.tokenizer()
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (49152, 1)
    ends = {"<|endoftext|>", "<|im_end|>"}  # the first one by its text
    assert {tokenizer.token_text(end) for end in tokenizer.eos_ids} == ends


@pytest.mark.extended
def test_every_tensor_can_be_read(checkpoint: Checkpoint) -> None:
    for name in checkpoint.names():
        values = checkpoint.read(name)
        assert values.shape == checkpoint.shape(name)
        assert values.nbytes == checkpoint.nbytes(name)
        assert np.isfinite(values).all()
