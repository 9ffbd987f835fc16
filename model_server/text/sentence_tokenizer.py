"""Encodes texts as an embedder or a classifier expects: prompt, letter case, frame of tokens; and
pairs of texts as a language model scores them, in its chat template.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, PlacedToken
from sax.chat import Message
from sax.errors import CheckpointError, InvalidRequest, UnsupportedParameter
from sax.format import quoted

# Roles and their order are those of sentence-transformers.
_QUERY, _DOCUMENT = "ImplausibleQueryText", "ImplausibleDocumentText"
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The text around and between the two of a pair.

    The template is rendered once, at load, with marks in place of the two, so that no request waits
    for a template.
    """

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
# As Qwen3-VL-Reranker was published (arXiv:2601.04720), for texts and images.
QWEN3_VL = PairTexts(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a search query, retrieve relevant candidates that answer "
    "the query.<Query>:",
    "\n<Document>:",
    "<|im_end|>\n<|im_start|>assistant\n",
)
_USUAL = {"qwen3": QWEN3, "qwen3_vl": QWEN3_VL, "qwen3_vl_text": QWEN3_VL}


def pair_texts(template: ChatTemplate | None, instruction: str, model_type: str) -> PairTexts:
    """Return what a template writes around roles `query` and `document`.

    instruction: of a message `system` before them; "": none. Raises CheckpointError if it does not
    write both texts once, in this order, and the model type has no usual texts.
    """
    found = None if template is None else _split(_rendered(template, instruction))
    found = found or _USUAL.get(model_type)
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


class SentenceTokenizer:
    """Encodes texts for an embedder or a classifier, including start and end tokens."""

    def __init__(
        self,
        tokenizer: HfTokenizer | ByteTokenizer,
        prefix: str,
        prompts: Mapping[str, str],
        *,
        lower_case: bool = False,
        words_alone: bool = False,
        pairs: PairTexts | None = None,
    ) -> None:
        """prefix: of every text that names none of `prompts`, the prefixes by name. words_alone:
        without ASCII punctuation, and with single spaces. pairs: around the texts of a pair; None:
        as the tokenizer joins them."""
        self._tokenizer = tokenizer
        self._prefix = prefix
        self._prompts = prompts
        self._lower_case = lower_case
        self._words_alone = words_alone
        self._pairs = pairs

    @property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest token, or more."""
        return self._tokenizer.longest_token

    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process, so that encoding blocks."""
        return self._tokenizer.waits

    @property
    def prompt_names(self) -> Collection[str]:
        """Names of the model's prompts."""
        return self._prompts.keys()

    def encode(self, text: str, prompt_name: str = "") -> list[int]:
        """Return the ids of a text after a prompt of the model; "": its own choice.

        Raises UnsupportedParameter for a prompt that the model does not have.
        """
        return self._tokenizer.encode_framed(self._cased(self.prompt(prompt_name) + text))

    def encode_placed(self, text: str) -> list[PlacedToken]:
        """Return the tokens of a text with where they are in it, without a prompt."""
        assert isinstance(self._tokenizer, HfTokenizer), "random weights classify no tokens"
        return self._tokenizer.encode_placed(text)

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the ids of two texts that are read together."""
        first, second = self._cased(first), self._cased(second)
        if self._pairs is None:
            return self._tokenizer.encode_pair(first, second)
        return self.encode_chat(self.written_pair(self.guard(first), self.guard(second)))

    @property
    def writes_pairs(self) -> bool:
        """True if texts stand around and between those of a pair."""
        return self._pairs is not None

    def written_pair(self, first: str, second: str) -> str:
        """Return two rendered texts with what stands around and between them."""
        assert self._pairs is not None, "the model scores pairs by texts around them"
        pairs = self._pairs
        return f"{pairs.before}{first}{pairs.between}{second}{pairs.after}"

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the ids of a rendered text, in which control tokens count but where guarded."""
        assert isinstance(self._tokenizer, HfTokenizer), "random weights read no chats"
        return self._tokenizer.encode_chat(rendered)

    def guard(self, text: str) -> str:
        """Return what somebody wrote so that none of it is a control token."""
        assert isinstance(self._tokenizer, HfTokenizer), "random weights read no chats"
        return self._tokenizer.control_tokens.guard(text)

    def _cased(self, text: str) -> str:
        text = text.lower() if self._lower_case else text
        return " ".join(text.translate(_PUNCTUATION).split()) if self._words_alone else text

    def prompt(self, name: str) -> str:
        """Return what goes before a text, by the prompt's name; "": the model's own choice.

        Raises UnsupportedParameter for a prompt that the model does not have.
        """
        if not name:
            return self._prefix
        if name not in self._prompts:
            known = f"it has {', '.join(sorted(self._prompts))}" if self._prompts else "it has none"
            raise UnsupportedParameter(
                f"prompt_name is {quoted(name)}, which is no prompt of this model: {known}",
                param="prompt_name",
            )
        return self._prompts[name]
