"""The small vocabularies of tests/golden/vocabularies and the answers of their own libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from model_server.text.tokenizer import HfTokenizer

UNKNOWN = " \u2047 "  # how SentencePiece shows an unknown character; ours shows nothing
PLACE = Path(__file__).parents[3] / "golden" / "vocabularies"


class Answer(NamedTuple):
    text: str
    ids: list[int]
    decoded: str


def answers(name: str) -> list[Answer]:
    """Some two hundred tricky texts."""
    return [Answer(*case) for case in json.loads((PLACE / f"{name}.answers.json").read_text())]


def differences(tokenizer: HfTokenizer, name: str) -> list[tuple[str, list[int], str]]:
    """What the tokenizer says otherwise than the library: nothing, if all is well."""
    found = []
    for text, ids, decoded in answers(name):
        ours, said = tokenizer.encode(text, add_bos=False), tokenizer.decode(ids)
        shown = decoded
        if UNKNOWN in decoded:  # a space that began the text may have been before the mark
            shown, said = decoded.replace(UNKNOWN, "").lstrip(), said.lstrip()
        if ours != ids or shown != said:
            found.append((text, ours, said))
    return found


def streamed(tokenizer: HfTokenizer, ids: list[int]) -> str:
    """The text of ids that come one by one."""
    decoder = tokenizer.decoder()
    return "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()])
