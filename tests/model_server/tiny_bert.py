"""A BERT of a few thousand numbers as a folder on disk, with a tokenizer of letters."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.model_server.models.family_cases import checkpoint_of

CASE = "bert"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tiny_bert(folder: Path, **config: Any) -> Path:
    """The golden case of BERT with a tokenizer; `config` changes its config.json."""
    shutil.copytree(checkpoint_of(CASE), folder, dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    _tokenizer().save(str(folder / "tokenizer.json"))


def _tokenizer() -> tokenizers.Tokenizer:
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    vocabulary = {token: token_id for token_id, token in enumerate([*SPECIAL, *letters])}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL))
    frame = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.BertProcessing(frame[1], frame[0])
    return made
