"""VITS's tokenizer: as transformers', and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_server.models.audio.vits_tokenizer import VitsTokenizer, read_vits_tokenizer
from sax.errors import CheckpointError, InvalidRequest
from tests.each_case import each_case
from tests.tools.golden.voices import CASES, HERE

ROWS = 40  # of every golden model


def tokenizer_of(folder: Path, **settings: Any) -> VitsTokenizer:
    """The golden `vits` tokenizer with other settings, in a folder of its own."""
    shutil.copy(HERE / "vits" / "vocab.json", folder)
    said = json.loads((HERE / "vits" / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(said | settings))
    return read_vits_tokenizer(folder, ROWS)


def test_texts_have_the_tokens_that_transformers_gives_them() -> None:
    for name in CASES:
        tokenizer = read_vits_tokenizer(HERE / name, ROWS)
        for text, ids in json.loads((HERE / name / "texts.json").read_text()):
            assert tokenizer.tokens(text) == ids, (name, text)


def test_a_model_of_phonemes_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"phonemize = true.*espeak.*phonemize = false"):
        tokenizer_of(tmp_path, phonemize=True)


def test_text_that_is_to_be_romanized_is_refused_and_latin_text_is_not(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, is_uroman=True)
    assert tokenizer.tokens("ab") == [0, 2, 0, 3, 0]
    with pytest.raises(InvalidRequest, match=r"uroman.*romanize_string") as caught:
        tokenizer.tokens("ab \u0441\u043b\u043e\u0432\u043e")
    assert caught.value.param == "input"


def test_a_character_that_the_model_has_no_row_for_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, normalize=False, unk_token="<other>")
    last = max(tokenizer.tokens("a?"))
    with pytest.raises(InvalidRequest, match="no token for"):
        replace(tokenizer, rows=last).tokens("a?")
    assert max(replace(tokenizer, rows=last + 1).tokens("a?")) == last


@each_case(
    "settings",
    [
        {"add_blank": "yes"},
        {"unk_token": 5},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"0": {"content": "k", "single_word": True}}},
    ],
)
def test_settings_that_cannot_be_read_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=next(iter(settings))):
        tokenizer_of(tmp_path, **settings)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="vocab.json"):
        read_vits_tokenizer(tmp_path, ROWS)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 99}))
    with pytest.raises(CheckpointError, match="40 tokens"):
        read_vits_tokenizer(tmp_path, ROWS)
