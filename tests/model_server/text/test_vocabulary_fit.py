"""Every id of a prompt needs its row of the embedding."""

import json

import pytest

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabulary_fit import check_fit, check_rows
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.checkpoints.tiny_folder import tokenizer_json

TINY = json.loads(tokenizer_json())
SIZE = 262
LATE = TINY["added_tokens"][0] | {"id": SIZE, "content": "<picture>"}
TOKENIZER = HfTokenizer(json.dumps(TINY | {"added_tokens": [*TINY["added_tokens"], LATE]}))


def test_a_model_may_lack_rows_for_tokens_added_later() -> None:
    check_fit(TOKENIZER, SIZE, "here")
    check_fit(TOKENIZER, SIZE + 10, "here")


def test_a_vocabulary_of_another_model_is_refused_with_both_sizes() -> None:
    with pytest.raises(CheckpointError, match=r"here: .* ids up to 261, its model 261 rows"):
        check_fit(TOKENIZER, SIZE - 1, "here")


def test_a_start_token_without_a_row_is_refused() -> None:
    starts = HfTokenizer(TOKENIZER.serialized, bos="<picture>", adds_bos=True)
    with pytest.raises(CheckpointError, match=r"begin with token 262 \('<picture>'\)"):
        check_fit(starts, SIZE, "here")
    check_fit(starts, SIZE + 1, "here")


def test_a_prompt_with_a_token_without_a_row_is_refused_by_name() -> None:
    ids = TOKENIZER.encode_chat("a<picture>")
    with pytest.raises(InvalidRequest, match=r"token 262 \('<picture>'\)") as caught:
        check_rows(ids, SIZE, TOKENIZER)
    assert caught.value.param == "prompt"
    check_rows(ids, SIZE + 1, TOKENIZER)
    check_rows(ids, None, TOKENIZER)
    check_rows([], SIZE, TOKENIZER)
