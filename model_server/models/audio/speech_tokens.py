"""Control tokens of a Whisper checkpoint: languages, tasks, timestamps, and what is never said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.models.audio.whisper_config import WhisperConfig
from sax.errors import CheckpointError

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_MULTILINGUAL_VOCAB = 51865  # the smallest of a published multilingual model
_INITIAL = 50  # 20 ms each: speech begins within a second


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokens:
    start: int  # of a transcript
    end: int
    previous: int  # before text that came before
    no_speech: int
    no_timestamps: int
    languages: Mapping[str, int]  # by code; empty: English only
    tasks: Mapping[str, int]  # transcribe and translate; empty: transcribe only
    suppressed: tuple[int, ...]  # anywhere
    suppressed_first: tuple[int, ...]
    most_initial: int  # the latest first timestamp, in 20 ms

    @property
    def timestamps(self) -> int:
        """The token of 0.00 s; each after it is 20 ms later."""
        return self.no_timestamps + 1


def read_speech_tokens(checkpoint: Checkpoint, config: WhisperConfig) -> SpeechTokens:
    """Read generation_config.json and the tokenizer. Raises CheckpointError for a missing token."""
    tokenizer, said = checkpoint.tokenizer(), checkpoint.generation_config
    found = {tokenizer.token_text(each): each for each in tokenizer.control_ids}
    multilingual = said.get("is_multilingual", config.vocab >= _MULTILINGUAL_VOCAB)
    codes = {match[1]: each for text, each in found.items() if (match := _LANGUAGE.fullmatch(text))}
    tasks = {name: found[f"<|{name}|>"] for name in _TASKS if f"<|{name}|>" in found}
    made = SpeechTokens(
        start=_found(found, "<|startoftranscript|>"),
        end=_found(found, "<|endoftext|>"),
        previous=_found(found, "<|startofprev|>"),
        no_speech=_found(found, "<|nospeech|>", "<|nocaptions|>"),
        no_timestamps=_found(found, "<|notimestamps|>"),
        languages=codes if multilingual else {},
        tasks=tasks if multilingual else {},
        suppressed=_ids(said, "suppress_tokens", config.vocab),
        suppressed_first=_ids(said, "begin_suppress_tokens", config.vocab),
        most_initial=_initial(said),
    )
    _check(made, said, config)
    return made


_TASKS = ("transcribe", "translate")


def _found(tokens: Mapping[str, int], *names: str) -> int:
    for name in names:
        if name in tokens:
            return tokens[name]
    raise CheckpointError(
        f"the tokenizer has no token {' or '.join(names)}: a Whisper checkpoint needs the "
        "tokenizer.json that it was published with"
    )


def _ids(said: Mapping[str, Any], key: str, vocab: int) -> tuple[int, ...]:
    given = said.get(key)
    if given is None:
        return ()
    if not isinstance(given, Sequence) or not all(
        type(each) is int and 0 <= each < vocab for each in given
    ):
        raise CheckpointError(
            f"generation_config.json has {key} = {given!r}; give ids of the {vocab} tokens"
        )
    return tuple(given)


def _initial(said: Mapping[str, Any]) -> int:
    given = said.get("max_initial_timestamp_index", _INITIAL)
    if type(given) is not int or given < 0:
        raise CheckpointError(
            f"generation_config.json has max_initial_timestamp_index = {given!r}; give a whole "
            "number"
        )
    return given


def _check(made: SpeechTokens, said: Mapping[str, Any], config: WhisperConfig) -> None:
    given = said.get("no_timestamps_token_id", made.no_timestamps)
    if given != made.no_timestamps:
        raise CheckpointError(
            f"generation_config.json has no_timestamps_token_id = {given!r} and the tokenizer "
            f"<|notimestamps|> = {made.no_timestamps}: the two files are of different models"
        )
    if made.timestamps + config.positions >= config.vocab:
        raise CheckpointError(
            f"config.json has vocab_size = {config.vocab}, which leaves no tokens for the "
            f"{config.positions + 1} timestamps after {made.no_timestamps}"
        )
