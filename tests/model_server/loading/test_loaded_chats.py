"""A publication's own chat template, and how its model writes calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.text.dialect import AnswerDialect
from sax.call_form import HERMES
from sax.chat import Message, ReasoningParser, ToolParser
from sax.errors import CheckpointError
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_loader import CONFIG, spec

TEMPLATE = (
    "{{ bos_token }}{{ eos_token }}{% for m in messages %}{{ m.content }}<tool_call>{% endfor %}"
    "{# tools #}"
)


def load(folder: Path, **overrides: str) -> Loaded:
    values = {key: json.dumps(value) for key, value in overrides.items()}
    model = spec(model_path="llama", checkpoint=str(write_tiny(folder / "tiny")), overrides=values)
    made = make_loader(CONFIG)(model, quiet)
    made.runner.close()
    assert isinstance(made, Loaded)
    return made


def test_a_template_of_the_publication_replaces_the_checkpoints(
    tmp_path: Path,
) -> None:
    loaded = load(tmp_path, CHAT_TEMPLATE=TEMPLATE, REASONING_PARSER="think")
    assert loaded.dialect == AnswerDialect(ToolParser.HERMES, ReasoningParser.THINK, HERMES)
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([Message("user", "hi")]) == "<|turn|><|stop|>hi<tool_call>"


def test_a_template_of_the_publication_that_is_wrong_ends_the_load(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="the chat template is wrong at line 1"):
        load(tmp_path, CHAT_TEMPLATE="{% if")
