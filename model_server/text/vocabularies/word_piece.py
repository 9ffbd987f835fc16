"""Builds BERT's WordPiece vocabularies; pieces that continue a word start with ##. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from model_server.text.vocabularies.vocabulary import AddedToken, Vocabulary, check_different
from sax.errors import CheckpointError

_CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_PREFIX = "##"


def word_piece(
    tokens: Sequence[str],
    added: Sequence[AddedToken] = (),
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,  # None: same as `lowercase`
    cuts_chinese: bool = True,  # every Chinese character is a separate word
) -> Vocabulary:
    """Build the vocabulary. Raises CheckpointError if a control token is missing."""
    check_different(tokens)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    vocab |= {token.text: token.id for token in added}
    if missing := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]:
        raise CheckpointError(f"it has no token {missing[0]}")
    control = {
        vocab[text]: AddedToken(id=vocab[text], text=text, control=True)
        for text in _CONTROL
        if text in vocab
    }
    return Vocabulary(
        model={
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": _PREFIX,
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
        added=tuple((control | {token.id: token for token in added}).values()),
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": cuts_chinese,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": _PREFIX, "cleanup": True},
        bos="[CLS]",
        eos="[SEP]",
        adds_bos=True,
        adds_eos=True,
    )
