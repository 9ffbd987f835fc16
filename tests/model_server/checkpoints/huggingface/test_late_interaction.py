"""Settings of late-interaction models, in the form of PyLate and in that of colbert-ir."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_server.checkpoints.huggingface.sentence_transformers import (
    check_sentence_settings,
    copy_sentence_settings,
    read_sentence_settings,
)
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.sentence_folders import sentence_folder


def test_both_forms_are_read(tmp_path: Path) -> None:
    late = read_sentence_settings(sentence_folder(tmp_path / "a", "colbert", "tokens")).late
    assert late is not None
    assert (late.query_prefix, late.document_prefix, late.mask) == (
        *("[unused0]", "[unused1]"),
        "[MASK]",
    )
    assert (late.query_length, late.document_length) == (50, 60)
    assert (late.expands, late.attends, len(late.skipped)) == (True, False, 32)
    folder = sentence_folder(tmp_path / "b", "pylate_qwen3", "tokens")
    settings = read_sentence_settings(folder)
    assert settings.late is not None
    assert (settings.late.expands, settings.late.mask) == (False, None)
    assert [each.residual for each in settings.dense] == [True, True]
    assert settings.embeds


@each_case("case", ["colbert", "pylate_modernbert"])
def test_a_converted_folder_reads_texts_as_before(case: str, tmp_path: Path) -> None:
    """Whoever converts writes a tokenizer_config.json without the mask."""
    source = sentence_folder(tmp_path / case, case, "tokens")
    target = tmp_path / f"{case} copied"
    target.mkdir()
    copy_sentence_settings(source, target)
    assert read_sentence_settings(target) == read_sentence_settings(source)
    with pytest.raises(CheckpointError, match="that a GGUF file cannot hold"):
        check_sentence_settings(source)


@each_case(
    "change, says",
    [
        ({"similarity_fn_name": "cosine"}, "compares tokens by 'cosine'; supported is MaxSim"),
        ({"skiplist_words": "."}, "skiplist_words that are not a list"),
        ({"query_length": 2}, "query_length = 2; it must be a number of tokens"),
        ({"query_prefix": 5}, "query_prefix = 5; it must be a text"),
        ({"do_query_expansion": "no"}, "must be true or false"),
    ],
)
def test_what_is_not_computed_is_named(
    change: dict[str, object], says: str, tmp_path: Path
) -> None:
    folder = sentence_folder(tmp_path / says, "pylate_modernbert", "tokens")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=says):
        read_sentence_settings(folder)
