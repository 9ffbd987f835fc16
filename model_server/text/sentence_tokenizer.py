"""Encodes texts as an embedder or a classifier expects: prompt, letter case, frame of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from model_server.text.pair_texts import PairTexts
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import UnsupportedParameter
from sax.format import quoted


class SentenceTokenizer:
    """Encodes texts for an embedder or a classifier, including start and end tokens."""

    def __init__(
        self,
        tokenizer: HfTokenizer | ByteTokenizer,
        prefix: str,
        prompts: Mapping[str, str],
        *,
        lower_case: bool = False,
        pairs: PairTexts | None = None,
    ) -> None:
        """prefix: of every text that names none of `prompts`, the prefixes by name. pairs: around
        the texts of a pair; None: as the tokenizer joins them."""
        self._tokenizer = tokenizer
        self._prefix = prefix
        self._prompts = prompts
        self._lower_case = lower_case
        self._pairs = pairs

    @property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest token, or more."""
        return self._tokenizer.longest_token

    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process, so that encoding blocks."""
        return self._tokenizer.waits

    def encode(self, text: str, prompt_name: str = "") -> list[int]:
        """Return the ids of a text after a prompt of the model; "": its own choice.

        Raises UnsupportedParameter for a prompt that the model does not have.
        """
        return self._tokenizer.encode_framed(self._cased(self._prompt(prompt_name) + text))

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the ids of two texts that are read together."""
        first, second, pairs = self._cased(first), self._cased(second), self._pairs
        if pairs is None:
            return self._tokenizer.encode_pair(first, second)
        assert isinstance(self._tokenizer, HfTokenizer), "random weights score no pairs"
        guard = self._tokenizer.control_tokens.guard
        return self._tokenizer.encode_chat(
            f"{pairs.before}{guard(first)}{pairs.between}{guard(second)}{pairs.after}"
        )

    def _cased(self, text: str) -> str:
        return text.lower() if self._lower_case else text

    def _prompt(self, name: str) -> str:
        if not name:
            return self._prefix
        if name not in self._prompts:
            known = f"it has {', '.join(sorted(self._prompts))}" if self._prompts else "it has none"
            raise UnsupportedParameter(
                f"prompt_name is {quoted(name)}, which is no prompt of this model: {known}",
                param="prompt_name",
            )
        return self._prompts[name]
