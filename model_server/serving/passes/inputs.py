"""Inputs of a request to embed or classify, as token ids that fit the model. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.serving.request_checks import check_ids
from model_server.text.text_length import check_bytes, check_pieces
from sax.errors import InvalidRequest, PromptTooLong
from sax.types import EmbedInput

EACH = 50  # characters: an input costs some time to begin with


def inputs_ids(
    inputs: Sequence[EmbedInput], loaded: LoadedEmbedder, prompt_name: str = ""
) -> list[Sequence[int]]:
    """Return the ids of each input. Raises InvalidRequest, PromptTooLong."""
    count = len(inputs)
    return [
        _ids(each, "input" if count == 1 else f"input {index}", loaded, prompt_name)
        for index, each in enumerate(inputs)
    ]


def texts_ids(texts: Sequence[str], param: str, loaded: LoadedEmbedder) -> list[Sequence[int]]:
    """Return the ids of each text of `param`. Raises InvalidRequest, PromptTooLong."""
    return [
        _ids(text, f"{param}[{index}]", loaded, param=param) for index, text in enumerate(texts)
    ]


def pairs_ids(
    first: Sequence[str], second: Sequence[str], loaded: LoadedEmbedder
) -> list[Sequence[int]]:
    """Return the ids of each pair, read together. Raises InvalidRequest, PromptTooLong."""
    for param, texts in (("first", first), ("second", second)):
        for index, text in enumerate(dict.fromkeys(texts)):
            _check_text(text, f"{param}[{index}]", loaded, param)
    return [
        _fitting(loaded.tokenizer.encode_pair(*pair), f"pair {index}", loaded, "second")
        for index, pair in enumerate(zip(first, second, strict=True))
    ]


def _ids(
    given: EmbedInput,
    which: str,
    loaded: LoadedEmbedder,
    prompt_name: str = "",
    param: str = "input",
) -> Sequence[int]:
    if not given:
        raise InvalidRequest(f"{which} is empty: send text or token ids", param=param)
    if not isinstance(given, str):
        check_ids(which, given, loaded.vocab)
        return _fitting(given, which, loaded, param)
    _check_text(given, which, loaded, param)
    return _fitting(loaded.tokenizer.encode(given, prompt_name), which, loaded, param)


def _check_text(text: str, which: str, loaded: LoadedEmbedder, param: str) -> None:
    if not text:
        raise InvalidRequest(f"{which} is empty: send text", param=param)
    check_bytes(text, loaded.tokenizer, loaded.max_context, param)
    check_pieces(text, loaded.tokenizer.encode, loaded.max_context, param)


def _fitting(ids: Sequence[int], which: str, loaded: LoadedEmbedder, param: str) -> Sequence[int]:
    if len(ids) > loaded.max_context:
        raise PromptTooLong(
            f"{which} has {len(ids)} tokens and this model's maximum context length is "
            f"{loaded.max_context} tokens: send it in shorter parts",
            param=param,
        )
    return ids
