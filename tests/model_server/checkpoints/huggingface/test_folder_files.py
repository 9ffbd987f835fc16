"""The settings around a tokenizer.json, and where a chat template may stand."""

from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.folder_files import (
    folder_chat_template,
    folder_tokenizer,
)
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import CHAT, CONFIG, CONTROL, write_json


def source(folder: Path) -> str | None:
    template = folder_chat_template(folder, folder_tokenizer(folder, CONFIG))
    return None if template is None else template.source


def test_a_template_is_found_where_any_of_its_makers_put_it(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {})
    assert source(folder) is None
    write_json(folder / "chat_template.json", {"chat_template": "from json"})
    assert source(folder) == "from json"
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": CHAT}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert source(folder) == CHAT
    (folder / "chat_template.jinja").write_text("own", encoding="utf-8")
    assert source(folder) == "own"


def test_a_template_for_tools_lies_in_the_list_or_beside_it(folder: Path) -> None:
    def for_tools() -> str:
        template = folder_chat_template(folder, folder_tokenizer(folder, CONFIG))
        assert template is not None
        assert template.source == CHAT
        return template.for_tools

    several = [{"name": "default", "template": CHAT}, {"name": "tool_use", "template": "listed"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert for_tools() == "listed"
    beside = folder / "additional_chat_templates"
    beside.mkdir()
    (beside / "tool_use.jinja").write_text("beside", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    assert for_tools() == "beside"


@each_case("name", ["tokenizer_config.json", "chat_template.json"])
@each_case("given", [5, "{% for %}", {"default": "x"}])
def test_a_wrong_template_is_named(folder: Path, name: str, given: object) -> None:
    write_json(folder / "tokenizer_config.json", {})
    write_json(folder / name, {"chat_template": given})
    with pytest.raises(CheckpointError, match=name):
        source(folder)


def test_a_flag_that_is_no_flag_is_not_taken_for_one(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|turn|>", "add_bos_token": None})
    assert not folder_tokenizer(folder, CONFIG).adds_bos
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|turn|>", "add_bos_token": True})
    assert folder_tokenizer(folder, CONFIG).encode("a")[0] == 1


NO_IDS = {"text_config": {}, "model_type": "llama"}
MAP = {"bos_token": "<|turn|>", "eos_token": {"content": "<|stop|>"}, "unk_token": None}


@each_case(
    "settings, bos, eos",
    [
        ({}, "<|turn|>", {"<|stop|>"}),
        ({"added_tokens_decoder": {}}, "<|turn|>", {"<|stop|>"}),
        ({"eos_token": "<|end|>", "added_tokens_decoder": {}}, "<|turn|>", {"<|end|>"}),
        ({"eos_token": "<|end|>", "bos_token": None}, "<|turn|>", {"<|stop|>"}),
    ],
)
def test_start_and_end_may_be_in_special_tokens_map(
    folder: Path, settings: dict[str, Any], bos: str, eos: set[str]
) -> None:
    """As in transformers, which asks it first where no added tokens are listed."""
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ eos_token }}"} | settings)
    write_json(folder / "special_tokens_map.json", MAP)
    write_json(folder / "generation_config.json", {})
    tokenizer = folder_tokenizer(folder, NO_IDS)
    assert tokenizer.bos_id == CONTROL.index(bos)
    assert tokenizer.eos_ids == {CONTROL.index(text) for text in eos}
    template = folder_chat_template(folder, tokenizer)
    assert template is not None
    assert template.render([]) in eos


def test_ids_may_be_in_any_file_that_has_them(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {})
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [0]})
    tokenizer = folder_tokenizer(folder, NO_IDS | {"text_config": {"eos_token_id": 2}})
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {0, 2})
    (folder / "generation_config.json").unlink()
    inner = {"bos_token_id": 0, "eos_token_id": 2}
    tokenizer = folder_tokenizer(folder, NO_IDS | {"text_config": inner})
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, {2})


def test_the_file_of_a_wrong_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be loaded"):
        folder_tokenizer(folder, CONFIG)
