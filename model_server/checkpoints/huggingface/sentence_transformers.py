"""Reads a sentence-transformers folder's embedding settings: modules.json and the files it names.

Without modules.json, or in another checkpoint format, vectors are normalised, and how they are
pooled is left to the model's family. The files are carried along when a checkpoint is fetched or
converted.

A late-interaction model (ColBERT), with a vector per token, has one of two forms: PyLate's, keys of
config_sentence_transformers.json beside a modules.json that has Dense modules and no Pooling; and
colbert-ir's, an artifact.metadata beside weights whose projection is `linear.weight`, without a
modules.json. Source: Khattab and Zaharia 2020 (arXiv:2004.12832), Santhanam et al. 2021
(arXiv:2112.01488).
"""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from model_server.checkpoints.files import parse_json, read_json, read_text
from model_server.checkpoints.huggingface.dense_modules import (
    DENSE_WEIGHTS,
    DenseModule,
    read_dense_module,
)
from model_server.text.late_tokenizer import LateInteraction
from sax.errors import CheckpointError

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_TEXT, _POOLING = "sentence_bert_config.json", "config.json"  # in the folder of a module
METADATA = "artifact.metadata"
# Beside the model itself; the others are in the folders named by modules.json.
BESIDE = (MODULES, _PROMPTS, METADATA)
_DENSE = "Dense"
_FLAG = "pooling_mode_"
_FLAG_OF = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A pair's score by a language model: how much likelier one next token is than another."""

    true_id: int
    false_id: int | None = None  # None: the logit of the first alone


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSettings:
    """Steps before and after the model on the way from text to vector."""

    pooling: str | None = None  # cls, mean, max or last, over a text's tokens; None: not said
    dense: tuple[DenseModule, ...] = ()  # over the pooled vector, before it is normalised
    normalise: bool = True
    max_length: int | None = None  # tokens; None: the model's number of positions
    lower_case: bool = False
    prefix: str = ""  # prepended to every text, unless a request names another prompt
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])  # prefixes by name
    score: TokenScore | None = None  # of a reranker that is a language model
    late: LateInteraction | None = None  # of a model with a vector per token
    activation: str | None = None  # of a reranker's scores: a class of torch.nn
    # What stands before and after queries and images, by these names, of a model with a vector per
    # token that sees; empty: of another kind
    frames: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    @property
    def embeds(self) -> bool:
        """True if the checkpoint says that it is an embedding model."""
        return self.pooling is not None or self.late is not None or bool(self.frames)


def read_sentence_settings(folder: Path | None) -> SentenceSettings:
    """Read a checkpoint folder's settings. Raises CheckpointError for unsupported ones."""
    if folder is None:
        return SentenceSettings()
    if not (folder / MODULES).is_file():
        return SentenceSettings(late=late_of_metadata(folder), frames=frames_of(folder))
    modules = read_modules(folder)
    text = read_json(folder / modules[0][1] / _TEXT, missing={}) if modules else {}
    length = text.get("max_seq_length")
    prompts = _prompts(folder)
    return SentenceSettings(
        max_length=length if type(length) is int and length > 0 else None,
        lower_case=text.get("do_lower_case") is True,
        prefix=_prefix(folder, prompts),
        prompts=prompts,
        **_after_the_model(folder, modules, prompts),
    )


def _after_the_model(
    folder: Path, modules: Sequence[tuple[str, PurePosixPath]], prompts: Mapping[str, str]
) -> dict[str, Any]:
    """Read the modules that make vectors or scores. Raises CheckpointError for other ones."""
    kinds = [kind for kind, _ in modules]
    settings = read_json(folder / _PROMPTS, missing={})
    if kinds == ["Transformer"] and (late := late_of_metadata(folder)):
        return {"late": late}
    if kinds in (["Transformer"], ["Transformer", "LogitScore"]):
        activation = settings.get("activation_fn")
        score = _token_score(folder / modules[1][1] / _POOLING) if len(kinds) > 1 else None
        return {"score": score, "activation": activation}
    normalise = kinds[-1:] == ["Normalize"]
    last = len(kinds) - normalise
    if kinds[:1] == ["Transformer"] and {*kinds[1:last]} == {_DENSE}:
        dense = [read_dense_module(folder, inner, per_token=True) for _, inner in modules[1:last]]
        return {"late": late_of_modules(settings, folder), "dense": tuple(dense)}
    if kinds[:2] != ["Transformer", "Pooling"] or {*kinds[2:last]} - {_DENSE}:
        raise CheckpointError(
            f"{folder / MODULES} lists {', '.join(kinds)}; supported are Transformer, Pooling, any "
            "number of Dense, and optionally Normalize; a late-interaction model's Transformer and "
            "Dense; or a reranker's Transformer and LogitScore"
        )
    return {
        "pooling": _pooling(folder / modules[1][1] / _POOLING, prompts),
        "dense": tuple(read_dense_module(folder, inner) for _, inner in modules[2:last]),
        "normalise": normalise,
    }


def _token_score(path: Path) -> TokenScore:
    config = read_json(path)
    ids = [config.get("true_token_id"), config.get("false_token_id")]
    known = [token for token in ids if type(token) is int and token >= 0]
    if len(known) != 1 + (ids[1] is not None):
        raise CheckpointError(f"{path} names no tokens: {ids[0]!r} and {ids[1]!r}")
    return TokenScore(*known)


def read_modules(folder: Path) -> list[tuple[str, PurePosixPath]]:
    """Return each module's kind and its subfolder. Raises CheckpointError if malformed."""
    path = folder / MODULES
    try:
        listed: Any = parse_json(read_text(path))
        found = [(m["type"].rpartition(".")[2], PurePosixPath(m["path"])) for m in listed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not a list of modules with type and path") from exc
    for _, inner in found:
        if inner.is_absolute() or ".." in inner.parts:
            raise CheckpointError(f"{path} names a folder outside the checkpoint: {str(inner)!r}")
    return found


def _pooling(path: Path, prompts: Mapping[str, str]) -> str:
    config = read_json(path)
    if config.get("include_prompt") is False and any(prompts.values()):
        raise CheckpointError(
            f"{path} leaves the tokens of prompts out of the vector (include_prompt is false), "
            "which is not supported: its prompts would change the vectors otherwise"
        )
    named = config.get("pooling_mode")
    flags = {key.removeprefix(_FLAG) for key in config if key.startswith(_FLAG) and config[key]}
    chosen = {name for name, flag in _FLAG_OF.items() if named in (name, flag) or flag in flags}
    if len(chosen) != 1 or flags - set(_FLAG_OF.values()):
        asked = ", ".join(sorted(flags | ({str(named)} if named else set()))) or "nothing"
        raise CheckpointError(
            f"{path} asks for pooling by {asked}; supported is one of {', '.join(_FLAG_OF)}"
        )
    return chosen.pop()


def _prompts(folder: Path) -> dict[str, str]:
    """Read the prompts by name. Raises CheckpointError if they are not texts."""
    path = folder / _PROMPTS
    prompts = read_json(path, missing={}).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise CheckpointError(f"{path} has prompts that are not an object of texts")
    named: dict[str, Any] = prompts
    if wrong := [name for name, text in named.items() if not isinstance(text, str)]:
        raise CheckpointError(f"{path} has a prompt {wrong[0]!r} that is not a text")
    return named


def _prefix(folder: Path, prompts: Mapping[str, str]) -> str:
    path = folder / _PROMPTS
    name = read_json(path, missing={}).get("default_prompt_name")
    if name is None:
        return ""
    if name not in prompts:
        raise CheckpointError(f"{path} has no prompt {name!r}, which it names as the default")
    return prompts[name]


def copy_sentence_settings(source: Path | None, folder: Path) -> None:
    """Copy the settings of `source`, if any, to `folder`. Raises CheckpointError if invalid."""
    if source is None:
        return
    settings = read_sentence_settings(source)  # raises if they are invalid
    if settings.late is not None:
        write_mask(settings.late, folder)
    modules = files_of_modules(source) if (source / MODULES).is_file() else ()
    for name in (*BESIDE, *modules):
        if (source / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def check_sentence_settings(source: Path | None) -> None:
    """Raise CheckpointError if dropping the settings would change the embeddings."""
    settings = replace(read_sentence_settings(source), max_length=None)
    settings = replace(settings, prompts={n: t for n, t in settings.prompts.items() if t})
    if settings not in (SentenceSettings(), SentenceSettings(pooling="mean")):
        raise CheckpointError(
            f"{source} has embedding settings that a GGUF file cannot hold ({settings}): "
            "convert it to a folder"
        )


def files_of_modules(folder: Path) -> Iterator[str]:
    """Yield relative paths of files that modules may have. Raises CheckpointError."""
    for kind, path in read_modules(folder):
        # The first module is the model itself, whose config.json is not a setting.
        yield str(path / _TEXT)
        if path.parts:
            yield str(path / _POOLING)
        if kind == _DENSE:
            yield str(path / DENSE_WEIGHTS)


_SPECIAL = "special_tokens_map.json"
_ARCHITECTURE = "HF_ColBERT"
_MOST_LENGTH = 1 << 20


def late_of_modules(config: Mapping[str, Any], folder: Path) -> LateInteraction:
    """Read PyLate's settings, config_sentence_transformers.json. Raises CheckpointError."""
    path = folder / "config_sentence_transformers.json"
    similarity = config.get("similarity_fn_name") or "MaxSim"
    if similarity != "MaxSim":
        raise CheckpointError(f"{path} compares tokens by {similarity!r}; supported is MaxSim")
    words = config.get("skiplist_words")
    words = list(string.punctuation) if words is None else words
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{path} has skiplist_words that are not a list of texts")
    return LateInteraction(
        query_prefix=_text(path, config, "query_prefix", "[Q] "),
        document_prefix=_text(path, config, "document_prefix", "[D] "),
        query_length=_length(path, config, "query_length", 32),
        document_length=_length(path, config, "document_length", 180),
        expands=_flag(path, config, "do_query_expansion", default=True),
        attends=_flag(path, config, "attend_to_expansion_tokens", default=False),
        skipped=tuple(words),
        mask=_mask(folder),
    )


def late_of_metadata(folder: Path) -> LateInteraction | None:
    """Read colbert-ir's settings; None: the folder is of another kind. Raises CheckpointError."""
    path = folder / METADATA
    if not path.is_file() and not _is_named(folder):
        return None
    config = read_json(path, missing={})
    for key, known in (("similarity", "cosine"), ("interaction", "colbert")):
        if config.get(key, known) != known:
            raise CheckpointError(f"{path} has {key} = {config[key]!r}; supported is {known!r}")
    skips = _flag(path, config, "mask_punctuation", default=True)
    return LateInteraction(
        query_prefix=_text(path, config, "query_token_id", "[unused0]"),
        document_prefix=_text(path, config, "doc_token_id", "[unused1]"),
        query_length=_length(path, config, "query_maxlen", 32),
        document_length=_length(path, config, "doc_maxlen", 220),
        expands=True,
        attends=_flag(path, config, "attend_to_mask_tokens", default=False),
        skipped=tuple(string.punctuation) if skips else (),
        mask=_mask(folder),
    )


_MARKED = "<|vision_start|><|image_pad|><|vision_end|>"
_SHOWN = f"<|im_start|>user\n{_MARKED}Describe the image.<|im_end|><|endoftext|>"
_REPEATED = 10  # tokens that fill queries up, as room to think


def frames_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Return what stands before and after queries and images in the inputs of transformers'
    ColPali and ColQwen2; {}: the folder is of another kind.

    Source: Faysse et al. 2024 (arXiv:2407.01449). Raises CheckpointError.
    """
    kind = read_json(folder / "config.json", missing={}).get("model_type")
    if kind not in ("colpali", "colqwen2"):
        return {}
    path = folder / "processor_config.json"
    config = read_json(path, missing={})
    if kind == "colpali":
        return _of_colpali(folder, path, config)
    shown = _text(path, config, "visual_prompt_prefix", _SHOWN)
    before, mark, after = shown.partition(_MARKED)
    if not mark:
        raise CheckpointError(f"{path} has a visual_prompt_prefix without {_MARKED}")
    filler = _token(folder, "pad_token") or "<|endoftext|>"
    query = _text(path, config, "query_prefix", "Query: ")
    return {"query": (query, f"{filler * _REPEATED}\n"), "image": (before, after)}


def _of_colpali(folder: Path, path: Path, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The image comes first, and what is asked of it behind the token that begins a text."""
    start, filler = _token(folder, "bos_token") or "<bos>", _token(folder, "pad_token") or "<pad>"
    shown = _text(path, config, "visual_prompt_prefix", "Describe the image.")
    query = _text(path, config, "query_prefix", "Question: ")
    return {
        "query": (f"{start}{query}", f"{filler * _REPEATED}\n"),
        "image": ("", f"{start}{shown}\n"),
    }


def _is_named(folder: Path) -> bool:
    return read_json(folder / "config.json", missing={}).get("architectures") == [_ARCHITECTURE]


def write_mask(late: LateInteraction, folder: Path) -> None:
    """Name the mask token for a folder whose tokenizer_config.json does not."""
    if late.mask is not None:
        (folder / _SPECIAL).write_text(json.dumps({"mask_token": late.mask}) + "\n")


def _mask(folder: Path) -> str | None:
    return _token(folder, "mask_token")


def _token(folder: Path, key: str) -> str | None:
    """Return the text of a token by its key, as these files have it."""
    for name in ("tokenizer_config.json", _SPECIAL):
        token = read_json(folder / name, missing={}).get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return text
    return None


def _text(path: Path, config: Mapping[str, Any], key: str, default: str) -> str:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be a text")
    return default if value is None else value


def _length(path: Path, config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int or not 3 <= value <= _MOST_LENGTH:
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be a number of tokens")
    return value


def _flag(path: Path, config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be true or false")
    return default if value is None else value
