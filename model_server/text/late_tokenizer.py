"""Encodes queries and documents of a late-interaction model, as PyLate and colbert-ir do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_server.text.sentence_tokenizer import SentenceTokenizer
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError, UnsupportedParameter
from sax.format import quoted

QUERY, DOCUMENT = "query", "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """The texts of a model with a vector per token."""

    query_prefix: str  # a token after the first one; "": none
    document_prefix: str
    query_length: int  # tokens that a query is filled up to, with masks
    document_length: int  # tokens; more than so many only if published for it
    expands: bool  # fills queries up
    attends: bool  # the other tokens see the masks too
    skipped: tuple[str, ...]  # tokens of documents that get no vector
    mask: str | None  # the token that queries are filled up with; None: the end of a text


class LateText(NamedTuple):
    """The tokens of a query or a document."""

    ids: list[int]
    seen: int  # the first so many are seen by all; those that fill a query up are not
    kept: list[int]  # places of the tokens whose vectors are compared


class LateTokenizer:
    """Puts a token for its role after the first token of a text; fills queries up with masks;
    leaves the vectors of punctuation in documents out, as the checkpoint says.
    """

    def __init__(
        self, late: LateInteraction, tokenizer: HfTokenizer, texts: SentenceTokenizer
    ) -> None:
        """texts: adds the checkpoint's prompts. Raises CheckpointError for an unknown token."""
        self._late = late
        self._texts = texts
        self._prefixes = {
            QUERY: _ids(tokenizer, late.query_prefix),
            DOCUMENT: _ids(tokenizer, late.document_prefix),
        }
        unknown = tokenizer.unknown_id
        skipped = (tokenizer.token_id(word) for word in late.skipped)
        self._skipped = frozenset(unknown if each is None else each for each in skipped)
        self._mask = _filler(late, tokenizer) if late.expands else 0

    def encode(self, text: str, role: str) -> LateText:
        """Return the tokens of a text; role: query or document; "" is document.

        Raises UnsupportedParameter for another role.
        """
        role = role or DOCUMENT
        if role not in self._prefixes:
            raise UnsupportedParameter(
                f"prompt_name is {quoted(role)}: a late-interaction model has {QUERY} and "
                f"{DOCUMENT}",
                param="prompt_name",
            )
        ids = self._texts.encode(text, role if role in self._texts.prompt_names else "")
        ids = [*ids[:1], *self._prefixes[role], *ids[1:]]
        return self._query(ids) if role == QUERY else self._document(ids)

    def _query(self, ids: list[int]) -> LateText:
        """Fill it up with masks; one that is longer already is read whole."""
        late, own = self._late, len(ids)
        if late.expands:
            ids = [*ids, *[self._mask] * (late.query_length - own)]
        return LateText(ids, len(ids) if late.attends else own, [*range(len(ids))])

    def _document(self, ids: list[int]) -> LateText:
        kept = [place for place, token in enumerate(ids) if token not in self._skipped]
        return LateText(ids, len(ids), kept)


def _ids(tokenizer: HfTokenizer, prefix: str) -> list[int]:
    if not prefix:
        return []
    found = tokenizer.token_id(prefix)
    if found is None:
        raise CheckpointError(
            f"the tokenizer has no token {prefix!r}, which begins the texts of this "
            "late-interaction model"
        )
    return [found]


def _filler(late: LateInteraction, tokenizer: HfTokenizer) -> int:
    """Return the token that fills queries up: the mask, else the end of a text."""
    found = None if late.mask is None else tokenizer.token_id(late.mask)
    if found is None:
        found = min(tokenizer.eos_ids, default=None)
    if found is None:
        raise CheckpointError(
            "queries of this late-interaction model are filled up with masks, but its tokenizer "
            "has neither a mask token nor an end token: set do_query_expansion to false in "
            "config_sentence_transformers.json if it was trained so"
        )
    return found
