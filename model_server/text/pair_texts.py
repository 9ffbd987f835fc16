"""Texts of pairs that a language model scores: its chat template around a query and a document.

The template is rendered once, at load, with marks in place of the two texts, so that no request
waits for a template.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_server.text.chat_template import ChatTemplate
from sax.chat import Message
from sax.errors import CheckpointError, InvalidRequest

# Roles and their order are those of sentence-transformers.
_QUERY, _DOCUMENT = "ImplausibleQueryText", "ImplausibleDocumentText"


@dataclass(frozen=True, slots=True)
class PairTexts:
    """Around and between the texts of a pair."""

    before: str
    between: str
    after: str


# As Qwen3-Reranker was published first, with the chat template of Qwen3 (arXiv:2506.05176).
QWEN3 = PairTexts(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def pair_texts(template: ChatTemplate | None, instruction: str, model_type: str) -> PairTexts:
    """Return what a template writes around roles `query` and `document`.

    instruction: of a message `system` before them; "": none. Raises CheckpointError if it does not
    write both texts once, in this order, and the model type has no usual texts.
    """
    found = None if template is None else _split(_rendered(template, instruction))
    if found is None and model_type == "qwen3":
        return QWEN3
    if found is None:
        raise CheckpointError(
            "the chat template does not write a message of the role query and one of the role "
            "document, each once and in this order: publish it with a CHAT_TEMPLATE that does"
        )
    return found


def _rendered(template: ChatTemplate, instruction: str) -> str:
    asked = [Message("system", instruction)] if instruction else []
    pair = [Message("query", _QUERY), Message("document", _DOCUMENT)]
    try:
        return template.render([*asked, *pair])
    except InvalidRequest:  # it refuses these roles
        return ""


def _split(rendered: str) -> PairTexts | None:
    if rendered.count(_QUERY) != 1 or rendered.count(_DOCUMENT) != 1:
        return None
    before, _, rest = rendered.partition(_QUERY)
    between, mark, after = rest.partition(_DOCUMENT)
    return PairTexts(before, between, after) if mark else None
